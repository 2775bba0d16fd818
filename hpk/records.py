"""The shapes of the JSON files in a pod's directory: what the kubelet tells the agent, and what the agent tells back.

Both ends read these files across versions: a reader ignores keys that it does not know, and a change that
an old agent would misread raises :data:`hpk.jobdir.VERSION`.  Times are Unix seconds (float), durations are
seconds, modes are integers, sizes are bytes.

In every string of ``argv``, ``env`` and ``hosts`` the agent replaces
:data:`hpk.jobdir.POD_IP` and :data:`hpk.jobdir.HOST_IP`, which only the job knows, and in ``hosts``
:data:`hpk.jobdir.NODE_HOSTS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping


class Link(TypedDict):
    """How the agent reaches the kubelet: PEM texts of a certificate that is good for this pod only.

    ``bell`` is the key of the pod's datagrams, in hexadecimal (`hpk.link.doorbell`).
    """

    ca: str
    certificate: str
    key: str
    bell: NotRequired[str]


class Token(TypedDict):
    """What a token was requested with, and when it should be replaced (the kubelet's clock)."""

    audience: str
    expiration_seconds: int
    renew_at: float


class File(TypedDict):
    """One file of a configMap, secret, downwardAPI or projected volume; ``data`` is base64, ``uid`` its owner.

    ``token`` is there if it holds a service account's token.
    """

    uid: NotRequired[int]
    path: str
    mode: int
    data: str
    token: NotRequired[Token]


class Volume(TypedDict):
    """A pod's volume, made by the agent on the compute node before the first container starts.

    ``empty_dir``: a directory 0777 on scratch, or a tmpfs when ``medium`` is ``Memory``.
    ``files``: the kubelet's atomic layout (``..<timestamp>/``, ``..data``, ``key -> ..data/key``).
    ``host_path``: ``host_path`` of the compute node, checked against ``host_path_type``.
    """

    name: str
    kind: Literal["empty_dir", "files", "host_path"]
    medium: NotRequired[str]
    size_limit: NotRequired[int | None]
    files: NotRequired[list[File]]
    host_path: NotRequired[str]
    host_path_type: NotRequired[str]


class DiskLimit(TypedDict):
    """How much of the node's disk something may take, and what is said when it takes more.

    ``kind``: an emptyDir (``volume``), one container's files and logs (``container``), or all of these (``pod``).
    """

    kind: Literal["volume", "container", "pod"]
    name: str
    bytes: int
    message: str


class LogLimits(TypedDict):
    """How much the log of one run of a container may take: so many files, each so large."""

    file_bytes: int
    files: int


class Mount(TypedDict):
    """A volume, or a part of it, at a path of a container."""

    volume: str
    path: str
    sub_path: str
    read_only: bool


class User(TypedDict):
    """Who a container's process is.

    ``uid``/``gid`` from the security context when given; else ``name`` is the image's USER (``nobody``,
    ``1000:1000``, empty for root), looked up in the image's own passwd and group files.
    """

    uid: int | None
    gid: int | None
    name: str
    groups: list[int]


class ContainerPlan(TypedDict):
    """One container, resolved: nothing in here needs the API server or the registry any more.

    ``seccomp_profile``: ``RuntimeDefault``, or ``Unconfined`` or nothing for no filter.
    ``ephemeral`` ones are not in ``spec.json``: each comes over the link, in a Start message, as do those of others
    whose image has changed.  ``target`` is the
    container whose processes such a one shares.
    """

    name: str
    kind: Literal["init", "sidecar", "app", "ephemeral"]
    image: str
    image_id: str
    image_file: str
    image_offset: int
    argv: list[str]
    env: list[list[str]]
    cwd: str
    user: User
    mounts: list[Mount]
    read_only_root: bool
    no_new_privileges: bool
    add_capabilities: list[str]
    drop_capabilities: list[str]
    restart_policy: str
    termination_message_path: str
    termination_message_policy: str
    stop_signal: str
    gpu: bool
    tty: bool
    stdin: bool
    stdin_once: NotRequired[bool]
    liveness_probe: NotRequired[dict[str, Any] | None]
    readiness_probe: NotRequired[dict[str, Any] | None]
    startup_probe: NotRequired[dict[str, Any] | None]
    lifecycle: NotRequired[dict[str, Any] | None]
    ports: NotRequired[dict[str, int]]
    memory_limit: NotRequired[int | None]
    seccomp_profile: NotRequired[str]
    target: NotRequired[str]


class Address(TypedDict):
    """The pod's own address, where HPK gives it (network ``overlay``); ``gateway`` is in the same network."""

    ip: str
    prefix_length: int
    gateway: str


class Dns(TypedDict):
    """What a pod's ``dnsConfig`` adds; ``options`` are pairs of name and value, the latter None where there is none."""

    nameservers: list[str]
    searches: list[str]
    options: list[tuple[str, str | None]]


class Warning(TypedDict):  # noqa: A001 - the field's word
    """What the agent does when Slurm says that the job nears its time limit; seconds from then on.

    ``end_after``: When it ends the pod, so that its grace is over before the limit is; None leaves that to Slurm.
    ``signal``, ``signal_after``: What the containers' first processes are sent, and when, where the pod's sbatch
    flags ask for it (``--signal``).  The job's script hands on that signal from others as well.
    ``not_before``: How long after its own start the agent ends the pod for this at the earliest, where the limit is
    so short that Slurm may warn too early.
    """

    end_after: float | None
    signal: int | None
    signal_after: float
    not_before: NotRequired[float]


class PodPlan(TypedDict):
    """``spec.json``: all that the agent must know to run the pod.

    ``address`` is there in network ``overlay``.  ``has_one_id``: the site gives no subordinate ids, so that every
    user of the pod is the one who submitted its job.  ``share_processes``: all containers see each other's.
    ``resolv_conf`` is what ``dns`` is added to; None for the node's own.
    ``renewals``: how often the tokens in it have been replaced since the job was submitted.
    """

    version: int
    uid: str
    namespace: str
    name: str
    hostname: str
    restart_policy: Literal["Always", "OnFailure", "Never"]
    grace_seconds: int
    deadline_at: float | None
    network: Literal["flannel", "overlay", "host"]
    address: NotRequired[Address]
    has_one_id: NotRequired[bool]
    share_processes: NotRequired[bool]
    renewals: NotRequired[int]
    hosts: str
    resolv_conf: str | None
    dns: NotRequired[Dns]
    link: Link
    volumes: list[Volume]
    containers: list[ContainerPlan]
    fs_group: NotRequired[int | None]
    warning: NotRequired[Warning]
    disk_limits: NotRequired[list[DiskLimit]]
    log_limits: NotRequired[LogLimits]


class Terminated(TypedDict):
    """How one run of a container ended; ``exit_code`` is 128 + signal for a signalled process."""

    exit_code: int
    signal: int
    reason: str
    message: str
    started_at: float
    finished_at: float
    container_id: str


class ContainerRecord(TypedDict):
    """What one container does now, in the words of ``v1.ContainerStatus``.

    ``image_id`` is there for ephemeral containers, which no file tells of, and with ``image`` for those whose image
    was changed while the pod ran: ``image`` is what the container runs, or will when it starts again.
    """

    state: Literal["waiting", "running", "terminated"]
    reason: str
    message: str
    started_at: float | None
    terminated: Terminated | None
    last_terminated: Terminated | None
    restart_count: int
    started: bool
    ready: bool
    container_id: str
    image: NotRequired[str]
    image_id: NotRequired[str]


class EventRecord(TypedDict):
    """Something that a user wants to read in ``kubectl events``; ``number`` rises from 1 within the pod.

    One that repeats may be told as one, with a new ``number``: ``count`` is how often it has happened, 1 if absent.
    """

    number: int
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    container: str
    at: float
    count: NotRequired[int]


class Ended(TypedDict):
    """Why the agent ended the pod, where it was not the containers' own doing.

    ``reason``: ``Deleted`` (asked through the link), ``DeadlineExceeded`` (activeDeadlineSeconds),
    ``TimeLimit`` (Slurm's early warning), ``Signalled`` (SIGTERM from Slurm: scancel, time limit, shutdown),
    ``Evicted`` (it took more of the disk than its limits allow),
    ``SetupFailed`` (a volume or the network could not be made).
    """

    reason: str
    message: str


class Report(TypedDict):
    """``report.json``, and the body of the link's Report message: the whole truth about the pod, each time.

    ``sequence`` rises with each change.  ``finished_at`` is set once, when nothing of the pod runs any more.
    All times are of the compute node's clock; ``clock_ahead_seconds`` is how far that is known to be ahead of the
    kubelet's, 0 while it is not known or no more than a moment.
    """

    version: int
    uid: str
    sequence: int
    job_id: str
    node: str
    host_ip: str
    pod_ip: str
    started_at: float
    finished_at: float | None
    clock_ahead_seconds: NotRequired[float]
    ended: Ended | None
    containers: dict[str, ContainerRecord]
    events: list[EventRecord]


END_LINE = "end "
"""Begins the line of the job's output that carries the last report, where nothing else could."""
UNRECORDED: Mapping[str, int] = {
    "Succeeded": 200,
    "Failed": 201,
    "Deleted": 202,
    "DeadlineExceeded": 203,
    "TimeLimit": 204,
    "Signalled": 205,
    "Evicted": 206,
    "SetupFailed": 207,
}
"""The job's exit code where neither the kubelet nor the disk has taken the last report: the reason of `Ended`, or how
the containers ended.  0 says that the end is recorded."""


class Submission(TypedDict):
    """``job.json``: which Slurm job carries the pod, written by the kubelet right after sbatch.

    ``submitted_at`` is when it began to submit it, 0 if a kubelet did that could not say so any more.
    """

    job_id: str
    submitted_at: float


class Wish(TypedDict):
    """``end.json``: the kubelet's wish to end the pod, for an agent that the link does not reach.

    The same as the link's Terminate message; a later one may only shorten the grace.
    """

    grace_seconds: float
    reason: str
    message: str
