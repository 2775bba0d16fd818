"""The command that starts a pod's sandbox: one Apptainer container of hpk.sif with the agent in it; pure.

Nothing secret is in these words: Slurm keeps every job's script.  Words that hold ``$HPK_SCRATCH``, and those of
:data:`FACTS`, are expanded by the job's shell; all others are taken as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import config, records

LIBRARY = "/opt/hpk/lib"
"""Where hpk.sif has the program and its dependencies."""
PYTHON = "/usr/bin/python3.13"
# Without site and environment, from frozen and precompiled modules: 13 ms instead of 55.
AGENT = (PYTHON, "-I", "-S", f"{LIBRARY}/hpk/agent/__main__.py")
FACTS = (
    "job_id=$SLURM_JOB_ID",
    "restart_count=$SLURM_RESTART_COUNT",
    "node=$SLURMD_NODENAME",
    "gpus=$CUDA_VISIBLE_DEVICES",
    "host_ip=$HPK_HOST_IP",
)
"""What only the job knows, for :class:`hpk.agent.boot.sandbox.JobFacts`."""
WARM = '"${warm[@]}"'
"""Stands in the argv where the job's shell puts the options of :class:`Warmth`, or nothing."""
DEVICES = ("/dev/fuse", "/dev/full")
"""Not among the devices of ``--containall``: FUSE carries the images, and containers expect /dev/full."""
TUN = "/dev/net/tun"
"""Through which pasta reaches a pod's network."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a sandbox's command is made of.

    Attributes:
        apptainer: The site's command.
        image: hpk.sif.
        network: ``flannel``, ``overlay`` or ``host``.
        pod: The pod's directory.
        images: The directory of converted images.
        endpoint: The directory of endpoint.json.
        scratch: The directory on the node; ``$HPK_SCRATCH`` in it is for the job's shell.
        has_host: Whether the node's own files are needed: hostPath volumes, images outside ``images``.
        has_gpu: Whether NVIDIA's libraries and devices are.
        has_one_id: Whether the user has no subordinate ids; the agent then makes itself root of the pod.
        has_warmth: Whether there may be files outside hpk.sif that a start reads more quickly.
        kill_wait_seconds: How long Slurm waits between SIGTERM and SIGKILL.
    """

    apptainer: str = "apptainer"
    image: str
    network: str
    pod: str
    images: str
    endpoint: str
    scratch: str = "$HPK_SCRATCH"
    has_host: bool = False
    has_gpu: bool = False
    has_one_id: bool = False
    has_warmth: bool = False
    kill_wait_seconds: int = 30


@dataclass(frozen=True, kw_only=True)
class Warmth:
    """What the job script adds to the sandbox's argv, if the copies are of this hpk.sif (`hpk.network.warm`).

    Attributes:
        stamp: The file whose time of change is hpk.sif's as long as they belong together.
        image: hpk.sif.
        options: Words of the argv.
    """

    stamp: str
    image: str
    options: list[str]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What the job script runs.

    Attributes:
        start: The argv that becomes the sandbox.
        scratch: A shell expression: the scratch directory, quoted where it must be.
        clean: The argv that removes what an agent left that was killed: files of subordinate ids.
        warmth: What :data:`WARM` in ``start`` stands for; None if it is not in it.
    """

    start: list[str]
    scratch: str
    clean: list[str]
    warmth: Warmth | None = None


def start(box: Sandbox) -> list[str]:
    """The argv that starts the agent in its sandbox; it ends when the agent has."""
    argv = [box.apptainer, "--silent", "exec", *_ids(box), "--containall", "--no-home", "--no-eval"]
    if not box.has_one_id:
        argv.append("--uts")  # else the host name is the agent's own to separate
    # The agent reaps for itself: Apptainer's own init would be 20 MB of each pod's job for nothing.
    argv.append("--no-init")
    if box.network == "flannel":
        # The only network that an unprivileged user may have, and only by this name.
        argv += ["--net", "--network", "fakeroot"]
    if box.has_gpu:
        argv.append("--nv")
    for source, target, options in _binds(box):
        argv += bind(source, target, options)
    return [*argv, *([WARM] if box.has_warmth else []), box.image, *AGENT, *FACTS, f"kill_wait={box.kill_wait_seconds}"]


def clean(box: Sandbox) -> list[str]:
    """The argv that removes the contents of the scratch directory with all the ids that made them."""
    scratch = bind(box.scratch, jobdir.SANDBOX_SCRATCH, "")
    argv = [box.apptainer, "--silent", "exec", *_ids(box), "--containall", "--no-home", *scratch, box.image]
    if box.has_one_id:
        argv += ["/usr/bin/unshare", "--user", "--map-root-user"]  # root may remove what lies in closed directories
    return [*argv, "/usr/bin/find", jobdir.SANDBOX_SCRATCH, "-mindepth", "1", "-delete"]


def _ids(box: Sandbox) -> list[str]:
    """With subordinate ids Apptainer maps them all; without, ``--fakeroot`` would fake ownership by a preload."""
    return ["--userns"] if box.has_one_id else ["--fakeroot"]


def _binds(box: Sandbox) -> list[tuple[str, str, str]]:
    binds = [
        (box.pod, jobdir.SANDBOX_POD, ""),
        (box.images, jobdir.SANDBOX_IMAGES, "ro"),
        (box.endpoint, jobdir.SANDBOX_ENDPOINT, "ro"),
        (box.scratch, jobdir.SANDBOX_SCRATCH, ""),
        *((device, device, "") for device in (*DEVICES, *([TUN] if box.network == "overlay" else []))),
    ]
    return [*binds, ("/", jobdir.SANDBOX_HOST, "")] if box.has_host else binds


def bind(source: str, target: str, options: str) -> list[str]:
    """Return ``--mount`` and its value: CSV, so that a path may hold commas and colons, at which ``--bind`` splits."""
    parts = ["type=bind", f"source={source}", f"destination={target}", *([options] if options else [])]
    quoted = ('"' + part.replace('"', '""') + '"' if '"' in part or "," in part else part for part in parts)
    return ["--mount", ",".join(quoted)]


class Launcher:
    """Makes the commands for this program's settings."""

    def __init__(self, settings: config.Settings, *, warmth: Warmth | None = None, kill_wait_seconds: int = 30) -> None:
        self._settings = settings
        self._warmth = warmth
        self._kill_wait_seconds = kill_wait_seconds

    def commands(self, plan: records.PodPlan, *, directory: str) -> Commands:
        """What the job of this pod runs."""
        settings = self._settings
        images = (container["image_file"] for container in plan["containers"])
        box = Sandbox(
            apptainer=settings.apptainer,
            image=str(settings.image_file),
            network=plan["network"],
            pod=directory,
            images=str(settings.images_directory),
            endpoint=settings.directory.endpoint_directory,
            has_host=any(volume["kind"] == "host_path" for volume in plan["volumes"])
            or any(file.startswith(jobdir.SANDBOX_HOST + "/") for file in images),
            has_gpu=any(container["gpu"] for container in plan["containers"]),
            has_one_id=plan.get("has_one_id", False),
            has_warmth=self._warmth is not None,
            kill_wait_seconds=self._kill_wait_seconds,
        )
        scratch = f'"{settings.scratch}/hpk-{plan["uid"]}"'
        return Commands(start=start(box), scratch=scratch, clean=clean(box), warmth=self._warmth)


def choose(wanted: str, site: Mapping[str, Any]) -> str:
    """The network mode: what the settings say, or with ``auto`` the best that the site has.

    Raises:
        errors.Fatal: A mode is wanted that the site does not have; says what is missing.
    """
    lacks = {"flannel": missing_for_flannel(site), "overlay": missing_for_overlay(site)}
    if wanted == "auto":
        return next((mode for mode, missing in lacks.items() if not missing), "host")
    if missing := lacks.get(wanted):
        raise errors.Fatal(f"Cannot use network '{wanted}' here: {'; '.join(missing)} (HPK_NETWORK=host works without)")
    return wanted


def has_one_id(site: Mapping[str, Any]) -> bool:
    """Whether the user has no subordinate ids here, so that all users of a pod are the one."""
    return not (site.get("subuid") and site.get("subgid"))


def missing_for_flannel(site: Mapping[str, Any]) -> list[str]:
    """What this host lacks for network mode ``flannel``, each in a user's words; empty if nothing."""
    apptainer = site.get("apptainer") or {}
    tests = {
        "Apptainer is not on PATH": bool(apptainer),
        "Apptainer is not installed setuid": bool(apptainer.get("setuid")),
        "Apptainer has no CNI network named 'fakeroot'": "fakeroot" in (apptainer.get("networks") or ()),
        "you have no subordinate ids in /etc/subuid and /etc/subgid": not has_one_id(site),
        "flanneld does not run (no /run/flannel/subnet.env)": bool(site.get("flannel")),
    }
    return [text for text, is_there in tests.items() if not is_there]


def missing_for_overlay(site: Mapping[str, Any]) -> list[str]:
    """What this host lacks for network mode ``overlay``, each in a user's words; empty if nothing."""
    tests = {
        "Apptainer is not on PATH": bool(site.get("apptainer")),
        "users may not make namespaces (user.max_user_namespaces is 0)": bool(site.get("user_namespaces")),
        "/dev/net/tun is not there for users": bool(site.get("tun")),
    }
    return [text for text, is_there in tests.items() if not is_there]
