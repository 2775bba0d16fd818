"""The OCI runtime configuration of one container, from its plan and the prepared sandbox; pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpk import records
    from hpk.agent.boot import users

# containerd's defaults (containerd/oci/spec.go).
CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)  # fmt: skip
ALL_CAPABILITIES = (
    *CAPABILITIES,
    "CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
    "CAP_DAC_READ_SEARCH", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_LEASE", "CAP_LINUX_IMMUTABLE",
    "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_NET_ADMIN", "CAP_NET_BROADCAST", "CAP_PERFMON",
    "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT",
    "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
)  # fmt: skip
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_TERMINAL = "xterm"  # containerd's


class Bind:
    """A file or directory of the sandbox at a path of the container."""

    def __init__(self, source: str, path: str, *, read_only: bool = False) -> None:
        self.source = source
        self.path = path
        self.read_only = read_only


class Neighbour:
    """The owner of the processes that a container shares: another container, or the whole pod.

    Attributes:
        name: A name for messages.
        processes: The path of its PID namespace.
        users: The path of its user namespace.
        ids: Its process's uid and gid.
    """

    def __init__(self, name: str, *, processes: str, users: str, ids: tuple[int, int]) -> None:
        self.name = name
        self.processes = processes
        self.users = users
        self.ids = ids


def configuration(
    container: records.ContainerPlan,
    *,
    root: str,
    identity: users.ContainerUser,
    argv: list[str],
    env: list[list[str]],
    binds: list[Bind],
    owns_network: bool,
    oom_score: int,
    one_id: str | None = None,
    neighbour: Neighbour | None = None,
    seccomp: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the whole ``config.json``.

    Args:
        container: The plan's container.
        root: The path of its root file system, writable.
        identity: The user of its process.
        argv: Its command, with addresses filled in.
        env: Names and values, with addresses filled in; the last one of a name wins.
        binds: Volumes and the pod's own files; the last one of a path wins.
        owns_network: Whether the sandbox has its own network namespace; without one, sysfs is the host's.
        oom_score: Its ``oom_score_adj``.
        one_id: If the pod has one id: the directory of mounts that a nested user namespace cannot make.
        neighbour: Whose processes it shares.
        seccomp: Its system call filter, if any.

    Raises:
        ValueError: It cannot share them from another user namespace.
    """
    processes = {"type": "pid", "path": neighbour.processes} if neighbour else {"type": "pid"}
    namespaces: list[dict[str, str]] = [processes, {"type": "mount"}]
    mappings: dict[str, Any] = {}
    nested = None
    ids = (identity.uid, identity.gid)
    if one_id is not None and ids != (0, 0):
        nested = one_id  # a namespace that shows the pod's one id under the container's number
        # Needed also to join one: crun must know that it has no root.
        mappings = {"uidMappings": _mapping(identity.uid), "gidMappings": _mapping(identity.gid)}
        namespaces.append(_user_namespace(ids, neighbour))
    return {
        "ociVersion": "1.0.2",
        "process": process(container, identity=identity, argv=argv, env=env) | {"oomScoreAdj": oom_score},
        "root": {"path": root, "readonly": container["read_only_root"]},
        "mounts": _mounts(binds, owns_network=owns_network, has_one_id=one_id is not None, nested=nested),
        "linux": {
            # Containers share the sandbox's other namespaces: network, ipc, uts, and usually user.
            "namespaces": namespaces,
            **mappings,
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            **({"seccomp": seccomp} if seccomp else {}),
        },
    }


def _user_namespace(ids: tuple[int, int], neighbour: Neighbour | None) -> dict[str, str]:
    """Return the user namespace of a container that has the pod's one id under these numbers."""
    if neighbour is None:
        return {"type": "user"}
    if neighbour.ids == ids:
        return {"type": "user", "path": neighbour.users}
    theirs = neighbour.ids[0]
    raise ValueError(
        f"Cannot share the processes of {neighbour.name}, whose user is {theirs}, as user {ids[0]}: a pod has"
        f" one id on this site. Set securityContext.runAsUser to {f'{theirs} or 0' if theirs else 0}"
    )


def process(
    container: records.ContainerPlan, *, identity: users.ContainerUser, argv: list[str], env: list[list[str]]
) -> dict[str, Any]:
    """Return the ``process`` object of a configuration, or of an exec into the running container."""
    values = dict(env)
    values.setdefault("PATH", DEFAULT_PATH)
    if container["tty"]:
        values.setdefault("TERM", DEFAULT_TERMINAL)
    granted = capabilities(container["add_capabilities"], container["drop_capabilities"])
    return {
        "terminal": container["tty"],
        "user": {"uid": identity.uid, "gid": identity.gid, "additionalGids": identity.groups},
        "args": argv,
        "env": [f"{name}={value}" for name, value in values.items()],
        "cwd": container["cwd"] or "/",
        "capabilities": {"bounding": granted, "effective": granted, "permitted": granted},
        "noNewPrivileges": container["no_new_privileges"],
    }


def capabilities(add: list[str], drop: list[str]) -> list[str]:
    """Return the capability set as containerd does: drop from the default, then add; ``ALL`` works in both."""
    added = {_capability(name) for name in add}
    dropped = {_capability(name) for name in drop}
    granted = set(ALL_CAPABILITIES if "CAP_ALL" in added else CAPABILITIES)
    if "CAP_ALL" in dropped:
        granted = set()
    granted = (granted - dropped) | (added - {"CAP_ALL"})
    return sorted(granted)


def _capability(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith("CAP_") else f"CAP_{upper}"


def _mapping(number: int) -> list[dict[str, int]]:
    return [{"containerID": number, "hostID": 0, "size": 1}]


def _mounts(binds: list[Bind], *, owns_network: bool, has_one_id: bool, nested: str | None) -> list[dict[str, Any]]:
    terminals, bound = "" if has_one_id else ",gid=5", "rbind,rprivate,nosuid,noexec,nodev"
    base: list[dict[str, Any]] = [
        _mount("/proc", "proc", "proc", "nosuid,noexec,nodev"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
        _mount("/dev/pts", "devpts", "devpts", f"nosuid,noexec,newinstance,ptmxmode=0666,mode=0620{terminals}"),
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev")
        if nested is None
        else _mount("/dev/mqueue", "bind", f"{nested}/mqueue", bound),
        _mount("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro")
        if owns_network and nested is None
        else _mount("/sys", "bind", f"{nested}/sys" if owns_network else "/sys", f"{bound},ro"),
    ]
    chosen = {_clean(bind.path): bind for bind in binds}
    # Parents first, whatever the plan's order, so that no mount hides another.
    ordered = sorted(chosen.items(), key=lambda item: item[0].count("/") if item[0] != "/" else 0)
    return [mount for mount in base if mount["destination"] not in chosen] + [
        _mount(path, "bind", bind.source, "rbind,rprivate," + ("ro" if bind.read_only else "rw"))
        for path, bind in ordered
    ]


def _mount(destination: str, kind: str, source: str, options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": options.split(",")}


def _clean(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
