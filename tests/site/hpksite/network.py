"""The switch and the hosts' cables: a bridge in a network namespace of its own, a veth pair a host.

Nothing of it is in the machine's own namespace, and the switch has no way out: a packet to any other
network comes back as unreachable at once instead of vanishing.
"""

import pathlib

from . import layout, paths, sh

BRIDGE = "br0"


def names() -> list[str]:
    """Return the cluster's network namespaces that exist, whichever checkout made them."""
    folder = pathlib.Path(paths.NETNS_FOLDER)
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in found if name == paths.NETNS or name.startswith(f"{paths.NETNS}-"))


def up() -> None:
    """Make the switch. There must be none yet (see `down`)."""
    sh.out("ip", "netns", "add", paths.NETNS)
    _batch(
        paths.NETNS,
        f"link add {BRIDGE} type bridge",
        f"addr add {layout.GATEWAY}/{layout.PREFIX} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        "link set lo up",
    )
    _forward(paths.NETNS)  # with no route beyond: "unreachable" at once, not a time-out


def connect(host: layout.Host) -> None:
    """Give a host a fresh network namespace and a cable to the switch. No process may be in its old one."""
    netns = paths.netns(host.name)
    if netns in names():
        sh.succeeds("ip", "-n", paths.NETNS, "link", "delete", host.name)  # else it goes some time after its namespace
        _delete(netns)
    sh.out("ip", "netns", "add", netns)
    _batch(
        paths.NETNS,
        f"link add {host.name} type veth peer name eth0 netns {netns}",
        f"link set {host.name} master {BRIDGE} up",
    )
    _batch(
        netns,
        f"addr add {host.address}/{layout.PREFIX} dev eth0",
        "link set eth0 up",
        "link set lo up",
        f"route add default via {layout.GATEWAY}",  # kube-apiserver takes its address from the default route
    )
    _forward(netns)  # between the pods' bridge and flannel's device


def down() -> None:
    """Remove every namespace of the cluster, and with them their interfaces. No process may be in them."""
    for name in names():
        _delete(name)
    folder = pathlib.Path(paths.NETNS_FOLDER)
    if folder.is_dir() and not any(folder.iterdir()):
        sh.succeeds("umount", str(folder))  # `ip netns add` made it a mount; leave none behind


def _delete(name: str) -> None:
    if not sh.succeeds("ip", "netns", "delete", name):
        pathlib.Path(paths.netns_file(name)).unlink(missing_ok=True)  # a crash left the file without its mount


def _batch(netns: str, *commands: str) -> None:
    """Run `ip` commands in a namespace, all in one process."""
    sh.out("ip", "-n", netns, "-batch", "-", stdin="\n".join(commands) + "\n")


def _forward(netns: str) -> None:
    sh.out("nsenter", f"--net={paths.netns_file(netns)}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
