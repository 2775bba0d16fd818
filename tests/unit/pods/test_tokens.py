"""A pod starts with a token that lives, however long it has queued, and keeps one that does."""

from __future__ import annotations

import base64
import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors, jobdir
from hpk.pods import tokens
from hpk.volumes import sources
from tests.fakes import path
from tests.unit.pods import test_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LATER = 2e9


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[path.World]:
    """A kubelet whose pods have one token, which is due."""
    async with path.World(tmp_path) as made:
        made.preparer.volumes = [
            {"name": "d", "kind": "empty_dir"},
            {"name": "v", "kind": "files", "files": [file("token", "old", renew_at=time.time() - 1), file("ca", "ca")]},
        ]
        yield made


def file(name: str, text: str, *, renew_at: float | None = None) -> dict[str, Any]:
    """A file of a plan."""
    token = {"audience": "vault", "expiration_seconds": 600, "renew_at": renew_at}
    data = base64.b64encode(text.encode()).decode()
    return {"path": name, "mode": 0o600, "data": data} | ({} if renew_at is None else {"token": token})


def texts(volumes: Any) -> list[str]:
    """What the files of the volumes hold."""
    return [base64.b64decode(one["data"]).decode() for volume in volumes for one in volume.get("files", [])]


def planned(world: path.World, uid: str) -> list[str]:
    """The same of the plan that the pod's job would read now."""
    plan = jobdir.read_json(world.state.pod(uid).plan)
    return texts(plan["volumes"]) if plan else []


def mode(file: str) -> int:
    """Who may read it."""
    return stat.S_IMODE(Path(file).stat().st_mode)


async def test_a_queued_pod_s_token_is_renewed_in_its_plan(world: path.World) -> None:
    """With what it was requested by; nothing else in the plan changes, and nobody else can read it."""
    world.preparer.tokens = [sources.IssuedToken("new", LATER)]
    uid = world.create()
    await world.until(lambda: planned(world, uid) == ["new", "ca"])
    assert world.preparer.tokens_asked == [("vault", 600)]
    assert mode(world.state.pod(uid).plan) == 0o600
    assert world.line.renewed == []


async def test_an_api_server_that_is_away_is_asked_again(world: path.World) -> None:
    """The pod waits on, as it was."""
    world.preparer.tokens = [errors.ApiUnavailable("away"), errors.Rejected("no"), sources.IssuedToken("new", LATER)]
    uid = world.create()
    await world.until(lambda: planned(world, uid) == ["new", "ca"])
    assert world.status()["phase"] == "Pending"


async def test_a_token_that_is_refused_is_told_on_the_pod(world: path.World) -> None:
    """Its service account is gone: the token will end, and the pod's owner reads why; an outage is not the pod's."""
    gone = errors.NotFound('serviceaccounts "robot" not found')
    world.preparer.tokens = [errors.ApiUnavailable("away"), gone, sources.IssuedToken("new", LATER)]
    uid = world.create()
    await world.until(lambda: planned(world, uid) == ["new", "ca"])
    (event,) = [event for event in world.told() if event.reason == "FailedMount"]
    assert 'serviceaccounts "robot" not found' in event.message


async def test_a_running_pod_s_agent_is_sent_the_files(world: path.World) -> None:
    """Only the volume that holds the token, once for each stream: another may have read the old plan."""
    world.preparer.tokens = [sources.IssuedToken("new", LATER)]
    uid = await test_worker.running(world)
    await world.until(lambda: [texts(volumes) for volumes in world.line.renewed] == [["new", "ca"]])
    await world.agents.disconnected(uid)
    await world.agents.connected(uid)
    await world.until(lambda: len(world.line.renewed) == 2)
    assert len(world.preparer.tokens_asked) == 1


async def test_an_older_agent_is_left_as_it_is(world: path.World) -> None:
    """It keeps its token, the plan gets the new one, and nobody tries without end."""
    world.line.is_old = True
    world.preparer.tokens = [sources.IssuedToken("new", LATER)]
    uid = await test_worker.running(world)
    await world.until(lambda: planned(world, uid) == ["new", "ca"])
    await world.agents.took_report(uid, test_worker.report(uid, 2, state="terminated", finished_at=2.0))
    await world.until(lambda: world.status()["phase"] == "Succeeded")
    assert world.line.renewed == []


async def test_a_pod_that_started_without_a_kubelet_gets_a_token(world: path.World) -> None:
    """The next kubelet finds in the plan that it is overdue."""
    world.preparer.tokens = [sources.IssuedToken("soon", LATER), sources.IssuedToken("new", LATER)]
    uid = world.create()
    await world.until(lambda: planned(world, uid) == ["soon", "ca"])
    await world.stop()
    plan = jobdir.read_json(world.state.pod(uid).plan)
    plan["volumes"][1]["files"][0]["token"]["renew_at"] = 1.0
    jobdir.write_json(world.state.pod(uid).plan, plan)
    world.allocator.found[uid] = "101"
    await world.restart()
    await world.agents.connected(uid)
    await world.agents.took_report(uid, test_worker.report(uid, 1))
    await world.until(lambda: [texts(volumes) for volumes in world.line.renewed] == [["new", "ca"]])


async def test_a_pod_without_tokens_asks_for_none(world: path.World) -> None:
    """Nor does its plan change."""
    world.preparer.volumes = []
    world.create()
    await world.until(lambda: bool(world.status().get("message")))
    assert world.preparer.tokens_asked == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_plan_that_was_removed_stays_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """What was cleared away because the pod is over is not written again, however close the two are."""
    state = jobdir.StateDirectory(str(tmp_path))
    used: Any = SimpleNamespace(state=state)
    made = tokens.Tokens("u", used)
    jobdir.make_directory(state.pod("u").root)
    where = Path(state.pod("u").plan)
    write = jobdir.write_json

    def slowly(path: str, value: Any) -> None:
        made.close()
        where.unlink()  # as the pod's worker does
        write(path, value)

    plan: Any = {"containers": []}
    if when == "meanwhile":
        where.touch()
        monkeypatch.setattr(jobdir, "write_json", slowly)
    made._write(plan)
    assert list(where.parent.iterdir()) == []
