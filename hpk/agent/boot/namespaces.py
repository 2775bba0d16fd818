"""The namespaces that Apptainer cannot give the pod: a user namespace of one id, a network connected by pasta.

Without subordinate ids a user namespace holds one id: its root is the user who submitted the job. (With them, Apptainer
has mapped them all, and the agent is root already.) A new network namespace is empty; pasta, started before and still
in the node's network, connects it: it reads what the pod sends from a TUN device and sends it on from ordinary sockets,
so the node need not know the pod's address. Nothing comes in: the pod's ports are its own.

The agent itself moves, so that no process stands between it and the job's signals.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os

from hpk.agent.boot import linux, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from hpk import records

PASTA = "/usr/bin/pasta"
_OWN = linux.NEW_USERS | linux.NEW_MOUNTS | linux.NEW_HOSTNAME | linux.NEW_IPC


def enter(plan: records.PodPlan) -> int:
    """Move into the namespaces that the plan needs; return the process for :func:`attached`, or 0.

    Raises:
        OSError: The node does not let users make namespaces.
    """
    address = plan.get("address")
    has_one_id = plan.get("has_one_id", False)
    flags = (_OWN if has_one_id else 0) | (linux.NEW_NETWORK if address else 0)
    if not flags:
        return 0
    ready, done = os.pipe()
    helper = 0
    if address and (helper := os.fork()) == 0:
        os.close(done)
        _attach(address, ready, has_one_id=has_one_id)
    user, group = os.getuid(), os.getgid()
    try:
        linux.unshare(flags)
        if has_one_id:
            _map(user, group)
        os.write(done, b"\0")
    finally:
        os.close(ready)
        os.close(done)
    return helper


def attached(helper: int) -> None:
    """Wait until the network works, some 30 ms after :func:`enter`.

    Raises:
        OSError: pasta failed; its message is in the job's output.
    """
    if helper and (status := processes.wait(helper)) != 0:
        raise OSError(f"Cannot connect the pod's network: pasta ended with {processes.exit_code(status)}")


def pasta(address: records.Address, *, target: list[str]) -> list[str]:
    """Return the command that connects a network namespace: out by every port, in by none.

    The target names the namespaces: a process id, or options.
    """
    argv = [PASTA, "--quiet", "--config-net", "--ipv4-only"]
    argv += ["--address", address["ip"], "--netmask", str(address["prefix_length"])]
    argv += ["--gateway", address["gateway"], "--dns-forward", address["gateway"]]
    argv.append("--no-map-gw")  # else the pod's gateway would be the node's loopback, and what listens there
    for ports in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns"):
        argv += [ports, "none"]
    return [*argv, *target]


def _map(user: int, group: int) -> None:
    """Become root of the new user namespace; the kernel requires that its processes may not drop groups."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _attach(address: records.Address, ready: int, *, has_one_id: bool) -> NoReturn:
    """Become pasta, in the helper, as soon as there is a network to connect; exit if the agent failed."""
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, processes.STEADFAST)
        if os.read(ready, 1):
            agent = os.getppid()
            target = [str(agent)]  # pasta joins its user namespace as well
            if not has_one_id:
                # pasta stays in its user namespace. Before it opens anything it drops the capability to inspect a more
                # privileged process, so open the network for it; it keeps only descriptors 0 to 2.
                os.dup2(os.open(f"/proc/{agent}/ns/net", os.O_RDONLY), 0)
                target = ["--netns-only", "--no-netns-quit", "--netns", "/proc/self/fd/0"]
            argv = pasta(address, target=target)
            os.execve(argv[0], argv, processes.ENVIRONMENT)  # noqa: S606 - no shell is the point
    finally:
        os._exit(127)
