"""Rules that turn a host's facts into findings for ``hpk doctor``; pure."""

from __future__ import annotations

import ipaddress
import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hpk import pki
from hpk.aio import descriptors
from hpk.controlplane import placement
from hpk.network import sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpk import config

Level = Literal["error", "warning", "note", "ok"]
Who = Literal["you", "your site", ""]

LEAST_APPTAINER = (1, 2)
LEAST_SLURM = (20, 11)
ENOUGH_IDS = 65536
FEW_NAMESPACES = 1000
SMALL_SCRATCH_BYTES = 2 << 30
MOST_SKEW_SECONDS = 5.0
PODS_INTERFACES = ("cni", "flannel")
"""Prefixes of the interfaces that the pod network itself makes."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    level: Level
    where: str
    what: str
    why: str = ""
    who: Who = ""
    how: str = ""

    def __str__(self) -> str:
        text = f"{self.level:<8}{self.where}: {self.what}"
        text += f"; {self.why}" if self.why else ""
        return text + (f" -> {self.who}: {self.how}" if self.how else "")


@dataclass(frozen=True, kw_only=True)
class ExaminedHost:
    """An examined host.

    Attributes:
        facts: The answers of :mod:`hpk.host.probe`; what is missing was not examined.
        reached: Registries, as HOST:PORT, that the login host can connect to.
        skew_seconds: The provable offset of its clock from the login host's; positive is ahead.
        architecture: The login host's, for which hpk.sif and the images are built.
    """

    where: str
    facts: Mapping[str, Any]
    reached: tuple[str, ...] = ()
    skew_seconds: float = 0.0
    architecture: str = ""


def login(place: ExaminedHost, settings: config.Settings) -> list[Finding]:
    """Return the findings on the login host; pods need only its shared file system."""
    return _found(place, _slurm(place), _apptainer(place), _kubectl(place), _shared(place), _routes(place, settings))


def compute(place: ExaminedHost, settings: config.Settings) -> list[Finding]:
    """Return the findings on a host that runs pods."""
    return _found(
        place,
        *(rule(place) for rule in (_apptainer, _architecture, _sandbox, _namespaces, _devices, _ids)),
        _open_files(place, settings),
        _network(place, settings),
        _registries(place),
        *(rule(place) for rule in (_scratch, _clock, _shared)),
        _routes(place, settings),
    )


def refused(where: str, text: str) -> Finding:
    """Return the finding that sbatch refused the probe."""
    how = "set the options that sbatch requires (--account, --qos, --time) in HPK_FLAGS, or use another partition"
    return Finding(level="warning", where=where, what=f"sbatch refuses jobs: {text}", why=_NO_PODS, who="you", how=how)


def waits(where: str, seconds: float, reason: str) -> Finding:
    """Return the finding that the probe did not start in time and was cancelled."""
    why = f" ({reason})" if reason else ""
    what = f"the probe did not start within {seconds:.0f} s{why}"
    return Finding(level="note", where=where, what=what, why="nothing was checked", who="you", how="try --wait=SECONDS")


def silent(where: str, state: str, output: str) -> Finding:
    """Return the finding that the probe's job ended without an answer."""
    what = f"the probe's job ended as {state}; its output ends with: {output or 'nothing'}"
    how = "if a program is missing, set HPK_PRELUDE; otherwise show this to your site"
    return Finding(level="error", where=where, what=what, why=_NO_PODS, who="you", how=how)


def filtered(where: str) -> Finding:
    """Return the finding that the login host cannot connect to a partition's hosts."""
    what, why = "the login host cannot reach its hosts' ports", "kubectl needs a tunnel"
    how = "'hpk kubectl' opens one by itself; run 'hpk connect' for other programs"
    return Finding(level="note", where=where, what=what, why=why, who="you", how=how)


def told(found: Sequence[Finding]) -> list[str]:
    """Return the report's lines; findings that several places share become one line naming them all."""
    places: dict[Finding, list[str]] = {}
    for one in found:
        places.setdefault(one if one.level == "ok" else replace(one, where=""), []).append(one.where)
    return [str(replace(one, where=", ".join(dict.fromkeys(where)))) for one, where in places.items()]


_NO_PODS = "no pod can run there"


def _found(place: ExaminedHost, *parts: Iterator[Finding]) -> list[Finding]:
    found = list(itertools.chain(*parts))
    return found or [Finding(level="ok", where=place.where, what=_summary(place.facts))]


def _summary(facts: Mapping[str, Any]) -> str:
    words = []
    if apptainer := facts["site"].get("apptainer"):
        words.append(f"Apptainer {apptainer['version']}")
    if (box := facts.get("sandbox")) and "seconds" in box:
        words.append(f"a sandbox starts in {box['seconds']:.2f} s")
    if (disk := facts.get("scratch")) and "free_bytes" in disk:
        words.append(f"{disk['free_bytes'] / 1e9:.0f} GB in {disk['path']}")
    if (home := facts.get("shared")) and "fsync_p99_seconds" in home:
        words.append(f"fsync p99 {home['fsync_p99_seconds'] * 1000:.1f} ms")
    return ", ".join(words)


def _slurm(place: ExaminedHost) -> Iterator[Finding]:
    version = str(place.facts["site"].get("slurm_version") or "")
    if _version(version) < LEAST_SLURM:
        what = f"Slurm {version}" if version else "no answer from sinfo"
        why, how = "HPK needs Slurm 20.11 or newer", "run hpk on a login node of a newer cluster"
        yield Finding(level="error", where=place.where, what=what, why=why, who="you", how=how)


def _apptainer(place: ExaminedHost) -> Iterator[Finding]:
    apptainer = place.facts["site"].get("apptainer")
    if not apptainer:
        how = "set HPK_PRELUDE='module load NAME' in hpk.sbatch, or HPK_APPTAINER to its path"
        what, why = "there is no Apptainer on PATH", "pods and the control plane run in it"
        yield Finding(level="error", where=place.where, what=what, why=why, who="you", how=how)
    elif _version(apptainer["version"]) < LEAST_APPTAINER:
        what, why = f"Apptainer {apptainer['version']}", "HPK needs 1.2 or newer"
        how = "install a newer Apptainer"
        yield Finding(level="error", where=place.where, what=what, why=why, who="your site", how=how)


def _kubectl(place: ExaminedHost) -> Iterator[Finding]:
    if not place.facts["site"].get("kubectl", True):
        what, why = "there is no kubectl on PATH", "users control the cluster with it"
        yield Finding(level="note", where=place.where, what=what, why=why, who="you", how="use hpk kubectl")


def _registries(place: ExaminedHost) -> Iterator[Finding]:
    for name, problem in (place.facts.get("unreachable") or {}).items():
        if name in place.reached:
            what, why = f"no connection to the registry {name}: {problem}", "the control plane's node pulls images"
            how = "run hpk pull IMAGE on the login host before a pod needs it, or use 'image: /PATH/OF/FILE.sif'"
            yield Finding(level="note", where=place.where, what=what, why=why, who="you", how=how)


def _architecture(place: ExaminedHost) -> Iterator[Finding]:
    here = place.facts["site"].get("architecture", "")
    if place.architecture and here != place.architecture:
        what, why = f"its hosts are {here}", f"hpk.sif and the images are for {place.architecture}"
        how = "choose another partition for pods, in HPK_FLAGS"
        yield Finding(level="error", where=place.where, what=what, why=why, who="you", how=how)


def _sandbox(place: ExaminedHost) -> Iterator[Finding]:
    box = place.facts.get("sandbox") or {}
    if "error" in box and place.facts["site"].get("apptainer"):
        what, how = f"a pod's sandbox does not start: {box['error']}", "fix the other findings first, then this error"
        yield Finding(level="error", where=place.where, what=what, why=_NO_PODS, who="your site", how=how)


def _namespaces(place: ExaminedHost) -> Iterator[Finding]:
    limits = place.facts.get("limits") or {}
    most = limits.get("max_user_namespaces")
    if most is not None and most < FEW_NAMESPACES:
        what = f"{most} user namespaces are allowed"
        how = "sysctl user.max_user_namespaces=100000"
        level: Level = "warning" if most else "error"
        why = "every pod needs one" if most else _NO_PODS
        yield Finding(level=level, where=place.where, what=what, why=why, who="your site", how=how)
    for name, bad in (("unprivileged_userns_clone", 0), ("apparmor_restrict_unprivileged_userns", 1)):
        is_setuid = (place.facts["site"].get("apptainer") or {}).get("setuid")
        if limits.get(name) == bad and not is_setuid:
            what, why = f"kernel.{name} is {bad}", "Apptainer without its setuid starter cannot make a sandbox"
            how = f"sysctl kernel.{name}={1 - bad}, or install apptainer-suid"
            yield Finding(level="error", where=place.where, what=what, why=why, who="your site", how=how)


def _open_files(place: ExaminedHost, settings: config.Settings) -> Iterator[Finding]:
    hard = (place.facts.get("limits") or {}).get("open_files")
    if hard is not None and (what := descriptors.shortage(hard, max_pods=settings.max_pods)):
        what, _, how = what.partition(": ")
        why = "the control plane has one open file for each pod"
        yield Finding(level="warning", where=place.where, what=what, why=why, who="you", how=how)


def _devices(place: ExaminedHost) -> Iterator[Finding]:
    site = place.facts["site"]
    if not site.get("fuse"):
        what, why = "/dev/fuse cannot be opened", "images are mounted through it"
        yield Finding(
            level="error", where=place.where, what=what, why=why, who="your site", how="chmod 666 /dev/fuse (udev)"
        )
    if not site.get("tun"):
        what, why = "/dev/net/tun cannot be opened", "a pod network without the site's help needs it"
        how = "modprobe tun; chmod 666 /dev/net/tun"
        yield Finding(level="note", where=place.where, what=what, why=why, who="your site", how=how)


def _ids(place: ExaminedHost) -> Iterator[Finding]:
    site = place.facts["site"]
    for name in ("subuid", "subgid"):
        ids = site.get(name)
        if not ids or ids[1] < ENOUGH_IDS:
            what = f"{site.get('user')} has {ids[1] if ids else 'no'} subordinate ids in /etc/{name}"
            why = "images and containers with files of several users need 65536"
            how = f"usermod --add-{name}s FIRST-LAST {site.get('user')}"
            yield Finding(level="warning", where=place.where, what=what, why=why, who="your site", how=how)


def _network(place: ExaminedHost, settings: config.Settings) -> Iterator[Finding]:
    missing = sandbox.missing_for_flannel(place.facts["site"])
    if not missing or settings.network == "host":
        return
    if settings.network == "flannel":
        what, why = f"no pod network: {'; '.join(missing)}", "HPK_NETWORK=flannel requires it"
        yield Finding(level="error", where=place.where, what=what, why=why, who="you", how="HPK_NETWORK=host")
        return
    is_shared = bool(sandbox.missing_for_overlay(place.facts["site"]))
    why = "pods share their node's network" if is_shared else "pods can connect out, but cannot be reached"
    what = f"no pod network: {'; '.join(missing)}"
    how = "see docs/site-network.md"
    yield Finding(level="note", where=place.where, what=what, why=why, who="your site", how=how)


def _scratch(place: ExaminedHost) -> Iterator[Finding]:
    disk = place.facts.get("scratch") or {}
    how = "set HPK_SCRATCH to a directory on the nodes' own disks"
    if "error" in disk:
        what = f"cannot write to {disk['path']}: {disk['error']}"
        yield Finding(level="error", where=place.where, what=what, why=_NO_PODS, who="you", how=how)
    elif disk.get("free_bytes", SMALL_SCRATCH_BYTES) < SMALL_SCRATCH_BYTES:
        what = f"{disk['free_bytes'] / 1e9:.1f} GB are free in {disk['path']}"
        why = "containers' files and emptyDirs go there"
        yield Finding(level="warning", where=place.where, what=what, why=why, who="you", how=how)


def _clock(place: ExaminedHost) -> Iterator[Finding]:
    skew = place.skew_seconds
    if abs(skew) <= MOST_SKEW_SECONDS:
        return
    what = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the login host's"
    is_too_early = skew < -pki.BACKDATED.total_seconds()
    why = "certificates are not valid there yet" if is_too_early else "times in pods' logs and files are wrong"
    level: Level = "error" if is_too_early else "warning"
    yield Finding(level=level, where=place.where, what=what, why=why, who="your site", how="run chronyd")


def _shared(place: ExaminedHost) -> Iterator[Finding]:
    home = place.facts.get("shared") or {}
    how = "set HPK_STATE to a directory on another file system that all nodes share"
    if "error" in home:
        what, why = f"cannot write to the state directory: {home['error']}", "every node must be able to"
        yield Finding(level="error", where=place.where, what=what, why=why, who="you", how=how)
        return
    seconds = home.get("fsync_p99_seconds", 0.0)
    what = f"fsync of the state directory takes {seconds * 1000:.0f} ms (p99)"
    if home.get("reach", "all") != "all":
        is_known = home["reach"] == "host"
        what = "file locks in the state directory " + ("hold" if is_known else "may hold") + " on this host only"
    if home.get("flock") is False:
        what = "files of the state directory cannot be locked (flock)"
    if home.get("flock") is False or home.get("reach", "all") != "all" or seconds > placement.SLOW_SYNC_SECONDS:
        why = "etcd runs on its node's disk and is copied there; if that node fails, the last half second is lost"
        yield Finding(level="note", where=place.where, what=what, why=why, who="you", how=how)


def _routes(place: ExaminedHost, settings: config.Settings) -> Iterator[Finding]:
    for name, cidr in (("service_cidr", settings.service_cidr), ("pod_cidr", settings.pod_cidr)):
        wanted = ipaddress.IPv4Network(cidr)
        for interface, route in place.facts.get("routes") or ():
            is_ours = name == "pod_cidr" and interface.startswith(PODS_INTERFACES)
            if wanted.overlaps(ipaddress.IPv4Network(route)) and not is_ours:
                what, why = f"the route {route} by {interface} overlaps {name} {cidr}", "one hides the other"
                how = f"set HPK_{name.upper()} to a network that is free here"
                yield Finding(level="warning", where=place.where, what=what, why=why, who="you", how=how)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
