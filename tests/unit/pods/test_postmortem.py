"""The end of a pod that its agent could neither write nor send."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from hpk import records
from hpk.agent.life import report as agent_report
from hpk.kube import v1
from hpk.pods import allocations, postmortem, status
from tests.unit.pods.test_worker import report


def pod() -> v1.Pod:
    """A pod of one container."""
    meta = {"name": "p", "namespace": "ns", "uid": "u"}
    return v1.pod({"metadata": meta, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}})


def said(exit_code: int, newest: Any, output: str = "") -> dict[str, Any]:
    """The status that follows from a job's exit code and output."""
    state = allocations.AllocationState(
        phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="FAILED", exit_code=exit_code
    )
    words = postmortem.LastWords(state, postmortem.last_line(output), output)
    told = postmortem.report(pod(), words, newest, now=3.0) or newest
    now = datetime.now(UTC)
    facts = status.StatusInputs(
        started_at=now, report=told, allocation=state, job_id="7", is_over=True, output=words.line
    )
    return status.status(pod(), facts, now=now)


@pytest.mark.parametrize("newest", [None, report("u", 1)])
def test_a_pod_that_succeeded_on_a_full_home_has_succeeded(newest: Any) -> None:
    """The exit code is all that Slurm keeps, and it is enough."""
    made = said(records.UNRECORDED["Succeeded"], newest)
    assert made["phase"] == "Succeeded"
    assert made["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_what_ended_a_pod_on_a_full_home_is_its_reason() -> None:
    """Its container's own end is not known."""
    made = said(records.UNRECORDED["DeadlineExceeded"], report("u", 1))
    assert (made["phase"], made["reason"]) == ("Failed", "DeadlineExceeded")


def test_another_exit_code_tells_nothing() -> None:
    """Apptainer's, bash's, or 0 of a script that never came to its agent."""
    for code in (0, 1, 137, 255):
        assert said(code, report("u", 1))["containerStatuses"][0]["state"]["terminated"]["reason"] == status.LOST


def test_the_last_report_is_read_from_the_job_s_output_where_that_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent prints it whole, events apart; the kubelet knows the container's own exit code."""
    last = report("u", 5, state="terminated", code=3, finished_at=2.0)
    plan: Any = {"containers": [{"name": "c", "kind": "app"}]}
    code = agent_report.exit_code(agent_report.AgentReporter(last, path="/nowhere"), plan, is_heard=False)
    printed = capsys.readouterr().out
    assert code == records.UNRECORDED["Failed"]
    made = said(code, report("u", 1), f"noise\n{printed}")
    assert made["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    torn = said(code, report("u", 1), printed[:40])
    assert torn["phase"] == "Failed"
    assert json.loads(printed.removeprefix(records.END_LINE))["events"] == []
