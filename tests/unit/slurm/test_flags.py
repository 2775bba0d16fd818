"""A user's flags are read as a shell would read them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpk import errors
from hpk.slurm import flags


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("-p main", {"partition": "main"}),
        ("-pmain", {"partition": "main"}),
        ("--partition=main", {"partition": "main"}),
        ("--partition main", {"partition": "main"}),
        ("--part=main", {"partition": "main"}),
        ("-J \"my job x\"   --comment='a b' -p main", {"job-name": "my job x", "comment": "a b", "partition": "main"}),
        ("-Hp main", {"hold": None, "partition": "main"}),
        ("--exclusive", {"exclusive": None}),
        ("--exclusive=user", {"exclusive": "user"}),
        ("--exclusive -t 5", {"exclusive": None, "time": "5"}),
        ("--nice=-5 -k", {"nice": "-5", "no-kill": None}),
        ("-t 1 -t 2", {"time": "2"}),
        ("--tasks-per-node=2 --share", {"ntasks-per-node": "2", "oversubscribe": None}),
        ("--gres=gpu:a100:2 --constraint='a&b|c'", {"gres": "gpu:a100:2", "constraint": "a&b|c"}),
        ("--comment=", {"comment": ""}),
        ("-n 4 -N 2 --no-requeue", {"ntasks": "4", "nodes": "2", "no-requeue": None}),
        ("--begin now+20", {"begin": "now+20"}),
        ("--mail-type\nEND", {"mail-type": "END"}),
    ],
)
def test_read(text: str, options: dict[str, str | None]) -> None:
    """Short and long, with and without a value, quoted or not: Slurm's long names come out, the last one wins."""
    assert flags.parse(text, source="the test") == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('-J "open', "No closing quotation"),
        ("main", "'main' is not an option"),
        ("-p main extra", "'extra' is not an option"),
        ("--partion=x", "did you mean --partition"),
        ("--nosuchthing", "--nosuchthing is not an option of sbatch"),
        ("--mem-per=5", "ambiguous"),
        ("-p", "-p needs a value"),
        ("--time", "--time needs a value"),
        ("--hold=5", "--hold takes no value"),
        ("-z", "-z is not an option"),
        ("--time=1h", "'1h' is not a time limit"),
        ("--comment='a\nb'", "line break"),
        ("--signal=KILL", "KILL is not a signal that a program can receive"),
        ("--signal=CHLD@60", "CHLD is not a signal that a program can receive"),
        ("--signal=50@10", "50 is not a signal that a program can receive"),
        ("--signal=USR1@1h", "'USR1@1h' is not a signal"),
        ("--signal=USR1@70000", "more than Slurm's 65535 s"),
        ("--", "'--' is not an option"),
        ("-", "'-' is not an option"),
    ],
)
def test_refused(text: str, words: str) -> None:
    """What cannot be read is refused with its place and the reason."""
    with pytest.raises(errors.PodRefused, match=r"annotation slurm\.hpk\.io/flags") as caught:
        flags.parse(text, source="annotation slurm.hpk.io/flags")
    assert words in str(caught.value)
    assert caught.value.reason == "InvalidFlags"


@pytest.mark.parametrize("option", ["--comment=", "--comment ", "-J", "--partition=", "--exclusive=", "--gres="])
def test_no_value_holds_a_control_character(option: str) -> None:
    """They part the fields of squeue's answers: a name must not be able to tell of another job."""
    for character in (chr(number) for number in (*range(32), 127)):
        with pytest.raises(errors.PodRefused, match=r"control character|line break"):
            flags.parse(option + shlex.quote(f"a{character}b"), source="s")


LAYERS: list[tuple[dict[str, str | None], dict[str, str | None], dict[str, str | None]]] = [
    ({"mem": "1M"}, {"mem-per-cpu": "2G"}, {"mem-per-cpu": "2G"}),
    ({"mem": "1M"}, {"mem-per-gpu": "2G"}, {"mem-per-gpu": "2G"}),
    ({"mem-per-cpu": "1M"}, {"mem": "2G"}, {"mem": "2G"}),
    ({"cpus-per-task": "1"}, {"cpus-per-gpu": "4"}, {"cpus-per-gpu": "4"}),
    ({"cpus-per-task": "1"}, {"tres-per-task": "cpu=4"}, {"tres-per-task": "cpu=4"}),
    ({"cpus-per-task": "1"}, {"tres-per-task": "license/a:4"}, {"cpus-per-task": "1", "tres-per-task": "license/a:4"}),
    ({"tres-per-task": "cpu=4"}, {"cpus-per-task": "1"}, {"cpus-per-task": "1"}),
    ({"tres-per-task": "license/a:4"}, {"cpus-per-task": "1"}, {"cpus-per-task": "1", "tres-per-task": "license/a:4"}),
    ({"ntasks": "1"}, {"ntasks-per-gpu": "2"}, {"ntasks-per-gpu": "2"}),
    ({"ntasks": "1"}, {"gpus-per-task": "2"}, {"ntasks": "1", "gpus-per-task": "2"}),
    ({"gres": "gpu:1"}, {"gpus": "2"}, {"gpus": "2"}),
    ({"gres": "gpu:1,nic:1"}, {"gpus-per-node": "a100:2"}, {"gpus-per-node": "a100:2", "gres": "nic:1"}),
    ({"gres": "gpu:1"}, {"tres-per-task": "gres/gpu:2"}, {"tres-per-task": "gres/gpu:2"}),
    ({"gres": "gpu:1"}, {"gres": "gpu:a100:2"}, {"gres": "gpu:a100:2"}),
    ({"gres": "gpu:1"}, {"gres": "nic:1"}, {"gres": "gpu:1,nic:1"}),
    ({"gres": "gpu:1"}, {"gres": "none"}, {"gres": "none"}),
    ({"gres": "gpu:1"}, {"partition": "gpu"}, {"gres": "gpu:1", "partition": "gpu"}),
    ({"oversubscribe": None}, {"exclusive": None}, {"exclusive": None}),
    ({"hint": "nomultithread"}, {"threads-per-core": "1"}, {"threads-per-core": "1"}),
    ({"partition": "a", "mem": "1M"}, {"partition": "b"}, {"partition": "b", "mem": "1M"}),
    ({}, {"mem": "1", "mem-per-cpu": "2"}, {"mem": "1", "mem-per-cpu": "2"}),
]


@pytest.mark.parametrize(("before", "after", "made"), LAYERS)
def test_what_is_set_later_replaces_what_would_clash(
    before: dict[str, str | None], after: dict[str, str | None], made: dict[str, str | None]
) -> None:
    """A pod's flags over the settings', and both over what HPK derives: sbatch refuses mutually exclusive ones."""
    assert flags.layered(before, after) == made
    assert flags.layered(before) == before


@pytest.mark.parametrize("name", sorted(flags.FORBIDDEN))
def test_forbidden(name: str) -> None:
    """Each option that would break the pod is refused by name, with its own reason."""
    value = "=x" if name in flags.WITH_VALUE else ""
    with pytest.raises(errors.PodRefused) as caught:
        flags.parse(f"--{name}{value}", source="s")
    assert f"--{name} would break the pod: {flags.FORBIDDEN[name]}" in str(caught.value)


@pytest.mark.parametrize(("text", "name"), [("-a 1-3", "array"), ("-o x", "output"), ("-D /", "chdir"), ("-W", "wait")])
def test_forbidden_by_letter(text: str, name: str) -> None:
    """The short spelling is refused like the long one."""
    with pytest.raises(errors.PodRefused, match=f"--{name} would break the pod"):
        flags.parse(text, source="s")


def test_every_option_is_of_one_kind() -> None:
    """An option takes a value, may take one, or takes none; every letter and spelling leads to an option."""
    kinds = (flags.WITH_VALUE, flags.OPTIONAL_VALUE, flags.WITHOUT_VALUE)
    assert len(frozenset().union(*kinds)) == sum(len(kind) for kind in kinds)
    assert set(flags.SHORT.values()) | set(flags.SPELLINGS.values()) | set(flags.FORBIDDEN) <= flags.KNOWN
    assert frozenset().union(*flags.EXCLUSIVE) <= flags.KNOWN


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_values_are_exact(value: str) -> None:
    """A value that was quoted for a shell comes out byte for byte."""
    expected: dict[str, str | None] = {"comment": value}
    assert flags.parse(f"--comment={shlex.quote(value)}", source="s") == expected
    assert flags.parse(f"--comment {shlex.quote(value)}", source="s") == expected


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No annotation, however odd, raises anything but PodRefused."""
    try:
        options = flags.parse(text, source="s")
    except errors.PodRefused:
        return
    assert set(options) <= flags.KNOWN - set(flags.FORBIDDEN)


@pytest.mark.parametrize(
    ("value", "number", "seconds", "may_overlap"),
    [
        ("USR1", 10, 60, False),
        ("b:SIGusr1@120", 10, 120, False),
        ("RB:12@5", 12, 5, True),
        ("R:HUP", 1, 60, True),
    ],
)
def test_signals_are_read_as_sbatch_reads_them(value: str, number: int, seconds: int, may_overlap: bool) -> None:  # noqa: FBT001
    """By name or number, with the letters before it and the seconds behind it."""
    assert flags.signal_of(value) == flags.Signal(number=number, seconds=seconds, may_overlap=may_overlap)
