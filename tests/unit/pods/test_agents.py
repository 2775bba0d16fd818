"""What the kubelet knows of agents: by the stream, and by the file that they leave."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.pods import agents

if TYPE_CHECKING:
    from pathlib import Path

UID = "0b5e1c1e-0000-4000-8000-000000000001"


@pytest.mark.parametrize("ahead", [120.0, -120.0])
async def test_a_file_from_before_the_agent_knew_the_time_tells_none_that_cannot_be(
    tmp_path: Path, ahead: float
) -> None:
    """Neither before the pod's job was submitted nor after the file was read."""
    state = jobdir.StateDirectory(str(tmp_path))
    submitted_at = time.time() - 5
    (tmp_path / "pods" / UID).mkdir(parents=True)
    jobdir.write_json(state.pod(UID).submission, {"job_id": "1", "submitted_at": submitted_at})
    report: dict[str, Any] = {"uid": UID, "sequence": 1, "started_at": time.time() - 2 + ahead, "finished_at": None}
    event = {"number": 1, "at": time.time() - 1 + ahead}
    jobdir.write_json(state.pod(UID).report, report | {"containers": {}, "events": [event]})
    told = await agents.Agents(state, on_change=lambda _uid: None).read(UID)
    assert told is not None
    assert submitted_at <= told["started_at"] <= told["events"][0]["at"] <= time.time()
