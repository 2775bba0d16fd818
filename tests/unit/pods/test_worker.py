"""A pod's life, from its creation to the removal of its object, in named scenarios."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog import testing

from hpk import errors, jobdir, records
from hpk.aio import backoff
from hpk.pods import admit, allocations, life, prepare, termination
from tests.fakes import path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[path.World]:
    """A kubelet over an API server and a Slurm in memory."""
    async with path.World(tmp_path) as made:
        yield made


def report(uid: str, sequence: int, *, state: str = "running", code: int = 0, **more: Any) -> Any:
    """What an agent says."""
    run: dict[str, Any] = {
        "exit_code": code,
        "signal": 0,
        "reason": "Completed" if code == 0 else "Error",
        "message": "",
    }
    run |= {"started_at": 1.0, "finished_at": 2.0, "container_id": "x"}
    container = {
        "state": state,
        "reason": "",
        "message": "",
        "started_at": 1.0,
        "terminated": run if state == "terminated" else None,
        "last_terminated": None,
        "restart_count": 0,
        "started": state == "running",
        "ready": state == "running",
        "container_id": "x",
    }
    made = {"version": 1, "uid": uid, "sequence": sequence, "job_id": "101", "node": "c1", "host_ip": "10.0.0.1"}
    made |= {"pod_ip": "10.244.0.2", "started_at": 1.0, "finished_at": None, "ended": None, "events": []}
    return {**made, "containers": {"c": container}, **more}


async def running(world: path.World, name: str = "p", **spec: Any) -> str:
    """A pod that runs, with its agent on the line; its UID."""
    uid = world.create(name, **spec)
    await world.until(lambda: uid in world.allocator.submitted)
    world.allocator.say("101", phase=allocations.Phase.STARTED, state="RUNNING")
    await world.agents.connected(uid)
    await world.agents.took_report(uid, report(uid, 1))
    await world.until(lambda: world.status(name).get("phase") == "Running")
    return uid


async def test_a_pod_is_submitted_once_and_succeeds(world: path.World) -> None:
    """From creation to Succeeded: one job, the report's word, no second submission."""
    uid = await running(world)
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    await world.until(lambda: world.status()["phase"] == "Succeeded")
    assert world.allocator.submitted == [uid]


async def test_a_queued_pod_is_pending_with_slurms_reason(world: path.World) -> None:
    """The queue's reason is in the status."""
    world.create()
    await world.until(lambda: world.status().get("message") == "Slurm job 101 is PENDING: Priority")
    assert world.status()["phase"] == "Pending"


async def test_deleting_a_queued_pod_cancels_its_job(world: path.World) -> None:
    """Nothing is left in the queue, and the object goes when the job has ended."""
    world.create()
    await world.until(lambda: bool(world.status().get("message")))
    await world.delete()
    await world.until(lambda: not world.exists())
    assert world.allocator.released == ["101"]


async def test_a_pod_deleted_as_its_job_starts_keeps_its_grace(world: path.World) -> None:
    """The agent has not dialled yet: the job is not cancelled under it, and it is asked as soon as it has."""
    uid = world.create()
    await world.until(lambda: uid in world.allocator.submitted)
    world.allocator.say("101", phase=allocations.Phase.STARTED, state="RUNNING")
    await world.until(lambda: "is PENDING" not in str(world.status().get("message")) and bool(world.status()))
    await world.delete(grace=9)
    await world.agents.connected(uid)
    await world.until(lambda: world.line.asked == [(uid, 9.0)])
    assert world.allocator.released == []


async def test_deleting_a_running_pod_asks_its_agent_first(world: path.World) -> None:
    """The grace is the agent's to keep; the job is not cancelled under it."""
    uid = await running(world)
    await world.delete(grace=7)
    await world.until(lambda: world.line.asked == [(uid, 7.0)])
    assert world.exists()
    ended = {"reason": "Deleted", "message": ""}
    await world.agents.took_report(uid, report(uid, 2, state="terminated", code=143, finished_at=2.0, ended=ended))
    await world.until(lambda: not world.exists())
    assert world.allocator.released == []


async def test_a_pod_that_vanishes_is_ended_at_once(world: path.World) -> None:
    """A forced deletion takes the object first; the job must not outlive it, nor the pod's files."""
    uid = await running(world)
    world.api.remove(f"{path.PODS}/p")
    await world.until(lambda: bool(world.line.asked))
    assert world.line.asked[0][1] == life.FORCED_GRACE_SECONDS
    await world.agents.took_report(uid, report(uid, 2, state="terminated", code=137, finished_at=2.0))
    await world.until(lambda: not Path(world.state.pod(uid).root).exists())
    assert world.preparer.forgotten == [uid]


async def test_a_deleted_pod_that_never_got_a_job_goes_at_once(world: path.World) -> None:
    """A pod that waits for a ConfigMap is deleted without a job or a stuck worker."""
    world.preparer.errors = [prepare.NotReady({"c": ("CreateContainerConfigError", "nope")}, seconds=60)]
    world.create()
    await world.until(lambda: world.preparer.asked == 1)
    await world.delete()
    await world.until(lambda: not world.exists())
    assert world.allocator.submitted == []


async def test_the_images_of_a_pod_that_an_earlier_kubelet_submitted_are_let_go_with_it(world: path.World) -> None:
    """`hpk prune` right after its deletion finds nobody who uses them."""
    uid = await running(world)
    await world.restart()
    await world.delete()
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    await world.until(lambda: not world.exists())
    await world.until(lambda: world.preparer.forgotten == [uid])


async def test_what_keeps_a_pod_waiting_is_in_its_containers(world: path.World) -> None:
    """The waiting reason of the container is the kubelet's."""
    world.preparer.errors = [prepare.NotReady({"c": ("ErrImagePull", "no such image")}, seconds=60)]
    world.create()
    await world.until(lambda: bool(world.status().get("containerStatuses")))
    waiting = world.status()["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "ErrImagePull", "message": "no such image"}


async def test_a_refusal_of_sbatch_fails_the_pod_in_its_own_words(world: path.World) -> None:
    """A lasting refusal is final; nothing is submitted again."""
    world.allocator.refusals = [errors.JobRefused("sbatch: error: invalid partition specified: gpuu (known: gpu)")]
    world.create()
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert "invalid partition specified: gpuu (known: gpu)" in world.status()["message"]
    assert world.allocator.submitted == []


async def test_a_submission_whose_answer_was_lost_is_not_repeated(world: path.World) -> None:
    """Slurm is asked for the job before another is submitted."""
    world.allocator.refusals = [errors.SlurmUnavailable("timed out", may_have_succeeded=True)]
    uid = world.create()
    world.allocator.found[uid] = "101"
    world.allocator.jobs["101"] = allocations.AllocationState(
        phase=allocations.Phase.QUEUED, state="PENDING", reason="Resources"
    )
    await world.until(lambda: "Slurm job 101" in str(world.status().get("message")))
    assert world.allocator.submitted == []


async def test_a_lost_submission_that_slurm_takes_up_late_is_not_repeated(world: path.World) -> None:
    """Slurm is asked once more right before the next try: a busy slurmctld does what sbatch gave up."""
    world.allocator.refusals = [errors.SlurmUnavailable("timed out", may_have_succeeded=True)]
    uid = world.create()
    await world.until(lambda: world.allocator.looked == [uid])
    world.allocator.found[uid] = "101"
    world.allocator.jobs["101"] = allocations.AllocationState(
        phase=allocations.Phase.QUEUED, state="PENDING", reason="Resources"
    )
    await world.until(lambda: "Slurm job 101" in str(world.status().get("message")))
    assert world.allocator.submitted == []


async def test_a_pod_that_waits_for_its_image_holds_no_other_up(world: path.World) -> None:
    """Few submit at once, but any number prepare."""
    world.preparer.held["slow"] = asyncio.Event()
    world.create("slow")
    await world.until(lambda: world.preparer.asked == 1)
    quick = world.create("quick")
    await world.until(lambda: world.allocator.submitted == [quick])


async def test_a_pod_deleted_while_it_is_prepared_goes_at_once(world: path.World) -> None:
    """Nobody waits for the image of a pod that nobody wants any more, and no job is made."""
    world.preparer.held["p"] = asyncio.Event()
    world.create()
    await world.until(lambda: world.preparer.asked == 1)
    await world.delete()
    await world.until(lambda: not world.exists())
    assert world.allocator.submitted == []


async def test_a_temporary_refusal_is_tried_again(world: path.World) -> None:
    """A submit limit keeps the pod Pending, and it runs in the end."""
    world.allocator.refusals = [errors.SlurmUnavailable("QOSMaxSubmitJobPerUserLimit")] * 3
    uid = world.create()
    await world.until(lambda: world.allocator.submitted == [uid])


async def test_a_pod_that_has_run_and_was_forgotten_is_not_run_again(world: path.World) -> None:
    """etcd may have lost the last moment before its node died: the pod's deletion, but not its directory's."""
    uid = await running(world, restartPolicy="Always")
    await world.stop()
    shutil.rmtree(world.state.pod(uid).root)
    await world.restart()
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "Lost"
    assert world.allocator.submitted == [uid]


async def test_a_kubelet_that_restarts_adopts_what_runs(world: path.World) -> None:
    """The job is found again, its report read from the file, and nothing is submitted twice."""
    uid = await running(world)
    jobdir.write_json(world.state.pod(uid).report, report(uid, 5, state="terminated", code=3, finished_at=2.0))
    world.allocator.found[uid] = "101"
    await world.restart()
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert world.allocator.submitted == [uid]


async def test_a_cancelled_job_fails_the_pod_with_the_reason(world: path.World) -> None:
    """What Slurm ended is Failed, whatever the restart policy, and is not run again; an event says so too."""
    uid = await running(world, restartPolicy="Always")
    await world.agents.disconnected(uid)
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "Evicted"
    assert "cancelled" in world.status()["message"]
    assert [event.message for event in world.told() if event.reason == "Evicted"] == [world.status()["message"]]
    assert world.allocator.submitted == [uid]


async def test_no_event_blames_slurm_for_a_pod_that_is_deleted_in_the_queue(world: path.World) -> None:
    """Its job is cancelled, by us."""
    world.create()
    await world.until(lambda: world.allocator.submitted != [])
    world.allocator.say("101", phase=allocations.Phase.QUEUED, state="PENDING")
    await world.delete()
    await world.until(lambda: not world.exists())
    assert "Evicted" not in {event.reason for event in world.told()}


async def was_signalled(world: path.World, uid: str, *, skew: float = 0.0) -> None:
    """The agent says that Slurm has ended it."""
    ended = {"reason": "Signalled", "message": "Slurm ends the job"}
    over = report(uid, 2, state="terminated", code=143, finished_at=world.clock.time() + skew, ended=ended)
    await world.agents.took_report(uid, over)


@pytest.mark.parametrize("skew", [120.0, -120.0])
async def test_slurms_word_is_waited_for_by_our_own_watch(world: path.World, skew: float) -> None:
    """An agent whose clock is off, and which could not learn that, neither hurries nor delays its pod's end."""
    uid = await running(world)
    await was_signalled(world, uid, skew=skew)
    await world.passes(life.SLURM_WORD_SECONDS - 1)
    assert world.status()["phase"] == "Running"
    await world.until(lambda: world.status()["phase"] == "Failed", seconds=life.SLURM_WORD_SECONDS)


async def test_a_job_that_slurm_is_still_ending_has_its_reason_from_slurm(world: path.World) -> None:
    """However long the site's epilog takes: only then Slurm says what it did."""
    uid = await running(world)
    world.allocator.say("101", phase=allocations.Phase.STARTED, is_ending=True, state="COMPLETING")
    await was_signalled(world, uid)
    await world.passes(life.COMPLETING_SECONDS / 2)
    assert world.status()["phase"] == "Running"
    world.allocator.say("101", phase=allocations.Phase.QUEUED, state="PENDING", reason="BeginTime")
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert "was requeued" in world.status()["message"]


@pytest.mark.parametrize("how", ["never says", "is deleted"])
async def test_slurm_is_not_waited_for_for_ever(world: path.World, how: str) -> None:
    """A job that is stuck in its end; nobody needs a reason for a pod that is deleted."""
    uid = await running(world)
    world.allocator.say("101", phase=allocations.Phase.STARTED, is_ending=True, state="COMPLETING")
    if how == "is deleted":
        await world.delete()
    await was_signalled(world, uid)
    await world.until(lambda: not world.exists() or world.status()["phase"] == "Failed")


async def test_silence_of_slurm_changes_nothing(world: path.World) -> None:
    """UNKNOWN is not gone: a pod whose job Slurm does not speak of stays as it is."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    world.allocator.say("101", phase=allocations.Phase.UNKNOWN)
    await world.agents.connected(uid)
    await world.agents.took_report(uid, report(uid, 2, pod_ip="10.244.0.9"))
    await world.until(lambda: world.status()["podIP"] == "10.244.0.9")
    assert world.status()["phase"] == "Running"


async def test_an_overwritten_status_is_put_right(world: path.World) -> None:
    """Somebody else's Ready=False does not stay."""
    await running(world)
    false = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Outage"}]}}
    await world.api.patch(f"{path.PODS}/p/status", false)
    await world.until(lambda: {"Ready": "True"}.items() <= conditions(world).items())


def conditions(world: path.World) -> dict[str, str]:
    """The pod's conditions by type."""
    return {c["type"]: c["status"] for c in world.status()["conditions"]}


async def test_a_queued_pod_past_its_deadline_fails_and_leaves_the_queue(world: path.World) -> None:
    """activeDeadlineSeconds counts from the start time, in the queue too."""
    world.create(activeDeadlineSeconds=0)
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"
    assert "DeadlineExceeded" in {event.reason for event in world.told()}


async def test_a_pod_past_its_deadline_whose_agent_does_not_listen_fails_when_its_job_has_ended(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs must not run on beside its replacement; and no container of a failed pod seems to run for ever."""
    await running(world, terminationGracePeriodSeconds=0)
    cancelled: list[str] = []

    async def release(allocation: allocations.Allocation, **_: Any) -> None:
        cancelled.append(allocation.job_id)  # Slurm takes its KillWait

    monkeypatch.setattr(world.allocator, "release", release)
    await world.api.patch(f"{path.PODS}/p", {"spec": {"activeDeadlineSeconds": 1}})
    await world.until(lambda: len(cancelled) > 1)
    assert world.status()["phase"] == "Running"
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"
    assert "terminated" in world.status()["containerStatuses"][0]["state"]


async def test_one_pods_trouble_is_not_anothers(world: path.World) -> None:
    """An error that nobody foresaw stays with its pod, and is tried again."""
    world.preparer.errors = [errors.HpkError("a surprise")]
    with testing.capture_logs() as logs:  # a traceback with all its values takes long to print
        world.create("bad")
        await world.until(lambda: world.preparer.asked >= 1)
        good = world.create("good")
        await world.until(lambda: good in world.allocator.submitted)
    assert any("a surprise" in str(line.get("error")) for line in logs)


async def test_a_round_that_raises_is_told_on_the_pod(world: path.World) -> None:
    """Whoever waits for it reads why, though nobody foresaw that; one that cannot be read is no exception."""
    world.preparer.errors = [ValueError("invalid literal")]  # type: ignore[list-item]
    world.api.fail(errors.ApiUnavailable("away"), verb="patch")  # which is no fault of the pod's
    with testing.capture_logs():
        uid = world.create()
        await world.until(lambda: uid in world.allocator.submitted)
        told = world.told()
        world.create("torn", terminationGracePeriodSeconds="soon")
        await world.until(lambda: bool(world.recorder._waiting))
        told += world.told()
    failed = [event for event in told if event.reason == "FailedSync"]
    assert [(event.name, event.kind) for event in failed] == [("p", "Warning"), ("torn", "Warning")]
    assert failed[0].message == "Cannot proceed with the pod, will try again: ValueError: invalid literal"
    assert "$.spec.terminationGracePeriodSeconds" in failed[1].message


async def test_what_fails_beside_a_pod_s_rounds_is_told_on_it(world: path.World) -> None:
    """Such as an ephemeral container that is made ready."""

    async def fail() -> None:
        raise LookupError("gone")

    uid = await running(world)
    world.told()
    with testing.capture_logs():
        await world.pods.beside(uid, fail)
    assert [event.reason for event in world.told()] == ["FailedSync"]


async def test_work_beside_rounds_ends_with_the_kubelet(world: path.World) -> None:
    """Nothing that belongs to a pod runs on after the kubelet has stopped."""
    uid = await running(world)
    task = world.pods.beside(uid, lambda: asyncio.sleep(3600.0))
    await asyncio.sleep(0)
    await world.stop()
    assert task.cancelled()


async def test_a_pod_that_is_refused_gets_no_job(world: path.World) -> None:
    """Refused by name: Failed, with the field in the message."""
    world.create(hostPID=True)
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert "spec.hostPID" in world.status()["message"]
    assert world.allocator.submitted == []


async def test_finished_pods_leave_no_worker(world: path.World) -> None:
    """Memory does not grow with what is over."""
    uid = await running(world)
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: not world.pods._workers)
    assert world.agents.newest(uid) is None


def replica(world: path.World, name: str) -> str:
    """A pod of a ReplicaSet; its UID."""
    owner = {"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    spec = {"nodeName": "hpk", "containers": [{"name": "c", "image": "i"}]}
    meta = {"name": name, "namespace": "ns", "ownerReferences": [owner]}
    return str(world.api.put(f"{path.PODS}/{name}", {"metadata": meta, "spec": spec})["metadata"]["uid"])


async def test_a_replica_waits_where_another_was_refused_for_good(world: path.World) -> None:
    """It stays Pending, tells sbatch's words, and is submitted when its turn has come."""
    world.gate._pauses["refused"] = backoff.BackoffPolicy(first_seconds=0.3, cap_seconds=0.3)
    world.allocator.refusals = [errors.JobRefused("Invalid account")]
    for name in ("first", "second"):
        replica(world, name)
        await world.until(lambda: world.status("first").get("phase") == "Failed")
    assert world.allocator.submitted == []
    await world.until(lambda: len(world.allocator.submitted) == 1)
    assert world.status("second").get("phase") != "Failed"
    assert world.preparer.asked == 2


async def test_a_replica_that_another_one_s_failure_holds_does_not_blame_sbatch(world: path.World) -> None:
    """The other was submitted, and failed at once."""
    uid = replica(world, "first")
    await world.until(lambda: world.allocator.submitted == [uid])
    world.gate._pauses["failed"] = backoff.BackoffPolicy(first_seconds=60.0)
    world.gate.failed_at_once(world.pods._workers[uid]._launch.lanes, "pod ns/first failed at once")
    second = replica(world, "second")
    await world.until(lambda: world.gate_holds(second))
    (held,) = [event for event in world.told() if event.reason == "FailedSubmit"]
    assert held.message == "Held because of another pod's error: pod ns/first failed at once"


async def test_a_job_that_slurm_forgot_is_asked_for_in_accounting(world: path.World) -> None:
    """A kubelet that was away longer than slurmctld remembers still tells the true reason."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    world.allocator.accounted["101"] = allocations.AllocationState(
        phase=allocations.Phase.ENDED, cause=allocations.Cause.NODE_FAILED, state="NODE_FAIL"
    )
    world.allocator.say("101", phase=allocations.Phase.GONE)
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert "node failed" in world.status()["message"]


@pytest.mark.parametrize(("silent", "phase"), [(2, "Succeeded"), (10**6, "Failed")])
async def test_a_slurm_that_does_not_say_how_a_job_ended_is_asked_again(
    world: path.World, silent: int, phase: str
) -> None:
    """Its exit code may be all that tells of a success; a terminal phase is never taken back. But not for ever."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    world.allocator.silent = silent
    ended: dict[str, Any] = {
        "phase": allocations.Phase.ENDED,
        "cause": allocations.Cause.FINISHED,
        "state": "FAILED",
    }
    world.allocator.accounted["101"] = allocations.AllocationState(exit_code=records.UNRECORDED["Succeeded"], **ended)
    world.allocator.say("101", **ended)
    await world.until(lambda: world.status()["phase"] != "Running")
    assert world.status()["phase"] == phase


async def test_one_answer_that_lacks_a_job_ends_no_pod(world: path.World) -> None:
    """Its agent is on the line: the pod runs, whatever Slurm has forgotten; and what Slurm says later counts."""
    uid = await running(world)
    for phase in (allocations.Phase.GONE, allocations.Phase.STARTED):
        world.allocator.say("101", phase=phase, state="RUNNING")
        await world.agents.took_report(uid, report(uid, 2, pod_ip=f"10.0.0.{len(phase.value)}"))
        await world.passes(life.LINK_SILENCE_SECONDS + 1)
    assert (world.line.asked, world.status()["phase"]) == ([], "Running")
    await world.agents.disconnected(uid)
    await world.passes(life.LINK_SILENCE_SECONDS + 1)
    assert world.status()["phase"] == "Running"
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "Evicted"


async def test_slurms_word_on_a_job_that_one_answer_lacked_counts(world: path.World) -> None:
    """Also where it is the next thing that Slurm says; and the agent has as long for its last word as any."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    one = world.pods._workers[uid]
    world.allocator.say("101", phase=allocations.Phase.GONE)
    await world.until(lambda: one._observer._ended_at is not None)
    world.allocator.say("101", phase=allocations.Phase.STARTED, state="RUNNING")
    await world.until(lambda: one._observer._ended_at is None)
    world.allocator.say("101", phase=allocations.Phase.GONE)
    await world.until(lambda: one._observer._ended_at is not None)
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "Evicted"


async def test_slurm_is_asked_again_for_a_job_that_it_has_forgotten_though_its_agent_is_there(
    world: path.World,
) -> None:
    """Its node's slurmd has died: where accounting does not answer at once, nothing else would make a round."""
    await running(world)
    world.allocator.silent = 1
    world.allocator.accounted["101"] = allocations.AllocationState(
        phase=allocations.Phase.ENDED, cause=allocations.Cause.NODE_FAILED, state="NODE_FAIL"
    )
    world.allocator.say("101", phase=allocations.Phase.GONE)
    await world.until(lambda: world.line.reasons == ["Signalled"])


@pytest.mark.parametrize(
    ("printed", "reason", "words"),
    [
        ("apptainer: command not found", "ContainerStatusUnknown", "apptainer: command not found"),
        ("slurmstepd: error: StepId=7.batch exceeded memory limit (9 > 8)", "OOMKilled", "memory"),
    ],
)
async def test_what_a_job_printed_last_is_in_the_status(
    world: path.World, printed: str, reason: str, words: str
) -> None:
    """A job whose agent never came to life tells its owner why."""
    uid = world.create()
    await world.until(lambda: uid in world.allocator.submitted)
    jobdir.write_bytes(world.state.pod(uid).output, f"stages script=1\n{printed}\n\n".encode())
    world.allocator.say("101", phase=allocations.Phase.STARTED, state="RUNNING")
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="FAILED")
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert world.status()["reason"] == reason
    assert words in world.status()["message"]


async def test_an_exit_code_tells_how_a_pod_ended_where_its_home_was_full(world: path.World) -> None:
    """No report came of its end, by the link or by the disk: it has succeeded all the same."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    told = {"state": "FAILED", "exit_code": records.UNRECORDED["Succeeded"]}
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, **told)
    await world.until(lambda: world.status()["phase"] != "Running")
    assert world.status()["phase"] == "Succeeded"


async def test_a_deadline_ends_the_preparation(world: path.World) -> None:
    """A pod that may be active for so long fails on time, though its image has not come."""
    world.preparer.held["p"] = asyncio.Event()
    world.create(activeDeadlineSeconds=1)
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"


async def test_of_two_jobs_that_one_is_followed_which_runs_the_pod(world: path.World) -> None:
    """Sbatch's answer was lost, and both jobs came: the pod's job is that which has claimed it."""
    uid = world.create()
    await world.until(lambda: uid in world.allocator.submitted)
    world.allocator.claims[uid] = "100"
    world.allocator.say("100", phase=allocations.Phase.STARTED, state="RUNNING")
    await world.agents.connected(uid)
    await world.agents.took_report(uid, report(uid, 1, job_id="100"))
    await world.until(lambda: world.status().get("phase") == "Running" and world.allocator.released == ["101"])
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0, job_id="100"))
    await world.until(lambda: world.status()["phase"] == "Succeeded")


async def test_a_job_that_left_the_pod_to_another_is_not_its_end(world: path.World) -> None:
    """The second job ends at once without a report, before the first one's has come."""
    uid = world.create()
    await world.until(lambda: uid in world.allocator.submitted)
    world.allocator.claims[uid] = "100"
    world.allocator.say("100", phase=allocations.Phase.STARTED, state="RUNNING")
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: "100" in world.allocator._watches)
    await world.agents.took_report(uid, report(uid, 1, state="terminated", finished_at=2.0, job_id="100"))
    await world.until(lambda: world.status()["phase"] == "Succeeded")


async def test_a_pod_that_outlives_its_job_is_ended_before_it_is_failed(world: path.World) -> None:
    """A node's slurmd died: Slurm gives the job up, but its processes run on, and a replacement would run beside."""
    uid = await running(world)
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.NODE_FAILED, state="NODE_FAIL")
    await world.until(lambda: world.line.reasons == ["Signalled"])
    assert world.status()["phase"] == "Running"
    ended = {"reason": "Signalled", "message": ""}
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0, ended=ended))
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "Evicted"
    assert "node failed" in world.status()["message"]


@pytest.mark.parametrize("how", ["cannot be read", "is torn"])
async def test_a_plan_that_cannot_be_read_makes_no_second_job(world: path.World, how: str) -> None:
    """One failed read after a restart: the next round looks again, and submits nothing."""
    uid = await running(world)
    await world.stop()
    plan = world.state.pod(uid).plan
    shutil.move(plan, f"{plan}.old")
    if how == "cannot be read":
        jobdir.make_directory(plan)
    else:
        jobdir.write_bytes(plan, b"")
    world.allocator.found[uid], world.allocator.looked = "101", []
    with testing.capture_logs():
        await world.restart()
        if how == "cannot be read":
            await world.until(lambda: len(world.allocator.looked) >= 2)
            shutil.rmtree(plan)
        await world.until(lambda: "101" in world.allocator._watches)
    assert world.allocator.submitted == [uid]


async def test_at_a_limit_each_end_of_a_job_prepares_one_pod(world: path.World) -> None:
    """Forty pods, five jobs at a time: what a pod needs is made once it can go, and is never in memory for many."""
    long = backoff.BackoffPolicy(first_seconds=3600.0, cap_seconds=3600.0)
    world.gate._pauses["limits"] = long
    world.allocator.limit = 5
    uids = [world.create(f"p{number}") for number in range(40)]
    await world.until(lambda: len(world.allocator.submitted) == 5 and world.allocator.refused == 1)
    await world.until(
        lambda: len(world.gate._lanes[admit.derive(world.pod("p0"), admit.Cluster(name="hpk")).lanes[0]].held) == 35
    )
    before = len(world.preparer.prepared)
    assert before <= 5 + 4 + 1
    written = [uid for uid in uids if jobdir.read_json(world.state.pod(uid).plan)]
    assert len(written) == 5 + 1  # whoever waits has written nothing yet
    for done in range(35):
        uid = world.allocator.submitted[done]
        job_id = str(101 + done)
        over = report(uid, 2, state="terminated", finished_at=2.0, job_id=job_id)
        await world.agents.took_report(uid, over)
        world.allocator.say(job_id, phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
        await world.until(lambda done=done: len(world.allocator.submitted) == done + 6)  # type: ignore[misc]
    assert sorted(world.allocator.submitted) == sorted(uids)
    assert (len(world.preparer.prepared) - before, world.allocator.refused) == (35, 1)
    assert world.preparer.most_at_once <= 4


async def test_the_deletion_of_finished_pods_gives_nobody_a_place(world: path.World) -> None:
    """Their jobs ended long ago: at a limit nothing is prepared and submitted in vain for each that is cleared away."""
    world.gate._pauses["limits"] = backoff.BackoffPolicy(first_seconds=3600.0, cap_seconds=3600.0)
    uid = await running(world, "done")
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: not world.pods._workers)
    world.allocator.found[uid] = "101"
    world.allocator.limit = 1
    world.create("runs")
    await world.until(lambda: len(world.allocator.submitted) == 2)
    for name in ("p1", "p2"):
        held = world.create(name)
        await world.until(lambda held=held: world.gate_holds(held))  # type: ignore[misc]
    before = len(world.preparer.prepared)
    await world.delete("done")
    await world.until(lambda: not Path(world.state.pod(uid).root).exists() and not world.exists("done"))
    await world.passes(60)
    assert (len(world.preparer.prepared), world.allocator.refused) == (before, 1)


async def test_the_end_of_a_job_that_an_earlier_kubelet_submitted_gives_a_place(world: path.World) -> None:
    """It counted against the limit until now."""
    uid = await running(world, "old")
    world.allocator.found[uid] = "101"
    await world.restart()
    world.gate._pauses["limits"] = backoff.BackoffPolicy(first_seconds=3600.0, cap_seconds=3600.0)
    world.allocator.limit = 1
    held = world.create("new")
    await world.until(lambda: world.gate_holds(held))
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: world.allocator.submitted == [uid, held])


async def test_a_pod_deleted_while_it_waits_for_a_place_goes_at_once(world: path.World) -> None:
    """Few are prepared at a time; nobody waits for a place for what nobody wants any more."""
    for _ in range(4):
        await world.used.preparations.acquire()
    world.create()
    await world.until(lambda: world.preparer.asked == 1)
    await world.delete()
    await world.until(lambda: not world.exists())
    assert world.allocator.submitted == []


async def test_a_pod_deleted_at_its_turn_leaves_the_place_to_the_next(world: path.World) -> None:
    """No sbatch was called for it: nothing is known of the limit, and the free place is another's."""
    world.gate._pauses["limits"] = backoff.BackoffPolicy(first_seconds=3600.0, cap_seconds=3600.0)
    world.allocator.limit = 1
    uid = world.create("p0")
    await world.until(lambda: world.allocator.submitted == [uid])
    for name in ("p1", "p2"):
        world.create(name)
        await world.until(lambda name=name: world.gate_holds(world.pod(name).metadata.uid))  # type: ignore[misc]
    await world.used.submissions.acquire()
    over = report(uid, 2, state="terminated", finished_at=2.0)
    await world.agents.took_report(uid, over)
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: world.preparer.prepared.count("p1") == 2)
    first, known = world.pod("p1").metadata.uid, world.pods.informer.objects
    await world.delete("p1")
    await world.until(lambda: "deletionTimestamp" in known[first]["metadata"])
    world.used.submissions.release()
    second = world.pod("p2").metadata.uid
    await world.until(lambda: world.allocator.submitted == [uid, second])


async def off_the_line(world: path.World) -> str:
    """A running pod whose agent's stream has ended; its UID."""
    uid = await running(world)
    await world.agents.disconnected(uid)
    return uid


def wish(world: path.World, uid: str) -> Any:
    """What was left for the pod's agent."""
    return jobdir.read_json(world.state.pod(uid).end_request)


async def test_a_deleted_pod_keeps_its_grace_though_its_agent_is_off_the_line(world: path.World) -> None:
    """The wish is left in its directory, the job is not cancelled under it, and its report is read from the file."""
    uid = await off_the_line(world)
    await world.delete(grace=600)
    await world.until(lambda: wish(world, uid) == {"grace_seconds": 600.0, "reason": "Deleted", "message": ""})
    await world.until(lambda: world.pods._workers[uid]._termination.cancel_at is not None)
    assert (world.pods._workers[uid]._termination.cancel_at or 0.0) > world.clock.monotonic() + 600
    ended = {"reason": "Deleted", "message": ""}
    over = report(uid, 2, state="terminated", code=143, finished_at=2.0, ended=ended)
    jobdir.write_json(world.state.pod(uid).report, over)
    world.pods.mark(uid)
    await world.until(lambda: not world.exists())
    assert world.allocator.released == []


async def test_a_job_whose_agent_hears_nothing_is_cancelled_when_the_grace_is_over(world: path.World) -> None:
    """It hangs, or its node is cut off."""
    uid = await off_the_line(world)
    await world.delete(grace=2)
    await world.until(lambda: wish(world, uid) is not None)
    assert world.allocator.released == []
    await world.until(lambda: world.allocator.released == ["101"])


async def test_a_job_whose_agent_takes_no_message_is_cancelled_when_the_grace_is_over(world: path.World) -> None:
    """It is on the line and reads nothing."""
    await running(world)
    world.line.is_full = True
    await world.delete(grace=1)
    await world.until(lambda: world.allocator.released == ["101"])


async def test_an_agent_that_took_no_message_is_soon_asked_again(world: path.World) -> None:
    """It was busy for a moment, and the pod's grace is long."""
    uid = await running(world)
    world.line.is_full = True
    await world.delete(grace=600)
    await world.until(lambda: world.pods._workers[uid]._termination.cancel_at is not None)
    await world.passes(0.2)  # the rounds that the deletion and its status make are over
    world.line.is_full = False
    await world.until(lambda: world.line.asked == [(uid, 600.0)], seconds=2 * termination.OFF_LINE_LOOK_SECONDS)


@pytest.mark.parametrize("grace", [0, 1])
async def test_a_forced_deletion_waits_for_no_agent_off_the_line(world: path.World, grace: int) -> None:
    """Its job is cancelled at once."""
    await off_the_line(world)
    await world.delete(grace=grace)
    await world.until(lambda: world.allocator.released == ["101"])


async def test_an_agent_is_signalled_where_no_wish_can_be_left(world: path.World) -> None:
    """A full home, or a directory that is gone, does not cut the pod's grace."""
    uid = await off_the_line(world)
    shutil.rmtree(world.state.pod(uid).root)
    await world.delete(grace=600)
    await world.until(lambda: world.allocator.signalled == ["101"])
    assert world.allocator.released == []


async def test_an_agent_that_comes_back_is_asked_by_the_link(world: path.World) -> None:
    """The kubelet moved, and the agent has found the new one."""
    uid = await off_the_line(world)
    await world.delete(grace=30)
    await world.until(lambda: wish(world, uid) is not None)
    assert world.line.asked == []
    await world.agents.connected(uid)
    await world.until(lambda: world.line.asked == [(uid, 30.0)])


async def test_an_agent_whose_connection_broke_unnoticed_learns_of_the_deletion_all_the_same(world: path.World) -> None:
    """The kubelet had asked it by a stream that led nowhere, for half a minute."""
    uid = await running(world)
    await world.delete(grace=30)
    await world.until(lambda: world.line.asked == [(uid, 30.0)])
    await world.agents.disconnected(uid)
    await world.until(lambda: wish(world, uid) is not None)
    await world.agents.connected(uid)
    await world.until(lambda: world.line.asked == [(uid, 30.0)] * 2)
    assert world.allocator.released == []


async def test_a_deadline_that_is_set_on_a_running_pod_counts(world: path.World) -> None:
    """The agent knows only the plan's: the kubelet asks it to end the pod, for this reason."""
    uid = await running(world)
    await world.api.patch(f"{path.PODS}/p", {"spec": {"activeDeadlineSeconds": 1}})
    await world.until(lambda: world.line.reasons == ["DeadlineExceeded"])
    ended = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
    over = report(uid, 2, state="terminated", code=143, finished_at=2.0, ended=ended)
    await world.agents.took_report(uid, over)
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"


async def test_a_finished_pod_s_secrets_leave_the_home(world: path.World) -> None:
    """The plan goes when the job has ended; the logs and the report stay as long as the object does."""
    uid = await running(world)
    plan, script = Path(world.state.pod(uid).plan), Path(world.state.pod(uid).script)
    half = plan.with_name("spec.json.0a1b2c.tmp")
    half.write_text("as a kubelet leaves it that is killed while it writes")
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0))
    await world.until(lambda: world.status()["phase"] == "Succeeded")
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: not plan.exists() and not half.exists())
    await world.until(script.exists)


async def test_an_agents_last_word_has_its_time_though_slurm_is_slow_to_answer(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report lies in the pod's directory before Slurm has said how the job ended."""
    uid = await running(world)
    await world.agents.disconnected(uid)

    async def recall(_: allocations.Allocation) -> None:
        await asyncio.sleep(2 * life.LAST_WORD_SECONDS)
        jobdir.write_json(world.state.pod(uid).report, report(uid, 2, state="terminated", finished_at=2.0))

    monkeypatch.setattr(world.allocator, "recall", recall)
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="COMPLETED")
    await world.until(lambda: world.status()["phase"] != "Running")
    assert world.status()["phase"] == "Succeeded"


async def test_a_deadline_that_passed_unseen_is_not_the_reason_of_an_earlier_end(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sbatch's answer was lost, and Slurm was away; meanwhile the pod ran, and failed in its time."""
    is_away = True

    async def find(_: str) -> allocations.Allocation:
        if is_away:
            raise errors.SlurmUnavailable("slurmctld is away")
        return allocations.Allocation(job_id="101")

    monkeypatch.setattr(world.allocator, "find", find)
    world.allocator.refusals.append(errors.SlurmUnavailable("timed out", may_have_succeeded=True))
    uid = world.create(activeDeadlineSeconds=60)
    await world.passes(100)
    jobdir.write_json(world.state.pod(uid).report, report(uid, 2, state="terminated", code=1, finished_at=2.0))
    world.allocator.say("101", phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="FAILED")
    is_away = False
    await world.until(lambda: world.status().get("phase") == "Failed")
    assert "reason" not in world.status() or world.status()["reason"] is None


async def test_a_pod_has_started_when_it_was_first_seen_though_slurm_was_away(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline counts from there; a kubelet before this one has not written it down."""
    look, before = world.allocator.find, world.clock.time()

    async def find(uid: str) -> allocations.Allocation | None:
        if world.clock.time() < before + 100:
            raise errors.SlurmUnavailable("slurmctld is away")
        return await look(uid)

    monkeypatch.setattr(world.allocator, "find", find)
    jobdir.make_directory(world.state.pod(uid := world.create()).root)
    await world.until(lambda: uid in world.allocator.submitted and bool(world.pod().status.start_time))
    started_at = world.pod().status.start_time
    assert started_at is not None
    assert started_at.timestamp() < before + 10


@pytest.mark.parametrize("fault", [errors.SlurmUnavailable("slurmctld is away"), errors.Retryable("Stale file handle")])
async def test_an_agent_on_the_line_is_asked_to_end_though_nobody_says_whose_the_job_is(
    world: path.World, monkeypatch: pytest.MonkeyPatch, fault: errors.Retryable
) -> None:
    """Of two jobs another than ours runs the pod; Slurm, or the file system, is away."""
    uid = await running(world)

    async def claimant(_: str) -> allocations.Allocation:
        raise fault

    monkeypatch.setattr(world.allocator, "claimant", claimant)
    await world.agents.took_report(uid, report(uid, 2, job_id="100"))
    await world.delete(grace=5)
    await world.until(lambda: world.line.asked == [(uid, 5.0)])


async def test_a_deadline_is_the_reason_of_a_cancellation_whose_answer_was_lost(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has cancelled the job though scancel failed."""
    await running(world, terminationGracePeriodSeconds=0)

    async def release(allocation: allocations.Allocation, **_: Any) -> None:
        world.allocator.say(
            allocation.job_id,
            phase=allocations.Phase.ENDED,
            cause=allocations.Cause.CANCELLED,
            state="CANCELLED",
        )
        raise errors.SlurmUnavailable("timed out")

    monkeypatch.setattr(world.allocator, "release", release)
    await world.api.patch(f"{path.PODS}/p", {"spec": {"activeDeadlineSeconds": 1}})
    await world.until(lambda: world.status()["phase"] == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"


async def test_slurm_is_asked_for_a_silent_agents_job_though_the_api_server_is_away(
    world: path.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its end would be known, and its place given on, only when the API server is back."""
    uid = await running(world)
    asked: list[float] = []
    monkeypatch.setattr(world.allocator, "ask_soon", lambda *, after_seconds=0.0: asked.append(after_seconds))

    async def patch(*_: Any, **__: Any) -> Any:
        raise errors.ApiUnavailable("connection refused")

    monkeypatch.setattr(world.api, "patch", patch)
    ended = {"reason": "Deleted", "message": ""}
    await world.agents.took_report(uid, report(uid, 2, state="terminated", finished_at=2.0, ended=ended))
    await world.until(lambda: 0.0 in asked)
