"""The switch and the hosts' cables: a bridge in a network namespace of its own, a veth pair a host.

Nothing of it is in the machine's own namespace, and the switch has no way out: a packet to any other
network comes back as unreachable at once instead of vanishing.
"""

import contextlib
import os
import pathlib

from hpksite import layout, paths, sh

BRIDGE = "br0"


def names() -> list[str]:
    """Return the cluster's network namespaces that exist, whichever checkout made them."""
    try:
        found = os.listdir(paths.NETNS_FOLDER)
    except FileNotFoundError:
        return []
    return sorted(name for name in found if name == paths.NETNS or name.startswith(f"{paths.NETNS}-"))


def up() -> None:
    """Make the switch and connect every host. There must be none of it yet (see `down`)."""
    commands = [f"link add {BRIDGE} type bridge", f"addr add {layout.GATEWAY}/{layout.PREFIX} dev {BRIDGE}"]
    sh.out("ip", "netns", "add", paths.NETNS)
    for host in layout.HOSTS:
        sh.out("ip", "netns", "add", paths.netns(host.name))
        commands += [
            f"link add {host.name} type veth peer name eth0 netns {paths.netns(host.name)}",
            f"link set {host.name} master {BRIDGE} up",
        ]
    commands += [f"link set {BRIDGE} up", "link set lo up"]
    batch(paths.NETNS, commands)
    sysctl(paths.NETNS, "net.ipv4.ip_forward=1")  # with no route: "unreachable" at once, not a time-out
    for host in layout.HOSTS:
        batch(
            paths.netns(host.name),
            [
                f"addr add {host.address}/{layout.PREFIX} dev eth0",
                "link set eth0 up",
                "link set lo up",
                f"route add default via {layout.GATEWAY}",  # kube-apiserver looks for its address there
            ],
        )
        sysctl(paths.netns(host.name), "net.ipv4.ip_forward=1")  # between the pods' bridge and flannel's device


def batch(netns: str, commands: list[str]) -> None:
    """Run `ip` commands in a namespace, all in one process."""
    sh.out("ip", "-n", netns, "-batch", "-", stdin="\n".join(commands) + "\n")


def sysctl(netns: str, setting: str) -> None:
    """Set one network sysctl of a namespace."""
    sh.out("nsenter", f"--net={paths.NETNS_FOLDER}/{netns}", "sysctl", "-qw", setting)


def down() -> None:
    """Remove every namespace of the cluster, and with them their interfaces. No process may be in them."""
    for name in names():
        if not sh.succeeds("ip", "netns", "delete", name):
            pathlib.Path(paths.NETNS_FOLDER, name).unlink(missing_ok=True)  # a crash left the file without its mount
    with contextlib.suppress(FileNotFoundError):
        if not os.listdir(paths.NETNS_FOLDER):  # `ip netns add` made it a mount; leave none behind
            sh.succeeds("umount", paths.NETNS_FOLDER)
