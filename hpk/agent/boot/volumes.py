"""The pod's volumes on the compute node, and the parts of them that containers mount.

emptyDirs are on scratch; the content of configMaps and secrets is on a tmpfs, which is gone with the job, however it
ends.
"""

from __future__ import annotations

import binascii
import os
import stat
import time

from hpk import jobdir
from hpk.agent.boot import linux, securejoin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records

_KINDS = {
    stat.S_IFDIR: "Directory",
    stat.S_IFREG: "File",
    stat.S_IFSOCK: "Socket",
    stat.S_IFCHR: "CharDevice",
    stat.S_IFBLK: "BlockDevice",
}
_WORDS = {
    "Directory": "directory",
    "File": "file",
    "Socket": "socket file",
    "CharDevice": "character device",
    "BlockDevice": "block device",
}


class MountFailed(Exception):
    """A volume cannot be made; the text is the kubelet's event message."""

    def __init__(self, volume: str, why: object) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


class SubPathFailed(OSError):
    """A container cannot be configured yet: a part of a volume that it mounts is missing; the kubelet's text."""

    def __init__(self, volume: str, container: str) -> None:
        super().__init__(f'failed to prepare subPath for volumeMount "{volume}" of container "{container}"')


class Volumes:
    """The volumes of a pod, by name.

    Args:
        scratch: A directory on the node's disk.
        private: A directory on a tmpfs.
        group: The pod's fsGroup, which owns emptyDirs and files.
        host: Where the node's own root directory is.
        has_one_id: Whether all users of the pod are the same, whatever their numbers.
    """

    def __init__(
        self,
        *,
        scratch: str,
        private: str,
        group: int | None = None,
        host: str = jobdir.SANDBOX_HOST,
        has_one_id: bool = False,
    ) -> None:
        self._has_one_id = has_one_id
        self._names: dict[str, str] = {}
        self._scratch = scratch
        self._private = private
        self._host = host
        self._group = group
        self._sources: dict[str, str] = {}
        self._held: list[int] = []

    def make(self, volume: records.Volume) -> None:
        """Make one volume.

        Raises:
            MountFailed: It cannot be made; trying again on this node would not help.
        """
        name = volume["name"]
        make = {"empty_dir": self._empty_directory, "files": self._files, "host_path": self._host_path}[volume["kind"]]
        try:
            self._sources[name] = make(volume)
        except OSError as error:
            raise MountFailed(name, error) from error

    def renew(self, volume: records.Volume) -> None:
        """Replace the files of a volume that was made.

        Raises:
            OSError: They cannot be written; the old files stay.
            LookupError: There is no such volume.
        """
        if volume["kind"] == "files":
            write_files(
                self._sources[volume["name"]], volume.get("files", []), group=self._group, owns=not self._has_one_id
            )

    def source(self, mount: records.Mount, *, container: str) -> tuple[str, int | None]:
        """Return what to bind for a container's mount: a path, and a descriptor to close once it is bound.

        A missing sub path becomes a directory. It is resolved now, so that it shows what init containers made.

        Raises:
            SubPathFailed: The sub path leads out of the volume, or nowhere.
        """
        whole = self._sources[mount["volume"]]
        if not (path := mount["sub_path"]):
            return whole, None
        if ".." in path.split("/"):
            raise SubPathFailed(mount["volume"], container)
        try:
            mode = stat.S_IMODE(os.stat(whole).st_mode)
            own_name = self._names.get(mount["volume"], "")
            descriptor = securejoin.hold(whole, path, create_mode=mode, beneath=own_name)
        except OSError as error:
            # Details go only to the job's output: they could tell of the node's files.
            print(f"container {container}: Cannot mount subPath {path}: {error}", flush=True)  # noqa: T201
            raise SubPathFailed(mount["volume"], container) from error
        return securejoin.path_of(descriptor), descriptor

    def directory(self, name: str) -> str:
        """Return the path of a volume."""
        return self._sources[name]

    def close(self) -> None:
        """Close the descriptors of hostPath volumes."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def _empty_directory(self, volume: records.Volume) -> str:
        if volume.get("medium") == "Memory":
            path = os.path.join(self._private, "memory", volume["name"])
            os.makedirs(path)
            size = volume.get("size_limit")
            options = "mode=0777" + (f",size={size}" if size else "")
            linux.mount("tmpfs", path, "tmpfs", flags=linux.NO_SUID | linux.NO_DEVICES, options=options)
        else:
            path = os.path.join(self._scratch, volume["name"])
            os.makedirs(path)
        os.chmod(path, 0o777)  # noqa: S103 - what an emptyDir is
        if self._group is not None:
            os.chown(path, -1, self._group)
            os.chmod(path, 0o2777)  # noqa: S103 - what an emptyDir is
        return path

    def _files(self, volume: records.Volume) -> str:
        path = os.path.join(self._private, "files", volume["name"])
        os.makedirs(path)
        os.chmod(path, 0o755)  # noqa: S103 - containers of any user read it
        write_files(path, volume.get("files", []), group=self._group, owns=not self._has_one_id)
        return path

    def _host_path(self, volume: records.Volume) -> str:
        path = volume.get("host_path", "/")
        kind = volume.get("host_path_type", "")
        self._names[volume["name"]] = path
        try:
            descriptor = securejoin.hold(self._host, path)
        except FileNotFoundError:
            descriptor = self._create_host_path(path, kind)
        self._held.append(descriptor)
        wanted = kind.removesuffix("OrCreate")
        found = _KINDS.get(stat.S_IFMT(os.fstat(descriptor).st_mode), "")
        if wanted and wanted != found:
            raise MountFailed(
                volume["name"], f"hostPath type check failed: {path} is not a {_WORDS[wanted]}, it's a {found}"
            )
        return securejoin.path_of(descriptor)

    def _create_host_path(self, path: str, kind: str) -> int:
        """Make what its type allows; a hostPath without a type becomes a directory, as with containerd."""
        if kind in ("", "DirectoryOrCreate"):
            return securejoin.hold(self._host, path, create_mode=0o755)
        if kind == "FileOrCreate":
            parent = securejoin.hold(self._host, os.path.dirname(path))
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
                os.close(os.open(os.path.basename(path), flags, 0o644, dir_fd=parent))
            finally:
                os.close(parent)
            return securejoin.hold(self._host, path)
        raise OSError(
            f"hostPath type check failed, {path} is not a {_WORDS[kind]}, unable to determine its type: "
            "no such file or directory"
        )


def write_files(directory: str, files: list[records.File], *, group: int | None, owns: bool = True) -> None:
    """Lay out files as the kubelet does: a dated directory, ``..data`` to it, and a link for each first name.

    Called again, it replaces all files at once, by renaming ``..data``. ``owns``: whether files get the plan's owners;
    a pod with one id owns all.
    """
    dated = time.strftime("..%Y_%m_%d_%H_%M_%S", time.gmtime()) + f".{time.time_ns() % 1_000_000_000:09d}"
    base = os.path.join(directory, dated)
    os.mkdir(base)
    os.chmod(base, 0o755)  # noqa: S103 - containers of any user read it
    for file in files:
        _write_file(base, file, group=group, owner=file.get("uid", -1) if owns else -1)
    temporary, data = os.path.join(directory, "..data_tmp"), os.path.join(directory, "..data")
    before = os.readlink(data) if os.path.islink(data) else ""
    if os.path.islink(temporary):
        os.unlink(temporary)  # of a call that failed
    os.symlink(dated, temporary)
    os.rename(temporary, data)
    if before:
        import shutil  # noqa: PLC0415 - not before the first container runs

        shutil.rmtree(os.path.join(directory, before), ignore_errors=True)
    for first in {file["path"].split("/", 1)[0] for file in files}:
        link = os.path.join(directory, first)
        if not os.path.islink(link):
            os.symlink(os.path.join("..data", first), link)


def _write_file(base: str, file: records.File, *, group: int | None, owner: int) -> None:
    parts = file["path"].split("/")
    parent = base
    for part in parts[:-1]:
        parent = os.path.join(parent, part)
        if not os.path.isdir(parent):
            os.mkdir(parent)
            os.chmod(parent, 0o755)  # noqa: S103 - containers of any user read it
    descriptor = os.open(os.path.join(parent, parts[-1]), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(binascii.a2b_base64(file["data"]))
        mode = file["mode"]
        if owner >= 0:
            os.fchown(descriptor, owner, -1)
        if group is not None:
            os.fchown(descriptor, -1, group)
            mode |= 0o440
        os.fchmod(descriptor, mode)
