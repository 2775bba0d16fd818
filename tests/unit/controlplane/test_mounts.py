"""How far locks reach."""

from __future__ import annotations

import pytest

from hpk.controlplane import mounts

LISTED = """\
22 1 253:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:50 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2,local_lock=none,addr=10.0.0.1
31 30 0:51 / /home/a\\040b rw - lustre 10.0.0.2@o2ib:/fs rw,flock,lazystatfs
32 22 0:52 / /scratch rw - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf
33 22 0:53 / /scratch rw master:1 - tmpfs tmpfs rw
34 22 0:54 / /noopts rw -  proc proc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/home/x/.hpk", "nfs4"),
        ("/home/a b/.hpk", "lustre"),
        ("/homes", "ext4"),
        ("/scratch", "tmpfs"),
    ],
)
def test_a_path_lies_on_the_deepest_mount(path: str, kind: str) -> None:
    """Of several at one place on the last."""
    found = mounts.of(path, mounts.mounts(LISTED))
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    ("kind", "options", "reach"),
    [
        ("ext4", "rw", "all"),
        ("gpfs", "rw", "all"),
        ("nfs4", "rw,local_lock=none", "all"),
        ("nfs", "rw,nolock,local_lock=all", "host"),
        ("nfs", "rw,local_lock=flock", "host"),
        ("lustre", "rw,flock", "all"),
        ("lustre", "rw,localflock", "host"),
        ("beegfs", "rw", "unknown"),
        ("fuse.sshfs", "rw", "unknown"),
        ("cifs", "rw", "unknown"),
    ],
)
def test_only_what_a_mount_says_is_trusted(kind: str, options: str, reach: str) -> None:
    """A lock that is granted proves nothing about other hosts."""
    assert mounts.reach(mounts.MountedFileSystem("/", kind, frozenset(options.split(",")))) == reach
    assert mounts.reach(None) == "unknown"
