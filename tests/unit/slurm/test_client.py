"""Slurm's answers become values, and its refusals become errors that say what to do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpk import errors
from hpk.slurm import client, model, parse, refusals, runner
from tests.fakes import slurm as fake

HOME = Path("/home/alice")
SINFO = "c1|main|main*|infinite|n/a|idle|4|100|(null)".replace("|", "\x1f") + "\x1e\n"


async def test_submit_hands_the_script_over() -> None:
    """The script goes by standard input, byte for byte, and the id comes back."""
    talk = fake.Conversation(("sbatch", "42\n"))
    assert await client.Slurm(talk).submit("#!/bin/bash\necho ü\n", directory=HOME) == "42"
    assert talk.calls == [fake.Call("sbatch --parsable --chdir=/home/alice", "#!/bin/bash\necho ü\n", "/home/alice")]


@pytest.mark.parametrize("name", sorted(set(fake.REFUSALS) - {"partition"}))
async def test_lasting_refusals(name: str) -> None:
    """What will never work is refused in sbatch's own words."""
    talk = fake.Conversation(("sbatch", fake.refusal(fake.REFUSALS[name])))
    with pytest.raises(errors.JobRefused) as caught:
        await client.Slurm(talk).submit("#!/bin/sh\n", directory=HOME)
    assert fake.REFUSALS[name].splitlines()[0] in str(caught.value)


async def test_a_wrong_partition_names_the_right_ones() -> None:
    """The user reads which partitions there are, in the order in which `kubectl apply` names them."""
    answer = SINFO + SINFO.replace("main", "gpu")
    talk = fake.Conversation(("sbatch", fake.refusal(fake.REFUSALS["partition"])), ("sinfo", answer))
    with pytest.raises(errors.JobRefused, match=r"invalid partition specified: nosuch; .* \(known: gpu, main\)"):
        await client.Slurm(talk).submit("#!/bin/sh\n", directory=HOME)


async def test_a_wrappers_exit_code_is_no_signal() -> None:
    """A site's own sbatch that ends with 255 and says why has refused for good."""
    talk = fake.Conversation(("sbatch", fake.refusal("sbatch: error: You must name a project\n", code=255)))
    with pytest.raises(errors.JobRefused, match="You must name a project"):
        await client.Slurm(talk).submit("#!/bin/sh\n", directory=HOME)


@pytest.mark.parametrize("name", sorted(fake.OUTAGES))
async def test_passing_refusals(name: str) -> None:
    """Limits, outages and rate limits pass; only a request without an answer may have made a job."""
    talk = fake.Conversation(("sbatch", fake.refusal(fake.OUTAGES[name])))
    with pytest.raises(errors.SlurmUnavailable) as caught:
        await client.Slurm(talk).submit("#!/bin/sh\n", directory=HOME)
    assert caught.value.may_have_succeeded is (name in {"timed-out", "zero", "delayed", "clock", "quiesce", "closing"})
    assert caught.value.limits_rate is name.startswith("rate")


@pytest.mark.parametrize(
    "result",
    [
        runner.CommandResult(code=-9, end="timeout"),
        runner.CommandResult(code=-9, end="overflow"),
        runner.CommandResult(code=1, end="failed", stderr=b"OSError: [Errno 24] Too many open files"),
        runner.CommandResult(code=0, stdout=b"hello\n"),
        runner.CommandResult(code=0),
        runner.CommandResult(code=-15),
        runner.CommandResult(
            code=-9, stderr=b"sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
        ),
        runner.CommandResult(code=137, stderr=b"/usr/local/bin/sbatch: line 3: 4711 Killed\n"),
        runner.CommandResult(code=143, stderr=b"Terminated\n"),
        runner.CommandResult(code=1),
        runner.CommandResult(code=1, stdout=b"42\n", stderr=b"sbatch: error: the site's own epilogue failed\n"),
    ],
)
async def test_an_unclear_submission_may_have_succeeded(result: runner.CommandResult) -> None:
    """Killed, mute, or with an answer that is none: whoever asked must look for the job first, and nothing is final."""
    with pytest.raises(errors.SlurmUnavailable) as caught:
        await client.Slurm(fake.Conversation(("sbatch", result))).submit("#!/bin/sh\n", directory=HOME)
    assert caught.value.may_have_succeeded


async def test_jobs_are_one_question() -> None:
    """All of the user's jobs, in all states, come from one squeue."""
    talk = fake.Conversation(
        ("squeue", fake.squeue(("1", "TIMEOUT", "TimeLimit", "c1", "p", "5", "65", "/w", "(null)", "n", "c")))
    )
    jobs = await client.Slurm(talk, uid=2000).jobs()
    assert (jobs["1"].state, jobs["1"].end_time) == (model.JobState.TIMEOUT, 65.0)
    assert len(talk.calls) == 1
    assert "--states=all" in talk.calls[0].line
    assert "--user=2000" in talk.calls[0].line


async def test_ten_thousand_jobs_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a tenth of a second, in which agents and kubectl would wait."""
    readers = list[int]()

    def read(_self: parse.JobReader, _text: str, *, mark: str) -> dict[str, model.Job]:
        assert mark
        readers.append(threading.get_ident())
        return {}

    monkeypatch.setattr(parse.JobReader, "read", read)
    await client.Slurm(fake.Conversation(("squeue", ""))).jobs()
    assert len(readers) == 1
    assert readers[0] != threading.get_ident()


@pytest.mark.parametrize(
    "reply",
    [
        fake.refusal("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
        runner.CommandResult(code=-9, end="timeout"),
        runner.CommandResult(code=-9, end="overflow"),
        runner.CommandResult(code=-15),
        runner.CommandResult(code=143, stdout=fake.squeue().encode()),
        runner.CommandResult(code=0, stdout=b"101  main  p  alice  R  1:00  1 c1\n"),
        runner.CommandResult(code=0, stdout=fake.squeue(("1",) * 11, end="\x1eanother-mark").encode()),
        errors.SlurmUnavailable("no gateway"),
    ],
)
async def test_no_answer_is_an_error(reply: runner.CommandResult | Exception) -> None:
    """Silence is never an empty list of jobs."""
    with pytest.raises(errors.SlurmUnavailable):
        await client.Slurm(fake.Conversation(("squeue", reply))).jobs()


async def test_an_answer_that_nobody_asked_for_is_no_empty_cluster() -> None:
    """A wrapper of the site's that prints something else says nothing of what there is; no output at all does."""
    with pytest.raises(errors.SlurmUnavailable, match="something unexpected: 'PARTITION AVAIL'"):
        await client.Slurm(fake.Conversation(("sinfo", "PARTITION AVAIL\n"))).capacity()
    assert await client.Slurm(fake.Conversation(("squeue", ""))).jobs() == {}


async def test_a_gateway_that_met_an_error_has_said_nothing() -> None:
    """A host without memory or descriptors for a moment: what waits for an answer asks again, and hears why."""
    failed = runner.CommandResult(code=1, end="failed", stderr=b"OSError: [Errno 12] Cannot allocate memory")

    class Broken(runner.GatewayClient):
        async def run(self, *_: object, **__: object) -> runner.CommandResult:
            return failed

    with pytest.raises(errors.SlurmUnavailable, match="Cannot allocate memory"):
        await client.Slurm(Broken(HOME)).site()
    slurm = client.Slurm(fake.Conversation(("", failed)))
    with pytest.raises(errors.ApiUnavailable, match="Cannot allocate memory"):
        await slurm.tunnel("--state=s")
    with pytest.raises(errors.SlurmUnavailable, match="Cannot allocate memory"):
        await slurm.submit("#!/bin/sh\n", directory=HOME)


async def test_a_rate_limit_is_told() -> None:
    """The poller must know that it asks too often."""
    talk = fake.Conversation(("squeue", fake.refusal("slurm_load_jobs error: Rate limit exceeded, please retry later")))
    with pytest.raises(errors.SlurmUnavailable) as caught:
        await client.Slurm(talk).jobs()
    assert caught.value.limits_rate


@pytest.mark.parametrize(
    "reply",
    [
        "",
        fake.refusal("scancel: error: Kill job error on job id 9: Invalid job id specified\n"),
        fake.refusal("scancel: error: Kill job error on job id 9: Job/step already completing or completed\n"),
    ],
)
async def test_cancel_twice(reply: str | runner.CommandResult) -> None:
    """A job that has ended is cancelled already."""
    talk = fake.Conversation(("scancel", reply))
    await client.Slurm(talk).cancel("9")
    await client.Slurm(talk).cancel_many(["9"])
    assert talk.calls[0].line == "scancel 9"


async def test_cancel_fails_truly() -> None:
    """An outage is to be tried again, somebody else's job is not."""
    away = fake.Conversation(("scancel", fake.refusal("scancel: error: Unable to contact slurm controller\n")))
    with pytest.raises(errors.SlurmUnavailable):
        await client.Slurm(away).cancel("9")
    killed = fake.Conversation(("scancel", runner.CommandResult(code=-15)))
    with pytest.raises(errors.SlurmUnavailable, match="scancel was killed by signal 15"):
        await client.Slurm(killed).cancel("9")
    denied = fake.Conversation(("scancel", fake.refusal("scancel: error: Kill job error: Access/permission denied\n")))
    with pytest.raises(errors.JobRefused):
        await client.Slurm(denied).cancel("9")


async def test_a_signal_reaches_the_script() -> None:
    """A signal goes to the job's script alone, which stops its children in order."""
    talk = fake.Conversation(("scancel", ""))
    await client.Slurm(talk).cancel("9", signal="TERM")
    assert talk.calls[0].line == "scancel --signal=TERM --batch 9"


async def test_no_accounting_is_no_error() -> None:
    """A site without slurmdbd knows nothing more of a job; an outage is still an outage."""
    none = fake.refusal("Slurm accounting storage is disabled\n")
    assert await client.Slurm(fake.Conversation(("sacct", none))).accounting(["1"]) == {}
    away = fake.refusal("sacct: error: slurmdbd: Connection refused\n")
    with pytest.raises(errors.SlurmUnavailable):
        await client.Slurm(fake.Conversation(("sacct", away))).accounting(["1"])
    assert await client.Slurm(fake.Conversation()).accounting([]) == {}


def test_a_site_plugin_may_say_anything() -> None:
    """A text that nobody knows is lasting: what passes is a known list."""
    assert not refusals.is_passing("sbatch: error: Computer says no")
