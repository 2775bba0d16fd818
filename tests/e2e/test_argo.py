"""Argo Workflows on HPK: the examples of docs/argo.md, each to its right end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e import argo as argo_workflows
from tests.e2e import conftest
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

pytestmark = pytest.mark.cluster

SLEEPER = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: sleeper-}
spec:
  entrypoint: sleep
  onExit: bye
  podSpecPatch: '{"terminationGracePeriodSeconds": 5}'
  templates:
  - name: sleep
    container: {image: busybox:1, command: [sh, -c, "trap 'echo told; exit 3' TERM; echo up; sleep 600 & wait"]}
  - name: bye
    container: {image: busybox:1, command: [echo, bye]}
"""


@pytest.fixture(scope="module")
def installed(hpk: None) -> Iterator[None]:
    """Argo, for the tests of this file."""
    argo_workflows.install()
    yield
    argo_workflows.remove()


@pytest.fixture
def workflows(installed: None, space: conftest.Namespace) -> argo_workflows.Workflows:
    """The test's own namespace, for workflows."""
    return argo_workflows.Workflows(space)


def jobs(pods: list[dict[str, Any]]) -> list[str]:
    """The Slurm jobs of pods, of which each must have one."""
    shown = cluster.shell("scontrol -o show job").splitlines()
    found = []
    for pod in pods:
        (job,) = (line for line in shown if f"Comment={pod['metadata']['uid']} " in line)
        found.append(job)
    return found


def ends(workflow: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """When each step began and ended, by its own name."""
    return {node["displayName"]: (node["startedAt"], node["finishedAt"]) for node in argo_workflows.nodes(workflow)}


def test_a_diamond_runs_in_its_order(workflows: argo_workflows.Workflows) -> None:
    """B and C follow A, D follows both, and each is a Slurm job."""
    name = workflows.example("diamond.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    times = ends(done)
    assert sorted(times) == ["A", "B", "C", "D"]
    assert times["A"][1] <= min(times["B"][0], times["C"][0])
    assert max(times["B"][1], times["C"][1]) <= times["D"][0]
    pods = workflows.pods(name)
    assert sorted(workflows.log(pod) for pod in pods) == ["A\n", "B\n", "C\n", "D\n"]
    assert len(set(jobs(pods))) == 4


def test_a_fan_out_of_twenty_hands_all_results_on(workflows: argo_workflows.Workflows) -> None:
    """The last step has what each of the twenty printed."""
    done = workflows.finished(workflows.example("fan-out.yaml"))
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert workflows.said(done, template="sum") == f"{sum(n * n for n in range(20))}\n"


def test_a_step_that_fails_is_tried_again(workflows: argo_workflows.Workflows) -> None:
    """Two tries fail, the third succeeds, and so does the workflow."""
    name = workflows.example("retry.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    tries = sorted(argo_workflows.nodes(done), key=lambda node: node["startedAt"])
    assert [one["phase"] for one in tries] == ["Failed", "Failed", "Succeeded"]
    assert "exit code 1" in tries[0]["message"]
    assert {pod["status"]["phase"] for pod in workflows.pods(name)} == {"Failed", "Succeeded"}


def test_a_script_leaves_results_on_stdout_and_in_a_file(workflows: argo_workflows.Workflows) -> None:
    """Both reach the next step."""
    name = workflows.example("parameters.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert "45 and 21.5\n" in {workflows.log(pod) for pod in workflows.pods(name)}


def test_a_sidecar_is_ended_with_its_step(workflows: argo_workflows.Workflows) -> None:
    """The step reaches the server beside it; when the step is done, the server and the pod end."""
    name = workflows.example("sidecar.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    (pod,) = workflows.pods(name)
    assert workflows.log(pod).splitlines()[-1] == "served"  # the server may take a moment
    until(lambda: workflows.pods(name)[0]["status"]["phase"] in argo_workflows.FINISHED)
    states = {one["name"]: one["state"] for one in workflows.pods(name)[0]["status"]["containerStatuses"]}
    assert all("terminated" in state for state in states.values()), states


def test_a_daemon_serves_the_next_step_and_ends(workflows: argo_workflows.Workflows) -> None:
    """It is reached by its address once it is ready, and its job ends with the steps that it was for."""
    name = workflows.example("daemon.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert "served\n" in {workflows.log(pod) for pod in workflows.pods(name)}
    ended = {"Succeeded", "Failed"}
    until(lambda: {pod["status"]["phase"] for pod in workflows.pods(name)} <= ended)


def test_slurm_flags_take_their_number_of_cpus_from_the_items(workflows: argo_workflows.Workflows) -> None:
    """Each item's job has as many CPUs as the item says."""
    name = workflows.example("cpus.yaml")
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    pods = workflows.pods(name)
    asked = [int(workflows.log(pod).partition(" ")[0]) for pod in pods]
    given = [int(re.search(r" NumCPUs=(\d+)", job)[1]) for job in jobs(pods)]  # type: ignore[index]
    assert sorted(asked) == [2, 4, 8, 16]
    assert given == asked


def test_mpi_flags_are_refused_by_name(workflows: argo_workflows.Workflows) -> None:
    """The workflow's own message says which annotation it is, in the spelling that was used."""
    text = (argo_workflows.EXAMPLE / "workflows/cpus.yaml").read_text()
    flags = '        slurm-job.hpk.io/flags: "'
    assert flags in text
    name = workflows.create(text.replace(flags, '        slurm-job.hpk.io/mpi-flag: "--map-by core"\n' + flags))
    done = workflows.finished(name)
    assert done["status"]["phase"] in {"Error", "Failed"}
    messages = {node["message"] for node in argo_workflows.nodes(done)}
    assert all("annotation slurm-job.hpk.io/mpi-flag is not supported" in one for one in messages), messages
    assert workflows.pods(name) == []


def test_a_suspended_workflow_starts_when_it_may(workflows: argo_workflows.Workflows) -> None:
    """Nothing of it runs before."""
    name = workflows.example("suspend.yaml")
    until(lambda: workflows.get(name).get("status", {}).get("phase") == "Running")
    assert workflows.pods(name) == []
    workflows.patch(name, suspend=False)
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert {workflows.log(pod) for pod in workflows.pods(name)} == {"resumed\n"}


@pytest.mark.parametrize(("how", "has_exit_handler"), [("Stop", True), ("Terminate", False)])
def test_a_running_workflow_is_ended(workflows: argo_workflows.Workflows, how: str, *, has_exit_handler: bool) -> None:
    """Its step hears SIGTERM and its job ends; only a stopped one runs its exit handler."""
    name = workflows.create(SLEEPER)
    until(lambda: workflows.pods(name) and workflows.log(workflows.pods(name)[0]) == "up\n")
    workflows.patch(name, shutdown=how)
    done = workflows.finished(name)
    assert done["status"]["phase"] == "Failed"
    assert [node["phase"] for node in argo_workflows.nodes(done, template="sleep")] == ["Failed"]
    assert len(argo_workflows.nodes(done, template="bye")) == (1 if has_exit_handler else 0)
    until(lambda: {pod["status"]["phase"] for pod in workflows.pods(name)} <= argo_workflows.FINISHED)
    assert any("told" in workflows.log(pod).splitlines() for pod in workflows.pods(name))


def test_a_workflow_written_in_python_with_hera(workflows: argo_workflows.Workflows) -> None:
    """Submitted by the Python client with the kubeconfig that `hpk up` wrote."""
    done = workflows.finished(workflows.python("sweep.py"))
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert workflows.said(done, template="total") == "30\n"


@pytest.mark.timeout(1200)
def test_of_a_hundred_steps_none_is_lost_and_none_runs_twice(workflows: argo_workflows.Workflows) -> None:
    """A hundred steps at once are a hundred pods and a hundred jobs, and the last step has all their results."""
    text = (argo_workflows.EXAMPLE / "workflows/fan-out.yaml").read_text()
    assert 'value: "19"' in text
    name = workflows.create(text.replace('value: "19"', 'value: "99"'))
    done = workflows.finished(name, seconds=900)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert workflows.said(done, template="sum") == f"{sum(n * n for n in range(100))}\n"
    pods = workflows.pods(name)
    assert len(argo_workflows.nodes(done, template="square")) == 100
    assert len(pods) == 101
    assert len(set(jobs(pods))) == 101
