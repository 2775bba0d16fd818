"""The survey of a host: the facts that choose a network mode, and that `hpk doctor` explains."""

import array
import fcntl
import glob
import json
import os
import pwd
import socket
import stat
import struct
import sys

from hpk.host import commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def site(apptainers: "list[str]", env: "dict[str, str]") -> "dict[str, Any]":
    """Describe this host; `apptainers` may hold the command to look for (default: apptainer)."""
    account = pwd.getpwuid(os.getuid())
    return {
        "hostname": socket.gethostname(),
        "addresses": addresses(),
        "user": account.pw_name,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "architecture": os.uname().machine,
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "slurm_version": _first_line(["sinfo", "--version"], env).rpartition(" ")[2],
        "apptainer": apptainer(apptainers[0] if apptainers else "apptainer", env),
        "subuid": subordinate("/etc/subuid", account),
        "subgid": subordinate("/etc/subgid", account),
        "flannel": _settings("/run/flannel/subnet.env"),
        "user_namespaces": number("/proc/sys/user/max_user_namespaces"),
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "tun": os.access("/dev/net/tun", os.R_OK | os.W_OK),
        "kubectl": commands.find("kubectl", env),
    }


def apptainer(name: str, env: "dict[str, str]") -> "dict[str, Any] | None":
    """Return path, version, whether its setuid starter may be used, and its CNI networks; or None."""
    path = commands.find(name, env)
    if path is None:
        return None
    build = {}
    for line in _output([path, "buildcfg"], env).splitlines():
        key, _, value = line.partition("=")
        build[key.strip()] = value.strip().strip('"')
    settings = build.get("APPTAINER_CONFDIR") or build.get("SINGULARITY_CONFDIR") or "/etc/apptainer"
    starter = os.path.join(build.get("LIBEXECDIR", "/usr/libexec"), "apptainer/bin/starter-suid")
    return {
        "path": path,
        "version": _first_line([path, "--version"], env).rpartition(" ")[2],
        "setuid": _is_setuid(starter) and _allows_setuid(os.path.join(settings, "apptainer.conf")),
        "networks": cni_networks(os.path.join(settings, "network")),
    }


def _is_setuid(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == 0 and bool(status.st_mode & stat.S_ISUID)


def _allows_setuid(path: str) -> bool:
    try:
        with open(path) as file:
            lines = [line.split("=", 1) for line in file if "=" in line and not line.lstrip().startswith("#")]
    except OSError:
        return True  # the default
    return all(value.strip() != "no" for key, value in lines if key.strip() == "allow setuid")


def cni_networks(directory: str) -> "dict[str, list[str]]":
    """Return {network name: [plugin types]} of Apptainer's CNI configuration."""
    found = {}  # type: dict[str, list[str]]
    for path in sorted(glob.glob(os.path.join(directory, "*.conflist"))):
        try:
            with open(path) as file:
                network = json.load(file)
            found[network["name"]] = [plugin.get("type", "") for plugin in network.get("plugins", [])]
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    return found


def subordinate(path: str, account: "pwd.struct_passwd") -> "list[int] | None":
    """Return [first, count] of the user's largest range of subordinate ids, or None if the file has none."""
    best = None  # type: list[int] | None
    try:
        with open(path) as file:
            for line in file:
                owner, _, ids = line.strip().partition(":")
                if owner in (account.pw_name, str(account.pw_uid)):
                    first, count = (int(number) for number in ids.split(":"))
                    if best is None or count > best[1]:
                        best = [first, count]
    except (OSError, ValueError):
        pass
    return best


def addresses() -> "list[list[str]]":
    """Return [[interface, IPv4 address]] without loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        buffer = array.array("B", bytes(64 << 10))
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), 0x8912, request))[0]  # SIOCGIFCONF
        raw = buffer.tobytes()
        step = 16 + 3 * struct.calcsize("P")  # struct ifreq
        for start in range(0, size, step):
            name = raw[start : start + 16].split(b"\0", 1)[0].decode()
            address = socket.inet_ntoa(raw[start + 20 : start + 24])
            if not address.startswith("127."):
                found.append([name, address])
    return found


def _output(argv: "list[str]", env: "dict[str, str]") -> str:
    try:
        return commands.run(argv, timeout_seconds=20, env=env)[1].decode("utf-8", "replace")
    except OSError:
        return ""


def _first_line(argv: "list[str]", env: "dict[str, str]") -> str:
    return (_output(argv, env).splitlines() or [""])[0].strip()


def _settings(path: str) -> "dict[str, str] | None":
    try:
        with open(path) as file:
            return dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None


def number(path: str) -> "int | None":
    """Return the number in a file, or None if there is none."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
