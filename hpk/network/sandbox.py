"""The command that starts a pod's sandbox: one Apptainer container of hpk.sif with the agent in it; pure.

The words hold no secrets: Slurm keeps every job's script. The job's shell expands words with ``$HPK_SCRATCH`` and
those of :data:`FACTS`; all others are literal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import config, records

LIBRARY = "/opt/hpk/lib"  # the program and its dependencies in hpk.sif
PYTHON = "/usr/bin/python3.13"
# Without site and environment, from frozen and precompiled modules: 13 ms instead of 55.
AGENT = (PYTHON, "-I", "-S", f"{LIBRARY}/hpk/agent/__main__.py")
FACTS = (
    "job_id=$SLURM_JOB_ID",
    "restart_count=$SLURM_RESTART_COUNT",
    "node=$SLURMD_NODENAME",
    "gpus=$CUDA_VISIBLE_DEVICES",
    "host_ip=$HPK_HOST_IP",
    "script_seconds=$SECONDS",
)
"""Facts that only the job knows, for :class:`hpk.agent.boot.sandbox.JobFacts`."""
WARM = '"${warm[@]}"'
"""Placeholder in the argv for the options of :class:`Warmth`; the job's shell may leave it empty."""
DEVICES = ("/dev/fuse", "/dev/full")
"""Devices that ``--containall`` does not give: FUSE carries the images, and containers expect /dev/full."""
TUN = "/dev/net/tun"  # for pasta, which connects a pod's network


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The parameters of a sandbox's command.

    Attributes:
        image: hpk.sif.
        network: ``flannel``, ``overlay`` or ``host``.
        pod: The pod's directory.
        endpoint: The directory of endpoint.json.
        scratch: The directory on the node; the job's shell expands ``$HPK_SCRATCH`` in it.
        has_host: Whether the node's own files are needed: hostPath volumes, images outside ``images``.
        has_gpu: Whether NVIDIA's libraries and devices are needed.
        has_one_id: Whether the user has no subordinate ids; the agent then makes itself root of the pod.
        has_warmth: Whether there may be faster copies of hpk.sif's files.
        kill_wait_seconds: Slurm's pause between SIGTERM and SIGKILL.
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
    """Options that the job script adds to the sandbox's argv if ``stamp`` has hpk.sif's mtime (`hpk.network.warm`)."""

    stamp: str
    image: str
    options: list[str]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The commands of the job script.

    Attributes:
        start: The argv that becomes the sandbox.
        scratch: The scratch directory as a shell expression, quoted as needed.
        clean: The argv that removes files of subordinate ids that a killed agent left.
        warmth: The value of :data:`WARM` in ``start``; None if it is absent.
    """

    start: list[str]
    scratch: str
    clean: list[str]
    warmth: Warmth | None = None


def start(box: Sandbox) -> list[str]:
    """Return the argv that starts the agent in its sandbox; it ends when the agent ends."""
    argv = [box.apptainer, "--silent", "exec", *_ids(box), "--containall", "--no-home", "--no-eval"]
    if not box.has_one_id:
        argv.append("--uts")  # else the agent separates the host name
    # The agent reaps its children: Apptainer's own init would waste 20 MB of each pod's job.
    argv.append("--no-init")
    if box.network == "flannel":
        # The only network that Apptainer allows an unprivileged user, and only by this name.
        argv += ["--net", "--network", "fakeroot"]
    if box.has_gpu:
        argv.append("--nv")
    for source, target, options in _binds(box):
        argv += bind(source, target, options)
    return [*argv, *([WARM] if box.has_warmth else []), box.image, *AGENT, *FACTS, f"kill_wait={box.kill_wait_seconds}"]


def clean(box: Sandbox) -> list[str]:
    """Return the argv that removes the contents of the scratch directory, with all the ids that created them."""
    scratch = bind(box.scratch, jobdir.SANDBOX_SCRATCH, "")
    argv = [box.apptainer, "--silent", "exec", *_ids(box), "--containall", "--no-home", *scratch, box.image]
    if box.has_one_id:
        argv += ["/usr/bin/unshare", "--user", "--map-root-user"]  # root may remove the contents of closed directories
    return [*argv, "/usr/bin/find", jobdir.SANDBOX_SCRATCH, "-mindepth", "1", "-delete"]


def _ids(box: Sandbox) -> list[str]:
    """Return the option for ids: without subordinate ids ``--fakeroot`` would only fake ownership by a preload."""
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


class SandboxCommands:
    """Makes the commands for this program's settings."""

    def __init__(self, settings: config.Settings, *, warmth: Warmth | None = None, kill_wait_seconds: int = 30) -> None:
        self._settings = settings
        self._warmth = warmth
        self._kill_wait_seconds = kill_wait_seconds

    def commands(self, plan: records.PodPlan, *, directory: str) -> Commands:
        """Return the commands of this pod's job."""
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
    """Return the network mode of the settings; for ``auto`` the best that the site supports.

    Raises:
        errors.Fatal: The site does not support the mode; says what is missing.
    """
    lacks = {"flannel": missing_for_flannel(site), "overlay": missing_for_overlay(site)}
    if wanted == "auto":
        return next((mode for mode, missing in lacks.items() if not missing), "host")
    if missing := lacks.get(wanted):
        raise errors.Fatal(f"Cannot use network '{wanted}' here: {'; '.join(missing)} (HPK_NETWORK=host needs nothing)")
    return wanted


def has_one_id(site: Mapping[str, Any]) -> bool:
    """Return whether the user has no subordinate ids here, so that all users of a pod are the same."""
    return not (site.get("subuid") and site.get("subgid"))


def missing_for_flannel(site: Mapping[str, Any]) -> list[str]:
    """Return what this host lacks for network mode ``flannel``, in a user's words."""
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
    """Return what this host lacks for network mode ``overlay``, in a user's words."""
    tests = {
        "Apptainer is not on PATH": bool(site.get("apptainer")),
        "users cannot create namespaces (user.max_user_namespaces is 0)": bool(site.get("user_namespaces")),
        "users cannot open /dev/net/tun": bool(site.get("tun")),
    }
    return [text for text, is_there in tests.items() if not is_there]
