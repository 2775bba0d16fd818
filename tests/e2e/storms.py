"""Many pods at a time, and what slurmctld hears of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests import cluster

if TYPE_CHECKING:
    from tests.e2e import conftest

CALLS_PER_POD = 3
"""How often sbatch may reach slurmctld for one pod, the refusals of a full queue included."""


def calls(*, message: str = "", user: str = "") -> int:
    """How many calls slurmctld has had, of this kind or from this user, as ``sdiag`` counts."""
    found = re.search(rf"^\s+{message or user}\s.*count:(\d+)", cluster.shell("sdiag", user="root"), re.MULTILINE)
    return int(found[1]) if found else 0


def submissions() -> int:
    """How often sbatch has reached slurmctld."""
    return calls(message="REQUEST_SUBMIT_BATCH_JOB")


def all_succeed(space: conftest.Namespace, *, pods: int) -> None:
    """Create so many pods at once; each runs in the end, and slurmctld hears little of those that wait."""
    before = submissions()
    space.apply(
        f"""
        apiVersion: batch/v1
        kind: Job
        metadata: {{name: many}}
        spec:
          completions: {pods}
          parallelism: {pods}
          template:
            spec:
              restartPolicy: Never
              containers: [{{name: c, image: "${{REGISTRY}}/busybox:1", command: [sleep, "1"]}}]
        """
    )
    space.kubectl("wait", "job/many", "--for=condition=Complete", "--timeout=400s", seconds=420)
    assert [one["status"]["phase"] for one in space.pods()] == ["Succeeded"] * pods
    assert pods <= submissions() - before <= CALLS_PER_POD * pods
