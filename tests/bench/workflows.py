"""How long an Argo workflow takes, against the same steps as bare jobs."""

from __future__ import annotations

import time
from typing import Any

from tests import cluster
from tests.bench import result, startup
from tests.e2e import argo


def hundred_steps() -> list[dict[str, Any]]:
    """A hundred steps at once, to the workflow's success, against a hundred sbatch jobs of the same payload."""
    startup.bare_image()
    argo.install()
    try:
        bare = float(cluster.shell((cluster.ROOT / "tests/bench/hundred.sh").read_text(), seconds=600))
        manifest = (cluster.ROOT / "tests/bench/hundred-steps.yaml").read_text()
        began = time.monotonic()
        cluster.kubectl("create", "-f", "-", stdin=manifest.replace("${REGISTRY}", cluster.REGISTRY).encode())
        succeeded = "--for=jsonpath={.status.phase}=Succeeded"
        cluster.kubectl("wait", "workflow/hundred-steps", succeeded, "--timeout=500s", seconds=520)
        seconds = time.monotonic() - began
        cluster.kubectl("delete", "workflow", "hundred-steps", "--cascade=foreground", seconds=200)
    finally:
        argo.remove()
    return [result.result("hundred-steps", [seconds], baseline=[bare])]
