"""One running HPK for all tests of the cluster, and a namespace of its own for each."""

from __future__ import annotations

import json
import re
import secrets
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def hpk() -> None:
    """HPK runs as alice."""
    cluster.up()


class Namespace:
    """Kubectl in a namespace of the test's own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Kubectl in the namespace."""
        return cluster.kubectl("-n", self.name, *arguments, **options)

    def apply(self, manifest: str) -> None:
        """Apply a manifest, in which ``${REGISTRY}`` is the cluster's."""
        text = textwrap.dedent(manifest).replace("${REGISTRY}", cluster.REGISTRY)
        self.kubectl("apply", "-f", "-", stdin=text.encode())

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object, or {} if there is none."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def remove(self) -> None:
        """Delete the namespace; its pods are gone then, and it itself after the five seconds of its controller."""
        cluster.kubectl("delete", "namespace", self.name, "--wait=false")
        # Nothing can make new ones there any more.
        self.kubectl("delete", "pods", "--all", "--timeout=300s", seconds=320)

    def pods(self) -> list[dict[str, Any]]:
        """All pods of the namespace."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        return items

    def phase(self, pod: str) -> str:
        """The pod's phase, or '' if it is gone."""
        return str(self.get("pod", pod).get("status", {}).get("phase", ""))

    def job(self, pod: str) -> str:
        """The pod's Slurm job."""
        uid = self.get("pod", pod)["metadata"]["uid"]
        return jobs_of(uid)[0]

    def events(self, pod: str) -> str:
        """The pod's events, a line each."""
        path = 'jsonpath={range .items[*]}{.reason}: {.message}{"\\n"}{end}'
        return self.kubectl("get", "events", f"--field-selector=involvedObject.name={pod}", "-o", path)


def jobs_of(uid: str) -> list[str]:
    """The Slurm jobs that carry a pod."""
    lines = cluster.shell("scontrol -o show job").splitlines()
    return [match[1] for line in lines if uid in line and (match := re.match(r"JobId=(\d+)", line))]


def until(holds: Callable[[], Any], *, seconds: float = 180) -> Any:
    """Ask until the answer is true; what it was.  The cluster is another program: there is no event to wait for."""
    deadline = time.monotonic() + seconds
    pause = 0.1
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.8)  # a question starts a program or two, on the machine that shall answer


@pytest.fixture
def space(hpk: None, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, gone afterwards."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[:40]
    made = Namespace(f"t-{plain}-{secrets.token_hex(2)}")
    cluster.kubectl("create", "namespace", made.name)
    until(lambda: made.get("serviceaccount", "default"))
    yield made
    made.remove()
