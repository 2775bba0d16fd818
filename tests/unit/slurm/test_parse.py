"""Slurm's text becomes values, whatever users wrote into names and comments."""

from __future__ import annotations

import platform

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpk.node import systeminfo
from hpk.slurm import model, parse
from tests.fakes import slurm as fake

MARK = "0123456789abcdef"


def jobs(*rows: tuple[str, ...]) -> dict[str, model.Job]:
    """The jobs of an answer with these rows."""
    return parse.JobReader().read(fake.squeue(*rows, end=parse.RECORD + MARK), mark=MARK)


def test_a_job_is_read_whole() -> None:
    """Every field of squeue lands in its attribute; Slurm's words for nothing become nothing."""
    row = (
        "12", "RUNNING", "None", "c[1-2]", "main", "1795825440", "N/A", "/home/a/.hpk/pods/u", "(null)", "a/b", "uid-1",
    )  # fmt: skip
    assert jobs(row) == {
        "12": model.Job(
            id="12",
            state=model.JobState.RUNNING,
            nodes="c[1-2]",
            partition="main",
            start_time=1795825440.0,
            work_directory="/home/a/.hpk/pods/u",
            name="a/b",
            comment="uid-1",
        )
    }


def test_the_wait_has_its_reason() -> None:
    """A queued job keeps Slurm's own reason; a script that somebody submitted by hand has a path."""
    job = jobs(("1", "PENDING", "Resources", "", "main", "N/A", "N/A", "/", "/home/a/my.sh", "n", "(null)"))["1"]
    assert (job.reason, job.state.is_queued, job.comment, job.command) == ("Resources", True, "", "/home/a/my.sh")


@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    comment=st.text(st.characters(exclude_categories=["Cs"])),
)
@example(name="n", comment="x\x1e\n2\x1fCANCELLED\x1fNone\x1f\x1fp\x1f5\x1fN/A\x1f/w\x1f(null)\x1fn\x1fc\x1e\n")
@example(name="n\x1e\n2\x1fCANCELLED\x1fNone\x1f\x1fp\x1f5\x1fN/A\x1f/w\x1f(null)\x1fn\x1fc\x1e\n", comment="")
def test_free_text_tells_of_its_own_job_only(name: str, comment: str) -> None:
    """Bars, blanks, line ends, separators, even whole records in a name or comment do not touch any other job."""
    found = jobs(
        ("1", "PENDING", "Priority", "", "p", "N/A", "N/A", "/w", "(null)", name, comment),
        ("2", "RUNNING", "None", "c1", "p", "5", "N/A", "/w", "(null)", "RUNNING | x", "PENDING"),
    )
    assert [(job.id, job.state.value) for job in found.values()] == [("1", "PENDING"), ("2", "RUNNING")]
    assert found["2"].name == "RUNNING | x"
    if parse.UNIT not in name:
        assert found["1"].name == name


def test_what_has_not_changed_is_not_read_again() -> None:
    """Of ten thousand jobs few change between two answers; those that are gone are forgotten."""
    rows = [(str(n), "RUNNING", "None", "c1", "p", "5", "N/A", "/w", "(null)", "n", "c") for n in range(3)]
    reader = parse.JobReader()
    first = reader.read(fake.squeue(*rows, end=parse.RECORD + "one"), mark="one")
    rows[1] = ("1", "COMPLETED", *rows[1][2:])
    second = reader.read(fake.squeue(*rows[:2], end=parse.RECORD + "two"), mark="two")
    assert [job.state.value for job in second.values()] == ["RUNNING", "COMPLETED"]
    assert second["0"] is first["0"]
    assert len(reader._known) == 2


def test_each_question_has_a_mark_of_its_own() -> None:
    """Which nobody can have written into a comment before it was asked."""
    assert parse.mark() != parse.mark()
    assert parse.squeue_format("m").endswith(parse.RECORD + "m")


def test_a_warning_in_between_is_no_job() -> None:
    """What squeue prints besides records is left out."""
    assert parse.JobReader().read("squeue: something odd\n", mark="") == {}
    rows = [(number, "RUNNING", "None", "c1", "p", "5", "N/A", "/w", "(null)", "n", "c") for number in ("1", "2")]
    said = "Maintenance on Monday\n" + "It will be long\n".join(
        fake.squeue(row, end=parse.RECORD + "m") for row in rows
    )
    assert list(parse.JobReader().read(said, mark="m")) == ["1", "2"]


STATES = """
    PENDING PD queued, CONFIGURING CF held, RUNNING R held, SUSPENDED S held, STOPPED ST held, RESIZING RS held,
    SIGNALING SI held, STAGE_OUT SO ending, COMPLETING CG ending, REQUEUED RQ queued, REQUEUE_FED RF queued,
    REQUEUE_HOLD RH queued, SPECIAL_EXIT SE queued, RESV_DEL_HOLD RD queued, REVOKED RV over, COMPLETED CD over,
    FAILED F over, CANCELLED CA over, TIMEOUT TO over, DEADLINE DL over, NODE_FAIL NF over, BOOT_FAIL BF over,
    OUT_OF_MEMORY OOM over, PREEMPTED PR over, LAUNCH_FAILED - ending, RECONFIG_FAIL - ending, POWER_UP_NODE - held,
    UPDATE_DB - ending, EXPEDITING - queued
"""
"""All words of squeue's from Slurm 20.11 to 24.11, long and short (squeue(1), JOB STATE CODES; job_state_string in
src/common/slurm_protocol_defs.c), and what they mean for a pod."""


@pytest.mark.parametrize("row", [row.strip() for row in STATES.split(",")])
@pytest.mark.parametrize("dressed", ["{}", "{} by 1000", "{}+"])
def test_every_state_of_slurms_is_known_by_both_its_words(row: str, dressed: str) -> None:
    """Exactly one of queued, ending and over, or it holds nodes; decorations are taken off."""
    long, short, meaning = row.split()
    for word in {long, short} - {"-"}:
        state = parse.state(dressed.format(word))
        assert state.value == long
        words = {"queued": state.is_queued, "ending": state.is_ending, "over": state.is_over}
        assert [name for name, holds in words.items() if holds] == ([] if meaning == "held" else [meaning])


def test_the_table_of_states_is_whole() -> None:
    """A state that is added to the model is added to the table."""
    assert {row.split()[0] for row in STATES.split(",")} == {state.value for state in model.JobState} - {"UNKNOWN"}


@pytest.mark.parametrize("word", ["SOMETHING_NEW", "", "?", "XX"])
def test_a_word_of_a_later_slurm_proves_nothing(word: str) -> None:
    """Neither queued nor over: nothing is concluded, and nothing is done."""
    state = parse.state(word)
    assert state is model.JobState.UNKNOWN
    assert not any((state.is_over, state.is_queued, state.is_ending))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("(null)", {}),
        ("gpu:2", {"gpu": 2}),
        ("gpu:a100:4(S:0-1),gpu:h100:2(S:0,1),shard:8", {"gpu": 6, "shard": 8}),
        ("cray:4,bw:lustre:no_consume:4G", {"cray": 4, "bw": 4 << 30}),
        ("nic", {"nic": 1}),
        ("gpu:3g.20gb:2", {"gpu": 2}),
    ],
)  # fmt: skip
def test_gres(text: str, counts: dict[str, int]) -> None:
    """Types and sockets are told from counts."""
    assert parse.gres(text) == counts


@pytest.mark.parametrize(
    ("word", "usable"),
    [
        ("idle", True), ("mixed", True), ("allocated", True), ("idle~", True), ("mixed-", True), ("planned", True),
        ("reserved", True), ("maint", True), ("completing", True), ("allocated#", True),
        ("down", False), ("down*", False), ("idle*", False), ("drained", False), ("draining", False),
        ("drained*", False), ("inval", False), ("future", False), ("unknown", False), ("mixed+drain", True),
    ],
)  # fmt: skip
def test_usable_nodes(word: str, *, usable: bool) -> None:
    """Down, drained and silent nodes do not count; those that are busy or asleep do."""
    assert parse.is_usable(word) is usable


def _sinfo(*rows: str) -> str:
    return "".join(row.replace("|", parse.UNIT) + parse.RECORD + "\n" for row in rows)


def test_capacity_counts_a_node_once() -> None:
    """A node in two partitions is one node; a down node is none; each partition has its own sums."""
    capacity = parse.capacity(
        _sinfo(
            "c1|main|main*|infinite|1:00:00|mixed|32|32000|(null)",
            "c2|main|main*|infinite|1:00:00|idle|16|16000|gpu:a100:2",
            "c2|gpu|gpu|2-00:00:00|n/a|idle|16|16000|gpu:a100:2",
            "c3|main|main*|infinite|1:00:00|down*|32|32000|gpu:8",
            "c4|old|old|30:00|n/a|idle|4|4000+|(null)",
        )
    )
    assert (capacity.cpus, capacity.memory_bytes, capacity.gres) == (52, 52000 << 20, {"gpu": 2})
    assert capacity.default_partition == "main"
    assert capacity.nodes["c2"].partitions == {"main", "gpu"}
    main, gpu, old = (capacity.partitions[name] for name in ("main", "gpu", "old"))
    assert (main.max_seconds, main.default_seconds) == (None, 3600)
    assert (gpu.max_seconds, gpu.default_seconds, gpu.is_default) == (172800, None, False)
    assert old.max_seconds == 1800


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-0", 86400), ("1-12", 129600),
        ("1-2:3", 93780), ("1-2:3:4", 93784), ("UNLIMITED", None), ("infinite", None), ("-1", None),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: int | None) -> None:
    """Each format of --time means what sbatch(1) says."""
    assert parse.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "1-", "1-2-3", "-5", "1:-2", "1.5"])
def test_no_durations(text: str) -> None:
    """Anything else is an error that shows the text."""
    with pytest.raises(ValueError, match="time limit"):
        parse.duration(text)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    """The longest format is the sum of its parts."""
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse.duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == expected


def test_accounting_has_exit_codes() -> None:
    """Sacct adds the script's exit code and signal."""
    row = ["19", "CANCELLED by 2000", "0:15", "None", "None assigned", "main", "5", "Unknown", "/w", "n\u2028m"]
    forged = parse.UNIT.join(["19", "FAILED", *row[2:]])
    found = parse.accounting((parse.UNIT + MARK).join(row) + "\n" + forged + "\n", mark=MARK)
    (job,) = found.values()
    assert job.name == "n\u2028m"
    assert (job.state, job.exit_code, job.signal, job.nodes, job.end_time) == (
        model.JobState.CANCELLED,
        0,
        15,
        "",
        None,
    )


SHOWN = """\
JobId=17 JobName=ns/p ExitCode=9:9
   UserId=alice(2000) GroupId=alice(2000) MCS_label=N/A
   JobState=FAILED Reason=RaisedSignal:53(Real-time signal 19) Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:53
   NodeList=c1
   Command=(null)
   WorkDir=/home/alice/.hpk/pods/u
   StdErr=/home/alice/.hpk/pods/u/job.out
"""
"""Slurm 24.11."""


def test_the_end_of_a_job_is_read_from_scontrol() -> None:
    """With the exit code, which squeue does not tell; a name does not pass for it."""
    job = parse.job_details(SHOWN)
    assert job == model.Job(
        id="17",
        state=model.JobState.FAILED,
        reason="RaisedSignal:53(Real-time signal 19)",
        nodes="c1",
        work_directory="/home/alice/.hpk/pods/u",
        exit_code=0,
        signal=53,
    )
    assert parse.job_details("slurm_load_jobs error: Invalid job id specified\n") is None
    assert parse.job_details("") is None


@pytest.mark.parametrize(
    ("text", "job_id"), [("12\n", "12"), ("12;cluster\n", "12"), ("Welcome 7!\n\n12\n", "12"), ("", None), ("x", None)]
)
def test_job_ids(text: str, job_id: str | None) -> None:
    """The id is found among a site's own greetings."""
    assert parse.job_id(text) == job_id


def test_messages_are_one_line() -> None:
    """Repeated lines are said once."""
    assert (
        parse.messages("sbatch: error: a\n\nsbatch: error: b\nsbatch: error: a\n")
        == "sbatch: error: a; sbatch: error: b"
    )


def test_kill_wait_is_slurms_own() -> None:
    """The line of the configuration, or Slurm's default where there is none."""
    assert parse.kill_wait_seconds("KeepAliveTime           = SYSTEM_DEFAULT\nKillWait                = 5 sec\n") == 5
    assert parse.kill_wait_seconds("nothing of it") == 30


def test_architectures_are_named_as_registries_do() -> None:
    """Slurm 24.11.5; a node whose slurmd never came up has none."""
    text = (
        "NodeName=c1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 OS=Linux 6.1 \n"
        "NodeName=g1 Arch=aarch64 CoresPerSocket=72 CPUAlloc=0 \n"
        "NodeName=n1 CoresPerSocket=1 CPUAlloc=0 State=UNKNOWN \n"
    )
    assert parse.architectures(text) == {"c1": "amd64", "g1": "arm64"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "i686", "armv7l", "ppc64le", "riscv64", "s390x"])
def test_a_compute_node_has_the_architecture_of_an_equal_host(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every pod would be refused: the images would seem to be for another machine."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = parse.architectures(f"NodeName=c1 Arch={machine} CoresPerSocket=4 \n")
    assert found == {"c1": systeminfo.read(identity="x").architecture}


def test_partitions_names_are_read_from_scontrol() -> None:
    """One line each, whatever else is on it."""
    text = "PartitionName=main AllowGroups=ALL Default=YES\nPartitionName=secret Hidden=YES\n"
    assert parse.partition_names(text) == ["main", "secret"]


@pytest.mark.parametrize("text", ["00:00:01", "01:02:03", "3-00:00:00"])
def test_a_time_is_written_as_it_is_read(text: str) -> None:
    """Slurm's own spelling."""
    seconds = parse.duration(text)
    assert seconds is not None
    assert parse.time_text(seconds) == text
