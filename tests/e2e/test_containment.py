"""What a container is kept from: seen from inside, in a running pod."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hpk.agent.boot import oci
from tests import cluster
from tests.e2e import conftest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

# /usr/include/linux/capability.h
CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP = 0, 1, 3, 4, 5, 6, 7, 8
NET_BIND_SERVICE, NET_ADMIN, NET_RAW, SYS_CHROOT, SYS_ADMIN = 10, 12, 13, 18, 21
MKNOD, AUDIT_WRITE, SETFCAP = 27, 29, 31
DEFAULT = (
    *(CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP),
    *(NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP),
)

LIBRARY = r"""
import ctypes, errno, fcntl, glob, json, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def fails(do, *arguments):
    "None if it works, else the name of the error."
    try:
        do(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))

def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

def status(pid="self"):
    lines = (line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return {key: value.strip() for key, value in lines}

def mount(source, target, kind, flags=0, data=None):
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data)

def in_child(do):
    "What a function says in a process of its own; an error is told by its name."
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            said = do()
        except OSError as error:
            said = {"failed": f"{errno.errorcode.get(error.errno, error.errno)} {error.strerror}"}
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 65536)
    os.waitpid(child, 0)
    return json.loads(text)

def netlink(family, body, kind=0, flags=0x400):
    "One request, or a batch if it has no kind, and the error with which the kernel answers."
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    line.settimeout(5)
    line.bind((0, 0))
    line.send(struct.pack("IHHII", 16 + len(body), kind, 1 | 4 | flags, 1, 0) + body if kind else body)
    code = -struct.unpack_from("i", line.recv(65536), 16)[0]
    if code:
        raise OSError(code, "netlink")

def changes():
    "What becomes of attempts to change the network: an address, a route, a link, a rule."
    index = socket.if_nametoindex("eth0")
    address = struct.pack("BBBBi", 2, 24, 0, 0, index) + struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7]))
    route = struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack("HHi", 8, 4, index)
    link = struct.pack("BxHiII", 0, 0, index, 0, 1)
    begin, end = ((struct.pack("IHHII", 20, kind, 1, 0, 0) + struct.pack(">BBH", 0, 0, 10)) for kind in (16, 17))
    table = struct.pack("BBH", 2, 0, 0) + struct.pack("HH4s", 8, 1, b"abc\0")
    table = struct.pack("IHHII", 16 + len(table), 10 << 8, 1 | 4 | 0x400, 1, 0) + table
    return {
        "address": fails(netlink, 0, address, 20),
        "route": fails(netlink, 0, route, 24),
        "link": fails(netlink, 0, link, 16, 0),
        "rules": fails(netlink, 12, begin + table + end),
    }

found = {}
"""


def report(space: conftest.Namespace, script: str, *, image: str = "python:3", **options: Any) -> dict[str, Any]:
    """What a Python script says in a pod of its own: its dictionary ``found``.

    ``context`` and ``pod`` are a container's and a pod's further fields.
    """
    name = "seen"
    command = ["python3", "-c", f"{LIBRARY}\n{script}\nprint(json.dumps(found))"]
    container = {"name": "c", "image": f"${{REGISTRY}}/{image}", "command": command, **options.get("container", {})}
    container["securityContext"] = options.get("context", {})
    spec = {"restartPolicy": "Never", "containers": [container], **options.get("pod", {})}
    space.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
    conftest.until(lambda: space.phase(name) in {"Succeeded", "Failed"})
    log = space.kubectl("logs", name, "-c", "c")
    assert space.phase(name) == "Succeeded", log
    space.kubectl("delete", "pod", name)
    found: dict[str, Any] = json.loads(log.splitlines()[-1])
    return found


def mask(*capabilities: int) -> str:
    """As /proc/<pid>/status shows them."""
    return f"{sum(1 << one for one in capabilities):016x}"


CAPABILITIES = "found.update({k: v for k, v in status().items() if k.startswith('Cap') or k == 'NoNewPrivs'})"


def test_capabilities_are_containerds_defaults(space: conftest.Namespace) -> None:
    """Root has fourteen of them and can never get another; nothing is inherited, ambient, or gained by exec."""
    found = report(space, CAPABILITIES)
    assert {found[name] for name in ("CapBnd", "CapEff", "CapPrm")} == {mask(*DEFAULT)}
    assert found["CapInh"] == found["CapAmb"] == mask()
    assert found["NoNewPrivs"] == "1", "Apptainer sets it for all that it starts"


def test_a_user_has_no_capabilities(space: conftest.Namespace) -> None:
    """Whoever is not root has none."""
    found = report(space, CAPABILITIES, context={"runAsUser": 1234})
    assert found["CapEff"] == found["CapPrm"] == found["CapAmb"] == mask()


def test_what_is_asked_for_is_given_and_taken(space: conftest.Namespace) -> None:
    """Add, drop, and allowPrivilegeEscalation."""
    capabilities = {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    found = report(space, CAPABILITIES, context={"capabilities": capabilities, "allowPrivilegeEscalation": False})
    assert found["CapBnd"] == found["CapEff"] == mask(NET_BIND_SERVICE)
    assert found["NoNewPrivs"] == "1"


def test_kernel_files_are_masked_and_read_only(space: conftest.Namespace) -> None:
    """As the kubelet's default procMount: /proc and /sys tell nothing of the host, and take no settings."""
    script = f"""
for path in {oci.MASKED!r}:
    if os.path.isdir(path):
        found[path] = os.listdir(path)
    elif os.path.exists(path):
        found[path] = len(open(path, 'rb').read(100)) if fails(open, path, 'rb') is None else 0
for path in {oci.READ_ONLY!r} + ("/sys",):
    if os.path.exists(path):
        found[path] = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
found["sysctl"] = fails(open, "/proc/sys/kernel/hostname", "w")
found["remount"] = fails(mount, "none", "/proc/sys", "", 32 | 4096)
found["sysfs"] = fails(mount, "sysfs", "/tmp", "sysfs")
"""
    found = report(space, script)
    assert {path: value for path, value in found.items() if path in oci.MASKED and value} == {}
    assert all(found.get(path, True) for path in oci.READ_ONLY)
    assert found["/sys"]
    assert found["/proc/sys"]
    assert found["sysctl"] == "EROFS"
    assert (found["remount"], found["sysfs"]) == ("EPERM", "EPERM")


def test_low_ports_and_ping_are_for_everybody(space: conftest.Namespace) -> None:
    """A server that is not root may have port 80, as under containerd."""
    script = """
found["port"] = fails(socket.create_server, ("", 80))
found["start"] = open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read().strip()
found["ping"] = fails(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
"""
    found = report(space, script, context={"runAsUser": 1234, "capabilities": {"drop": ["ALL"]}})
    assert found == {"port": None, "start": "0", "ping": None}


def test_the_network_cannot_be_changed(space: conftest.Namespace) -> None:
    """Neither addresses nor links nor rules, by root of a container, nor by root of a user namespace made there."""
    script = """
found["root"] = changes()
def inside():
    call("unshare", 0x10000000)
    return {"capabilities": status()["CapEff"], **changes()}
found["nested"] = in_child(inside)
"""
    found = report(space, script)
    assert set(found["root"].values()) == {"EPERM"}, found
    assert int(found["nested"].pop("capabilities"), 16) >> NET_ADMIN & 1, "it is root of its own"
    assert found["nested"] == found["root"]


def test_a_user_namespace_opens_nothing(space: conftest.Namespace) -> None:
    """Root of a user namespace that a container made cannot uncover what is masked, nor mount it anew."""
    script = """
REMOUNT, BIND = 32, 4096
def inside():
    call("unshare", 0x10000000 | 0x20000 | 0x20000000)  # users, mounts, processes
    return in_child(deeper)
def deeper():
    return {
        "capabilities": status()["CapEff"],
        "own": fails(mount, "x", "/tmp", "tmpfs"),  # it may, in a mount namespace that nobody else sees
        "sysctl": fails(open, "/proc/sys/kernel/hostname", "w"),
        "remount": fails(mount, "none", "/proc/sys", "", REMOUNT | BIND),
        "unmount": fails(call, "umount2", b"/proc/sys", 2),
        "unmask": fails(call, "umount2", b"/proc/interrupts", 2),
        "proc": fails(mount, "proc", "/tmp", "proc"),
        "sysfs": fails(mount, "sysfs", "/tmp", "sysfs"),
    }
found = in_child(inside)
"""
    found = report(space, script)
    assert int(found.pop("capabilities"), 16) >> SYS_ADMIN & 1, "it is root of its own"
    assert found.pop("own") is None
    assert found.pop("sysctl") == "EROFS"
    assert found.pop("unmount") == found.pop("unmask") == "EINVAL", "they are locked"
    assert set(found.values()) == {"EPERM"}, found


def test_namespaces_give_nothing_new(space: conftest.Namespace) -> None:
    """No mounts, no other namespace, no tracing of what is outside; devices are files without a driver."""
    script = """
for name, flag in {"mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000}.items():
    found[name] = fails(call, "unshare", flag)
found["tmpfs"] = fails(mount, "x", "/tmp", "tmpfs")
found["bind"] = fails(mount, "/etc", "/tmp", "", 4096)
found["hostname"] = fails(socket.sethostname, "other")
found["disk"] = fails(os.mknod, "/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
found["reboot"] = fails(call, "reboot", 0x1234567)
found["module"] = fails(call, "delete_module", b"x", 0)
"""
    found = report(space, script)
    assert {name: value for name, value in found.items() if value not in {"EPERM", "ENOSYS"}} == {}


def test_the_agent_is_out_of_reach(space: conftest.Namespace) -> None:
    """A container sees its own processes only; the plan, the link's key and the pod's directory are not in its tree."""
    script = """
found["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found["parent"] = os.getppid()
found["roots"] = sorted(os.readlink(f"/proc/{pid}/root") for pid in found["processes"])
found["fds"] = sorted(os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in "012")
found["open"] = [name for name in os.listdir("/proc/self/fd") if int(name) > 3]
found["mounts"] = open("/proc/self/mountinfo").read()
found["environment"] = open("/proc/self/environ").read()
found["files"] = []
for root, directories, files in os.walk("/"):
    if root.startswith(("/proc", "/sys")):
        directories.clear()
    ours = ("spec.json", "report.json", "config.json", "job.json", "endpoint.json")
    found["files"] += [f"{root}/{name}" for name in files if name in ours]
"""
    found = report(space, script)
    assert found["processes"] == [1]
    assert found["parent"] == 0
    assert set(found["roots"]) == {"/"}
    assert found["fds"] == ["/dev/null", "pipe", "pipe"]
    assert found["open"] == []
    assert found["files"] == []
    for line in found["mounts"].splitlines():
        source = line.split()[3]
        assert not re.search(r"/\.hpk/(pods|state|run|images)", source), line
    assert "/home/" not in found["environment"]
    assert ".hpk" not in found["environment"]


def test_what_is_shared_is_not_written(space: conftest.Namespace) -> None:
    """Root of a container writes to its own layer only: not to the image, not to another container's files."""
    write = "echo mine > /bin/mark; echo mine > /etc/mark; sync"
    first = {"name": "first", "image": "${REGISTRY}/python:3", "command": ["sh", "-c", write]}
    script = """
found["mark"] = [path for path in ("/bin/mark", "/etc/mark") if os.path.exists(path)]
found["own"] = fails(open, "/bin/mark", "w")
found["devices"] = sorted(os.listdir("/dev"))
"""
    found = report(space, script, pod={"initContainers": [first]})
    assert found["mark"] == []
    assert found["own"] is None
    assert set(found["devices"]) <= {
        *("core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
        *("termination-log", "tty", "urandom", "zero"),
    }
    again = report(space, script)
    assert again["mark"] == []


def test_setuid_programs_gain_nothing_outside(space: conftest.Namespace) -> None:
    """A setuid program runs as whoever starts it; and root of a pod is the user herself outside."""
    script = """
import subprocess
found["mode"] = oct(os.stat("/v/id").st_mode & 0o7777)
found["effective"] = subprocess.run(["/v/id", "-u"], capture_output=True, text=True).stdout.strip()
found["map"] = open("/proc/self/uid_map").read().split()
"""
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = [{"name": "v", "mountPath": "/v"}]
    maker = {
        "name": "maker",
        "image": "${REGISTRY}/python:3",
        "command": ["sh", "-c", "cp $(command -v id) /v/id && chmod 4755 /v/id"],
        "volumeMounts": mounts,
    }
    for escalation in (True, False):
        found = report(
            space,
            script,
            pod={"initContainers": [maker], **volume},
            container={"volumeMounts": mounts},
            context={"runAsUser": 1234, "allowPrivilegeEscalation": escalation},
        )
        assert (found["mode"], found["effective"]) == ("0o4755", "1234")
        outside = cluster.shell("id -u").strip()
        # With one id the container's user is the pod's root, which is the user outside, under another number.
        assert found["map"][:3] in (["0", outside, "1"], ["1234", "0", "1"]), "root is the user outside"


def test_runtime_default_filters_system_calls(space: conftest.Namespace) -> None:
    """The container's profile wins over the pod's; a command of kubectl exec has the same filter."""
    show = {"command": ["sh", "-c", "grep ^Seccomp: /proc/self/status; sleep 60"]}
    runtime, none = {"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {"type": "Unconfined"}}
    free = {"name": "free", "securityContext": none, **show}
    user = {"name": "user", "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}, **show}
    containers = [{"image": "${REGISTRY}/busybox:1", **one} for one in ({"name": "c", **show}, user, free)]
    spec = {"containers": containers, "securityContext": runtime, "terminationGracePeriodSeconds": 1}
    space.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
    conftest.until(lambda: space.phase("p") == "Running")
    modes = {"c": "2", "user": "2", "free": "0"}
    for name, mode in modes.items():
        conftest.until(lambda name=name: space.kubectl("logs", "p", "-c", name))  # type: ignore[misc]
        assert space.kubectl("logs", "p", "-c", name).split() == ["Seccomp:", mode]
        again = space.kubectl("exec", "p", "-c", name, "--", "grep", "^Seccomp:", "/proc/self/status")
        assert again.split() == ["Seccomp:", mode]
