"""Parsers of Slurm's text; pure.

The ASCII unit separator separates fields, and the record separator records. Free text (names, comments) comes last.
Because it could hold separators, each query puts an unpredictable mark behind them, so that no job can forge another
one's record. ``--json`` is not used: many builds lack it, and its format changes with every release.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets

from hpk.slurm import model

UNIT = "\x1f"
RECORD = "\x1e"

SQUEUE_FIELDS = ("%i", "%T", "%r", "%N", "%P", "%S", "%e", "%Z", "%o", "%j", "%k")
SINFO_FIELDS = ("%N", "%R", "%P", "%l", "%L", "%T", "%c", "%m", "%G")
SINFO_FORMAT = UNIT.join(SINFO_FIELDS) + RECORD
SACCT_FIELDS = (
    "JobIDRaw", "State", "ExitCode", "Reason", "NodeList", "Partition", "Start", "End", "WorkDir", "JobName",
)  # fmt: skip

UNUSABLE_STATES = frozenset({
    "down", "drained", "draining", "drain", "fail", "failing", "error", "inval", "future", "unknown", "perfctrs",
})  # fmt: skip
"""Base words of the states in which a node takes no new job; MAINT and RESERVED nodes come back by themselves."""

COMPACT_STATES = {
    "PD": "PENDING", "CF": "CONFIGURING", "R": "RUNNING", "S": "SUSPENDED", "ST": "STOPPED", "RS": "RESIZING",
    "SI": "SIGNALING", "SO": "STAGE_OUT", "CG": "COMPLETING", "RQ": "REQUEUED", "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD", "SE": "SPECIAL_EXIT", "RD": "RESV_DEL_HOLD", "RV": "REVOKED", "CD": "COMPLETED",
    "F": "FAILED", "CA": "CANCELLED", "TO": "TIMEOUT", "DL": "DEADLINE", "NF": "NODE_FAIL", "BF": "BOOT_FAIL",
    "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED",
}  # fmt: skip
"""Slurm's short words (squeue(1), JOB STATE CODES), which a site's wrapper or a later format may print."""

_NO_VALUE = ("", "(null)", "N/A", "n/a", "None", "Unknown", "NONE")


def mark() -> str:
    """Return an unpredictable mark for one query, which ends each record of its answer."""
    return secrets.token_hex(8)


def squeue_format(mark: str) -> str:
    """Return squeue's output format for :class:`JobReader`."""
    return UNIT.join(SQUEUE_FIELDS) + RECORD + mark


def _fields(record: str, width: int) -> list[str]:
    """Return a record's fields; the last one takes any separators left."""
    first, *rest = record.split(UNIT, width - 1)
    return [first.rpartition("\n")[2], *rest]  # whole lines before it are a site's notice


def state(word: str) -> model.JobState:
    """Return the state of a word such as ``RUNNING``, ``CANCELLED by 1000`` or ``CANCELLED+``."""
    try:
        plain = word.split(maxsplit=1)[0].rstrip("+").upper()
        return model.JobState(COMPACT_STATES.get(plain, plain))
    except (ValueError, IndexError):
        return model.JobState.UNKNOWN


def timestamp(text: str) -> float | None:
    """Return the Unix seconds of a printed time, in seconds (SLURM_TIME_FORMAT=%s) or local ISO format; else None."""
    if re.fullmatch(r"\d+", text):
        return float(text) or None
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


class JobReader:
    """A reader of squeue's answers that reuses the last one: most of ten thousand jobs do not change."""

    def __init__(self) -> None:
        self._known: dict[str, model.Job] = {}

    def read(self, text: str, *, mark: str) -> dict[str, model.Job]:
        """Return the jobs by id from output in the :func:`squeue_format` of this mark.

        An unchanged job is the same object as last time.

        Raises:
            ValueError: A record is torn or answers another query; nothing is known about jobs that are not listed.
        """
        *whole, rest = text.split(RECORD + mark)
        if UNIT in rest:
            raise ValueError(f"part of it does not answer this query: {rest[:80]!r}")
        known, self._known = self._known, {}
        found = {}
        for record in whole:
            job = known.get(record) or _job(_fields(record, len(SQUEUE_FIELDS)))
            if job is not None:
                found[job.id] = self._known[record] = job
        return found


def _job(fields: list[str]) -> model.Job | None:
    if len(fields) != len(SQUEUE_FIELDS):
        return None
    job_id, word, reason, nodes, partition, start, end, directory, command, name, comment = fields
    return model.Job(
        id=job_id,
        state=state(word),
        reason=_value(reason),
        nodes=_value(nodes),
        partition=partition,
        start_time=timestamp(start),
        end_time=timestamp(end),
        work_directory=directory,
        command=_value(command),
        name=name,
        comment=_value(comment),
    )


def accounting(text: str, *, mark: str = "") -> dict[str, model.Job]:
    """Return the jobs that ``sacct --parsable2 --delimiter=UNIT+mark`` printed, by id."""
    found = {}
    for line in text.split("\n"):  # not splitlines: a name may hold other line ends that Python knows
        fields = line.split(UNIT + mark, len(SACCT_FIELDS) - 1)
        if len(fields) != len(SACCT_FIELDS):
            continue
        job_id, word, exits, reason, nodes, partition, start, end, directory, name = fields
        code, _, number = exits.partition(":")
        found[job_id] = model.Job(
            id=job_id,
            state=state(word),
            reason=_value(reason),
            nodes="" if nodes.startswith("None") else nodes,
            partition=partition,
            start_time=timestamp(start),
            end_time=timestamp(end),
            work_directory=directory,
            name=name,
            exit_code=int(code) if code.isdigit() else None,
            signal=int(number) if number.isdigit() else None,
        )
    return found


def gres(text: str) -> dict[str, int]:
    """Return the counts by name, all types together, of a gres such as ``gpu:a100:4(S:0-1),shard:8``."""
    found: dict[str, int] = {}
    if text in _NO_VALUE:
        return found
    # Commas also separate the sockets in parentheses.
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = [part for part in item.strip().split(":") if part]
        if not parts:
            continue
        count = _count(parts.pop()) if len(parts) > 1 and re.fullmatch(r"\d+[KMGTkmgt]?", parts[-1]) else 1
        found[parts[0]] = found.get(parts[0], 0) + count
    return found


def _count(text: str) -> int:
    scale = {"k": 10, "m": 20, "g": 30, "t": 40}.get(text[-1].lower())
    return int(text) if scale is None else int(text[:-1]) << scale


def is_usable(word: str) -> bool:
    """Return whether a node in this state (``%T``: ``mixed``, ``idle~``, ``down*``) takes jobs, now or later.

    A powered-down node (``~``) starts on demand; one that does not respond (``*``) does not.
    """
    return "*" not in word and re.sub(r"[^a-z_+]", "", word.lower()).split("+", maxsplit=1)[0] not in UNUSABLE_STATES


def capacity(text: str) -> model.ClusterCapacity:
    """Return the cluster from ``sinfo --Node`` in :data:`SINFO_FORMAT`, counting each node once."""
    nodes: dict[str, model.Node] = {}
    partitions: dict[str, model.Partition] = {}
    for record in text.split(RECORD):
        fields = _fields(record, len(SINFO_FIELDS))
        if len(fields) != len(SINFO_FIELDS):
            continue
        name, partition, starred, longest, default, word, cpus, memory, resources = fields
        partitions[partition] = model.Partition(
            name=partition,
            is_default=starred.endswith("*"),
            max_seconds=_limit(longest),
            default_seconds=_limit(default),
        )
        nodes[name] = model.Node(
            name=name,
            cpus=_integer(cpus),
            memory_bytes=_integer(memory) << 20,
            is_usable=is_usable(word),
            gres=gres(resources),
            partitions=frozenset({partition}) | (nodes[name].partitions if name in nodes else frozenset()),
        )
    usable = [node for node in nodes.values() if node.is_usable]
    totals: dict[str, int] = {}
    for node in usable:
        for name, count in node.gres.items():
            totals[name] = totals.get(name, 0) + count
    return model.ClusterCapacity(
        cpus=sum(node.cpus for node in usable),
        memory_bytes=sum(node.memory_bytes for node in usable),
        gres=totals,
        nodes=nodes,
        partitions=partitions,
    )


def _limit(text: str) -> int | None:
    try:
        return duration(text)
    except ValueError:
        return None


def duration(text: str) -> int | None:
    """Return the seconds of a ``--time`` value, or None for no limit.

    Slurm's formats: ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``,
    ``days-hours:minutes``, ``days-hours:minutes:seconds``, ``UNLIMITED``, ``INFINITE``, ``-1``.

    Raises:
        ValueError: The text has none of these formats.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise ValueError(f"'{text}' is not a time limit (minutes, hours:minutes:seconds, days-hours, …)")
    days, first, second, third = found.groups()
    if days is not None:
        return int(days) * 86400 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
    if third is not None:
        return int(first) * 3600 + int(second) * 60 + int(third)
    return int(first) * 60 + int(second or 0)


def time_text(seconds: int) -> str:
    """Return the ``--time`` value ``days-hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def kill_wait_seconds(text: str) -> int:
    """Return KillWait from ``scontrol show config``, or Slurm's default if it is absent."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 30


def field(text: str, *, name: str) -> str | None:
    """Return the value of a line ``name=value`` of ``scontrol show``, or None."""
    found = re.search(rf"^ *{re.escape(name)}=(.*)$", text, re.MULTILINE)
    return found[1] if found else None


def job_details(text: str) -> model.Job | None:
    """Return the job from ``scontrol show job ID``, with the exit code that squeue does not print, or None.

    Only fields that users cannot forge are read: the job's name is confined to the first line.
    """
    number = re.match(r"JobId=(\d+)\b", text)
    told = re.search(r"^ +JobState=(\S+) Reason=(.*?) Dependency=", text, re.MULTILINE)
    exits = re.search(r"^ +Requeue=.* ExitCode=(\d+):(\d+)", text, re.MULTILINE)
    if number is None or told is None:
        return None
    return model.Job(
        id=number[1],
        state=state(told[1]),
        reason=_value(told[2]),
        nodes=_value(field(text, name="NodeList") or ""),
        command=_value(field(text, name="Command") or ""),
        work_directory=field(text, name="WorkDir") or "",
        exit_code=int(exits[1]) if exits else None,
        signal=int(exits[2]) if exits else None,
    )


ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
"""Kubernetes' and the registries' names by those of ``uname -m``, which slurmd reports, where they differ."""


def architectures(text: str) -> dict[str, str]:
    """Return the nodes' architectures from ``scontrol --oneliner show node``; nodes that never reported are absent."""
    found = re.findall(r"^NodeName=(\S+) Arch=(\S+)", text, re.MULTILINE)
    return {name: ARCHITECTURES.get(word, word) for name, word in found}


def partition_names(text: str) -> list[str]:
    """Return the partitions from ``scontrol --oneliner show partition``."""
    return re.findall(r"^PartitionName=(\S+)", text, re.MULTILINE)


def _value(text: str) -> str:
    return "" if text in _NO_VALUE else text


def _integer(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def job_id(text: str) -> str | None:
    """Return the id in the output of ``sbatch --parsable`` (``id`` or ``id;cluster``), or None if there is none.

    A site's plugin may print lines before it.
    """
    for line in reversed(text.splitlines()):
        if found := re.fullmatch(r"(\d+)(?:;\S+)?", line.strip()):
            return found[1]
    return None


def messages(stderr: str) -> str:
    """Return a command's error lines as one line for an event, without duplicates and surrounding blanks."""
    return "; ".join(dict.fromkeys(line.strip() for line in stderr.splitlines() if line.strip()))
