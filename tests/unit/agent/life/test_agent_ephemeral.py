"""Containers that a user adds to a running pod: they run once, late, and nothing of the pod depends on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.boot import oci, processes, runs, users
from hpk.agent.life import leftovers
from tests import waiting
from tests.unit.agent.boot.test_oci import plan as oci_plan
from tests.unit.agent.life import test_pod

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

bench = test_pod.bench
UNTIL_TOLD = "until [ -e $W/go ]; do sleep 0.01; done"
FOREVER = "trap 'exit 7' TERM; touch $W/$$; while :; do sleep 0.01; done"


class FakeImages:
    """Mounts by a process, as squashfuse does."""

    def __init__(self) -> None:
        self.started_for: list[str] = []
        self.statuses: dict[str, int] = {}
        self._process = 0

    def start(self, file: str, *, offset: int) -> None:
        assert offset == 0
        if file not in self.started_for:
            self.started_for.append(file)
            self._process = processes.spawn(["/bin/true"])

    def started(self, file: str, *, offset: int) -> int:
        return offset if file in self.statuses else self._process

    def settled(self, file: str, *, offset: int, status: int) -> None:
        assert offset == 0
        self.statuses[file] = status


def debug(name: str, script: str, **changes: Any) -> Any:
    """The plan of an ephemeral container."""
    more = {"image": "i", "image_id": "i@sha256:1", "image_file": "/i", "image_offset": 0, "restart_policy": "Never"}
    return test_pod.one(name, script, "ephemeral", **{**more, **changes})


def start(bench: test_pod.Bench, *containers: dict[str, Any], **changes: Any) -> tuple[asyncio.Task[None], FakeImages]:
    """A pod, and its images."""
    task = bench.start(*containers, **changes)
    bench.all.box.images = images = FakeImages()  # type: ignore[assignment]
    return task, images


async def test_it_runs_once_and_the_pod_takes_no_notice(bench: test_pod.Bench) -> None:
    """Its exit code and log are there, the same name is started once, and the pod ends as its own containers do."""
    task, images = start(bench, test_pod.one("c", UNTIL_TOLD), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    for _ in range(2):
        bench.pod.add(debug("d", "echo here; exit 5"))
    await waiting.until(lambda: bench.exit_code("d") == 5)
    bench.pod.add(debug("d", "exit 0"))
    (bench.directory / "go").touch()
    await test_pod.ends(task)
    assert bench.began == ["c", "d"]
    assert (bench.exit_code("c"), bench.exit_code("d"), bench.record("d")["restart_count"]) == (0, 5, 0)
    assert bench.record("d")["image_id"] == "i@sha256:1"
    assert bench.log("d").endswith(b" stdout F here\n")
    assert images.statuses == {"/i": 0}


async def test_the_pod_s_end_ends_it(bench: test_pod.Bench) -> None:
    """When the pod's own containers are done it gets the stop signal; it holds no sidecar up."""
    side = test_pod.one("s", FOREVER, "sidecar")
    task, _ = start(bench, side, test_pod.one("c", UNTIL_TOLD))
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    bench.pod.add(debug("d", FOREVER))
    await waiting.until(lambda: bench.record("d")["state"] == "running")
    await waiting.until(lambda: len(list(bench.directory.glob("[0-9]*"))) == 2)  # both have set their traps
    (bench.directory / "go").touch()
    await test_pod.ends(task)
    assert (bench.exit_code("d"), bench.exit_code("s"), bench.exit_code("c")) == (7, 7, 0)


async def test_a_pod_that_ends_takes_none(bench: test_pod.Bench) -> None:
    """One that comes too late is not in the report: it has not been started and will not be."""
    task, _ = start(bench, test_pod.one("c", FOREVER))
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    bench.pod.end("Deleted")
    bench.pod.add(debug("d", "true"))
    await test_pod.ends(task)
    assert "d" not in bench.all.reporter.report["containers"]


async def test_it_waits_for_the_container_whose_processes_it_shares(bench: test_pod.Bench) -> None:
    """While an init container runs the target does not: the status says so, and then it starts beside it."""
    init = test_pod.one("i", UNTIL_TOLD, "init")
    task, _ = start(bench, init, test_pod.one("c", FOREVER))
    await waiting.until(lambda: bench.record("i")["state"] == "running")
    bench.pod.add(debug("d", "true", target="c"))
    await waiting.until(lambda: bench.record("d")["reason"] == "CreateContainerError")
    assert "container c yet: it is not running" in bench.record("d")["message"]
    (bench.directory / "go").touch()
    await waiting.until(lambda: bench.exit_code("d") == 0)
    assert bench.neighbours == {"d": "c"}
    bench.pod.end("Deleted")
    await test_pod.ends(task)


async def test_a_target_that_has_ended_is_said(bench: test_pod.Bench) -> None:
    """Its processes are gone for good: the container fails by name, and the pod runs on."""
    task, _ = start(bench, test_pod.one("b", "true"), test_pod.one("c", FOREVER))
    await waiting.until(lambda: bench.exit_code("b") == 0)
    bench.pod.add(debug("d", "true", target="b"))
    await waiting.until(lambda: bench.exit_code("d") == 128)
    terminated = bench.record("d")["terminated"]
    assert terminated
    assert terminated["message"] == "Cannot share the processes of container b: it has ended"
    assert bench.record("c")["state"] == "running"
    bench.pod.end("Deleted")
    await test_pod.ends(task)


async def test_a_pod_that_ends_while_it_waits_is_not_held_up(bench: test_pod.Bench) -> None:
    """A target that never came does not keep the pod."""
    task, _ = start(bench, test_pod.one("i", FOREVER, "init"), test_pod.one("c", FOREVER))
    await waiting.until(lambda: bench.record("i")["state"] == "running")
    bench.pod.add(debug("d", "true", target="c"))
    await waiting.until(lambda: bench.record("d")["reason"] == "CreateContainerError")
    bench.pod.end("Deleted")
    await test_pod.ends(task)
    assert bench.began == ["i"]


async def test_an_image_that_the_sandbox_cannot_see_is_named(bench: test_pod.Bench) -> None:
    """A SIF file of the user's is on a path of the node, which only some pods have."""
    task, images = start(bench, test_pod.one("c", FOREVER))
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    bench.pod.add(debug("d", "true", image="/x/a.sif", image_file=f"{jobdir.SANDBOX_HOST}/x/a.sif"))
    await waiting.until(lambda: bench.exit_code("d") == 128)
    terminated = bench.record("d")["terminated"]
    assert terminated
    assert terminated["message"].startswith("Cannot see the image /x/a.sif in this pod")
    assert images.started_for == []
    bench.pod.end("Deleted")
    await test_pod.ends(task)


def configuration(neighbour: oci.Neighbour, *, uid: int, one_id: str | None) -> dict[str, Any]:
    """The configuration of a container that shares processes."""
    return oci.configuration(
        oci_plan(),
        root="/root",
        identity=users.ContainerUser(uid, uid, []),
        argv=["true"],
        env=[],
        binds=[],
        owns_network=True,
        oom_score=500,
        one_id=one_id,
        neighbour=neighbour,
    )


def test_its_pid_namespace_is_the_target_s() -> None:
    """And nothing else: its files are its own; users are the pod's."""
    made = configuration(oci.Neighbour("container c", processes="/p", users="/u", ids=(1, 1)), uid=5, one_id=None)
    assert made["linux"]["namespaces"] == [{"type": "pid", "path": "/p"}, {"type": "mount"}]


@pytest.mark.parametrize(("uid", "users_path"), [(0, None), (7, "/u")])
def test_with_one_id_root_and_the_same_user_may_look(uid: int, users_path: str | None) -> None:
    """Root is over the target's user namespace, the same user in it."""
    made = configuration(
        oci.Neighbour("container c", processes="/p", users="/u", ids=(7, 7)), uid=uid, one_id="/private"
    )
    paths = {one["type"]: one.get("path") for one in made["linux"]["namespaces"]}
    assert paths.get("user") == users_path
    assert ("uidMappings" in made["linux"]) == bool(users_path)  # crun must know that there is no root in it


def test_with_one_id_another_user_may_not_and_is_told() -> None:
    """The kernel would refuse, in words that help nobody."""
    with pytest.raises(ValueError, match=r"processes of container c, whose user is 7, as user 8.*runAsUser to 7 or 0"):
        configuration(oci.Neighbour("container c", processes="/p", users="/u", ids=(7, 7)), uid=8, one_id="/private")


def test_what_it_leaves_behind_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in its mount namespace, and nothing else; a run with processes of its own needs no look."""
    spaces = {"1": "mnt:[1]", "7": "mnt:[2]", "8": "mnt:[2]", "self": "mnt:[1]"}
    killed: list[int] = []

    def kill(process: int, number: int) -> None:
        assert number == 9
        killed.append(process)
        spaces.pop(str(process))

    fake = SimpleNamespace(listdir=lambda _: list(spaces), kill=kill, readlink=lambda path: spaces[path.split("/")[2]])
    monkeypatch.setattr(leftovers, "os", fake)
    run = runs.ContainerRun(debug("d", ""), 0, directory=str(tmp_path), root_directory=str(tmp_path))
    leftovers.kill(run)
    assert killed == []
    run.mounts = "mnt:[2]"
    leftovers.kill(run)
    assert sorted(killed) == [7, 8]
