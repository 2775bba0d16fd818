"""The shapes of the JSON files in a pod's directory: the kubelet's messages to the agent, and the agent's reports.

Both ends read these files across versions: a reader ignores unknown keys, and a change that an old agent would misread
increments :data:`hpk.jobdir.VERSION`. Times are Unix seconds (float), durations are seconds, modes are integers, sizes
are bytes.

In every string of ``argv``, ``env`` and ``hosts`` the agent replaces :data:`hpk.jobdir.POD_IP` and
:data:`hpk.jobdir.HOST_IP`, which only the job knows, and in ``hosts`` :data:`hpk.jobdir.NODE_HOSTS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping


class LinkCredentials(TypedDict):
    """The agent's credentials for the kubelet: PEM texts of a certificate that is valid for this pod only.

    ``bell`` is the key of the pod's datagrams, in hexadecimal (`hpk.link.doorbell`).
    """

    ca: str
    certificate: str
    key: str
    bell: NotRequired[str]


class TokenRequest(TypedDict):
    """A token's request, and the time of its renewal (by the kubelet's clock)."""

    audience: str
    expiration_seconds: int
    renew_at: float


class File(TypedDict):
    """One file of a configMap, secret, downwardAPI or projected volume; ``data`` is base64, ``uid`` its owner.

    ``token`` is set if it holds a service account's token.
    """

    uid: NotRequired[int]
    path: str
    mode: int
    data: str
    token: NotRequired[TokenRequest]


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
    """A limit on the use of the node's disk, and the message if it is exceeded.

    ``kind``: an emptyDir (``volume``), one container's files and logs (``container``), or all of these (``pod``).
    """

    kind: Literal["volume", "container", "pod"]
    name: str
    bytes: int
    message: str


class LogLimits(TypedDict):
    """Limits on the log of one run of a container: size and number of its files."""

    file_bytes: int
    files: int


class Mount(TypedDict):
    """A volume, or a part of it, mounted at a path of a container."""

    volume: str
    path: str
    sub_path: str
    read_only: bool


class ProcessUser(TypedDict):
    """The user of a container's process.

    ``uid``/``gid`` from the security context if set; else ``name`` is the image's USER (``nobody``, ``1000:1000``,
    empty for root), looked up in the image's own passwd and group files.
    """

    uid: int | None
    gid: int | None
    name: str
    groups: list[int]


class ContainerPlan(TypedDict):
    """One container, resolved: it needs neither the API server nor the registry any more.

    ``seccomp_profile``: ``RuntimeDefault``, or ``Unconfined`` or nothing for no filter.
    ``ephemeral`` containers are not in ``spec.json``: each arrives in a Start message of the link, as do other
    containers with a changed image. ``target`` is the container whose processes an ephemeral one shares.
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
    user: ProcessUser
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
    """The pod's own address in network ``overlay``; ``gateway`` is in the same network."""

    ip: str
    prefix_length: int
    gateway: str


class Dns(TypedDict):
    """A pod's ``dnsConfig``; ``options`` are pairs of a name and a value or None."""

    nameservers: list[str]
    searches: list[str]
    options: list[tuple[str, str | None]]


class Warning(TypedDict):  # noqa: A001 - the field's word
    """The agent's actions after Slurm's warning of the time limit; in seconds from the warning.

    ``end_after``: When it ends the pod, so that the grace is over before the limit; None leaves that to Slurm.
    ``signal``, ``signal_after``: The signal for the containers' first processes, and when, if the pod's sbatch flags
    request it (``--signal``). The job's script forwards that signal from other senders as well.
    ``not_before``: Least time between the job's start and this end of the pod, if the limit is so short that Slurm may
    warn too early.
    """

    end_after: float | None
    signal: int | None
    signal_after: float
    not_before: NotRequired[float]


class PodPlan(TypedDict):
    """``spec.json``: all that the agent needs to run the pod.

    ``address`` is set in network ``overlay``. ``has_one_id``: the site gives no subordinate ids, so that every user of
    the pod is the one who submitted its job. ``share_processes``: all containers see each other's processes.
    ``resolv_conf`` is the base of ``dns``; None for the node's own. ``renewals``: how often tokens were replaced since
    the job's submission.
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
    link: LinkCredentials
    volumes: list[Volume]
    containers: list[ContainerPlan]
    fs_group: NotRequired[int | None]
    warning: NotRequired[Warning]
    disk_limits: NotRequired[list[DiskLimit]]
    log_limits: NotRequired[LogLimits]


class Terminated(TypedDict):
    """The end of one run of a container; ``exit_code`` is 128 + signal for a signalled process."""

    exit_code: int
    signal: int
    reason: str
    message: str
    started_at: float
    finished_at: float
    container_id: str


class ContainerRecord(TypedDict):
    """The state of one container, in the words of ``v1.ContainerStatus``.

    ``image_id`` is set for ephemeral containers, which no file describes, and with ``image`` for containers whose image
    was changed while the pod ran: ``image`` is the image that the container runs, or will run after a restart.
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
    """An event for ``kubectl events``; ``number`` rises from 1 within the pod.

    A repeated event may be reported as one, with a new ``number``: ``count`` is how often it has happened, 1 if absent.
    """

    number: int
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    container: str
    at: float
    count: NotRequired[int]


class EndCause(TypedDict):
    """Why the agent ended the pod, if not because of its containers.

    ``reason``: ``Deleted`` (requested through the link), ``DeadlineExceeded`` (activeDeadlineSeconds), ``TimeLimit``
    (Slurm's early warning), ``Signalled`` (SIGTERM from Slurm: scancel, time limit, shutdown), ``Evicted`` (it used
    more of the disk than its limits), ``SetupFailed`` (a volume or the network could not be made).
    """

    reason: str
    message: str


class Report(TypedDict):
    """``report.json``, and the body of the link's Report message: the complete state of the pod, each time.

    ``sequence`` rises with each change. ``finished_at`` is set once, when nothing of the pod runs any more.
    All times are the compute node's; ``clock_ahead_seconds`` is how far its clock is known to be ahead of the
    kubelet's, 0 while it is unknown or negligible.
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
    ended: EndCause | None
    containers: dict[str, ContainerRecord]
    events: list[EventRecord]


END_LINE = "end "
"""Prefix of the line in the job's output with the last report, if nothing else could carry it."""
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
"""The job's exit code if neither the kubelet nor the disk has taken the last report.

It names the reason of `EndCause`, or how the containers ended. 0 means that the end is recorded.
"""


class Submission(TypedDict):
    """``job.json``: the pod's Slurm job, written by the kubelet right after sbatch.

    ``submitted_at`` is when the submission began, 0 if the kubelet that began it died before it recorded this.
    """

    job_id: str
    submitted_at: float


class EndRequest(TypedDict):
    """``end.json``: the kubelet's request to end the pod, for an agent that the link does not reach.

    The same as the link's Terminate message; a later one may only shorten the grace.
    """

    grace_seconds: float
    reason: str
    message: str
