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


@given(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])))
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
