"""A user's sbatch flags, from an annotation or a setting: read as a shell reads them, refused or merged; pure."""

from __future__ import annotations

import difflib
import re
import shlex
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpk import errors, jobdir
from hpk.slurm import parse as slurm_parse

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip

WITH_VALUE = frozenset({
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters",
    "comment", "constraint", "container", "container-id", "context", "core-spec", "cores-per-socket", "cpu-freq",
    "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude",
    "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name", "kill-on-invalid-dep",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus",
    "network", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output", "partition", "power", "prefer", "priority",
    "profile", "qos", "reservation", "resources", "runtime", "segment", "signal", "sockets-per-node", "switches",
    "thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid",
    "wait-all-nodes", "wckey", "wrap",
})  # fmt: skip
OPTIONAL_VALUE = frozenset({
    "exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate", "requeue", "resv-ports",
})  # fmt: skip
WITHOUT_VALUE = frozenset({
    "consolidate-segments", "contiguous", "external", "help", "hold", "ignore-pbs", "no-requeue", "overcommit",
    "oversubscribe", "parsable", "quiet", "reboot", "spread-job", "spread-segments", "stepmgr", "test-only",
    "usage", "use-min-nodes", "verbose", "version", "wait",
})  # fmt: skip
SPELLINGS = {
    "tasks-per-node": "ntasks-per-node",
    "share": "oversubscribe",
    "workdir": "chdir",
    "cluster": "clusters",
    "licences": "licenses",
}
KNOWN = WITH_VALUE | OPTIONAL_VALUE | WITHOUT_VALUE | frozenset(SPELLINGS)

FORBIDDEN = {
    name: reason
    for reason, names in {
        "the job's script is HPK's own": ["wrap"],
        "a pod is one job; use a Job with completions for many": ["array"],
        "the pod's output is in its own directory; read it with kubectl logs":
            ["output", "error", "input", "open-mode"],
        "the job runs in the pod's directory; set workingDir in the container": ["chdir"],
        "Kubernetes itself replaces a pod that is lost": ["requeue"],
        "the job's environment is HPK's own; set a container's in the pod's env":
            ["export", "export-file", "get-user-env"],
        "jobs run as the user that runs HPK": ["uid", "gid"],
        "HPK's node is one cluster": ["clusters", "cluster-constraint"],
        "HPK starts the pod's containers itself": ["container", "container-id"],
        "it changes what sbatch itself does or prints":
            ["external", "parsable", "test-only", "wait", "help", "usage", "version"],
    }.items()
    for name in names
}  # fmt: skip
"""Options that would break the pod, each with the reason shown to its owner."""

SIGNAL_SECONDS = 60
"""How long before the time limit Slurm sends the signal if ``--signal`` does not say."""
MOST_SIGNAL_SECONDS = 0xFFFF
"""Slurm keeps the seconds in 16 bits."""
_SIGNAL = re.compile(
    r"(?:(?P<letters>B|R|BR|RB):)?(?:SIG)?(?P<signal>[A-Z]+\d?|\d+)(?:@(?P<seconds>\d+))?", re.IGNORECASE
)
_UNUSABLE = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33, jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL}
)
"""Signals that cannot be caught, the C library's own, and HPK's."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """The signal that ``--signal`` asks for.

    Attributes:
        seconds: How long before the job's time limit it is sent.
        may_overlap: Whether the job may start into a reservation (the option's ``R``).
    """

    number: int
    seconds: int
    may_overlap: bool


def signal_of(value: str) -> Signal:
    """Return the signal that a value of ``--signal`` asks for (sbatch(1)).

    ``B`` is ignored: the pod runs in the job's script.

    Raises:
        ValueError: The value names no signal that a program can receive.
    """
    found = _SIGNAL.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"'{value}' is not a signal and the seconds before the time limit, such as USR1@120")
    word, seconds = found["signal"].upper(), int(found["seconds"] or SIGNAL_SECONDS)
    known = {one.name.removeprefix("SIG"): one for one in signal.Signals}
    number = int(word) if word.isdecimal() else int(known.get(word, 0))
    if number in _UNUSABLE or not 1 <= number <= signal.SIGRTMAX:
        raise ValueError(f"{word} is not a signal that a program can receive; use one such as USR1")
    if seconds > MOST_SIGNAL_SECONDS:
        raise ValueError(f"{seconds} s before the time limit is more than Slurm's {MOST_SIGNAL_SECONDS} s")
    return Signal(number=number, seconds=seconds, may_overlap="R" in (found["letters"] or "").upper())


CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""An #SBATCH line cannot hold a line break, and other control characters separate fields in Slurm's output."""

GPU_COUNTS = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"})
_CPUS_PER_TASK, _GPUS_PER_TASK = re.compile(r"(?:^|,)cpu[:=]"), re.compile(r"(?:^|,)gres[/:]gpu\b")

EXCLUSIVE = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
    GPU_COUNTS,
    *(
        frozenset({"ntasks-per-gpu", other})
        for other in (
            "ntasks",
            "ntasks-per-node",
            "gpus-per-task",
            "gpus-per-socket",
            "tres-per-task",
            "ntasks-per-tres",
        )
    ),
    frozenset({"core-spec", "thread-spec"}),
    frozenset({"exclusive", "oversubscribe"}),
    frozenset({"nodelist", "nodefile"}),
    *(frozenset({"hint", other}) for other in ("ntasks-per-core", "threads-per-core", "extra-node-info")),
)
"""Groups of options of which sbatch accepts only one ("mutually exclusive", "not compatible": sbatch(1),
src/common/slurm_opt.c). The ways to count GPUs may be combined if they agree, which two layers do only by chance."""


def partitions(options: Mapping[str, str | None]) -> list[str]:
    """Return the partitions that the options name; none means Slurm's default."""
    return [name for name in (options.get("partition") or "").split(",") if name]


def layered(*layers: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the options of all layers; a later one replaces the same option and those that would clash with it.

    A gres without a GPU keeps the earlier layers' GPUs. Clashes within one layer stay; sbatch explains them.
    """
    made: dict[str, str | None] = {}
    for layer in layers:
        gres = made.pop("gres", None) if "gres" in layer or _counts_gpus(layer) else None
        for name in _replaced(layer, made) - layer.keys():
            made.pop(name, None)
        made.update(layer)
        gres = _joined(gres, layer)
        if gres:
            made["gres"] = gres
    return made


def several_nodes(options: Mapping[str, str | None]) -> str | None:
    """Return the option that gives the job, or may give it, more than one node; None if there is none."""
    nodes, names = options.get("nodes") or "", options.get("nodelist") or ""
    if any(int(number) > 1 for number in re.findall(r"\d+", nodes)):
        return f"--nodes={nodes}"
    is_file = "/" in names
    return f"--nodelist={names}" if not is_file and re.search(r",|\[[^]]*[,-]", names) else None


def _replaced(layer: Mapping[str, str | None], made: Mapping[str, str | None]) -> set[str]:
    """Return the options of ``made`` that clash with those of the layer."""
    found = {other for name in layer for group in EXCLUSIVE if name in group for other in group}
    # A per-task count may be given only once: sbatch(1), --tres-per-task.
    before, now = made.get("tres-per-task") or "", layer.get("tres-per-task") or ""
    for pattern, options in (_CPUS_PER_TASK, {"cpus-per-task", "cpus-per-gpu"}), (_GPUS_PER_TASK, GPU_COUNTS):
        if pattern.search(now):
            found |= options
        if pattern.search(before) and layer.keys() & options:
            found.add("tres-per-task")
    return found


def _counts_gpus(layer: Mapping[str, str | None]) -> bool:
    return bool(layer.keys() & GPU_COUNTS) or _GPUS_PER_TASK.search(layer.get("tres-per-task") or "") is not None


def _joined(before: str | None, layer: Mapping[str, str | None]) -> str | None:
    """Return the gres after this layer: its gres replaces all but the GPUs, its count of GPUs only those."""
    ours = layer.get("gres") or ""
    items = (before or "").split(",") if before else []
    if "gres" in layer:  # it replaces all but the GPUs
        items = [item for item in items if _is_gpu(item)]
    if _counts_gpus(layer) or any(_is_gpu(item) for item in ours.split(",")) or ours.lower() == "none":
        items = [item for item in items if not _is_gpu(item)]
    return ",".join([*items, *([ours] if ours else [])]) or None


def _is_gpu(item: str) -> bool:
    return re.match(r"\s*(gres[/:])?gpu\b", item) is not None


def parse(text: str, *, source: str) -> dict[str, str | None]:
    """Return the options in ``text`` by Slurm's long name, in order; the last of several wins, None means no value.

    The source, such as ``annotation slurm.hpk.io/flags``, appears in the message.

    Raises:
        errors.PodRefused: A quote is open; an option is unknown, lacks its value, or would break the pod.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise errors.PodRefused(f"Cannot use {source}: {error} in: {text}", reason="InvalidFlags") from error
    options: dict[str, str | None] = {}
    words.reverse()  # so that pop() takes the next word
    while words:
        for name, value in _option(words.pop(), words, source=source):
            if name in FORBIDDEN:
                raise _refusal(source, f"--{name} would break the pod: {FORBIDDEN[name]}")
            _check_value(name, value, source=source)
            options.pop(name, None)
            options[name] = value
    return options


def _option(word: str, rest: list[str], *, source: str) -> list[tuple[str, str | None]]:
    """Return the options that begin with this word, taking their values from ``rest``."""
    if word.startswith("--") and len(word) > 2:  # noqa: PLR2004 - the length of "--"
        name, equals, value = word[2:].partition("=")
        name = _long_name(name, source=source)
        if name in WITHOUT_VALUE and equals:
            raise _refusal(source, f"--{name} takes no value")
        if name in WITH_VALUE and not equals:
            return [(name, _next(f"--{name}", rest, source=source))]
        return [(name, value if equals else None)]
    if word.startswith("-") and word not in ("-", "--"):
        return _short_options(word[1:], rest, source=source)
    raise _refusal(source, f"'{word}' is not an option (they begin with -)")


def _short_options(letters: str, rest: list[str], *, source: str) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in SHORT:
            raise _refusal(source, f"-{letter} is not an option of sbatch")
        name = SHORT[letter]
        if name in WITHOUT_VALUE:
            options.append((name, None))
            continue
        if name in WITH_VALUE and not letters:
            letters = _next(f"-{letter}", rest, source=source)
        options.append((name, letters or None))
        break
    return options


def _long_name(name: str, *, source: str) -> str:
    """Return the option's full name; like sbatch, accept an unambiguous prefix."""
    if name in KNOWN:
        return SPELLINGS.get(name, name)
    meant = [known for known in KNOWN if name and known.startswith(name)]
    if len(meant) == 1:
        return SPELLINGS.get(meant[0], meant[0])
    if meant:
        raise _refusal(source, f"--{name} is ambiguous ({', '.join('--' + m for m in sorted(meant))})")
    near = difflib.get_close_matches(name, sorted(KNOWN), n=1)
    hint = f" (did you mean --{near[0]}?)" if near else ""
    raise _refusal(source, f"--{name} is not an option of sbatch{hint}")


def _next(option: str, rest: list[str], *, source: str) -> str:
    if not rest:
        raise _refusal(source, f"{option} needs a value")
    return rest.pop()


def _check_value(name: str, value: str | None, *, source: str) -> None:
    if value is not None and (found := CONTROL.search(value)):
        what = "a line break" if found[0] in "\n\r" else f"the control character {found[0]!r}"
        raise _refusal(source, f"the value of --{name} holds {what}")
    if name in ("time", "time-min") and value is not None:
        try:
            slurm_parse.duration(value)
        except ValueError as error:
            raise _refusal(source, f"--{name}: {error}") from error
    if name == "signal" and value is not None:
        try:
            signal_of(value)
        except ValueError as error:
            raise _refusal(source, f"--{name}: {error}") from error


def _refusal(source: str, what: str) -> errors.PodRefused:
    return errors.PodRefused(f"Cannot use {source}: {what}", reason="InvalidFlags")
