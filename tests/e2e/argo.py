"""Argo Workflows installed on the running HPK as docs/argo.md says, and workflows in a test's namespace."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.e2e.conftest import until
from tests.site.hpksite import builds, paths

if TYPE_CHECKING:
    from tests.e2e import conftest

EXAMPLE = cluster.ROOT / "examples/argo"
IMAGES = f"{cluster.REGISTRY}/argoproj"
FINISHED = {"Succeeded", "Failed", "Error"}
# What a user writes whose registry is another one, as docs/argo.md shows.
OVERLAY = f"""
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../argo]
images:
- {{name: quay.io/argoproj/workflow-controller, newName: {IMAGES}/workflow-controller}}
patches:
- target: {{kind: Deployment, name: workflow-controller}}
  patch: |
    - op: replace
      path: /spec/template/spec/containers/0/args/0
      value: --executor-image={IMAGES}/argoexec:{builds.ARGO_TAG}
"""


def install() -> None:
    """Have Argo's images in the registry and its controller running."""
    done = subprocess.run([cluster.SITE, "argo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(EXAMPLE, "argo")
    cluster.run("tar", "-x", stdin=archive.getvalue())
    cluster.run("bash", "-c", "mkdir -p argo-here; cat >argo-here/kustomization.yaml", stdin=OVERLAY.encode())
    cluster.kubectl("apply", "-k", "argo-here")
    cluster.kubectl("-n", "argo", "rollout", "status", "deployment/workflow-controller", "--timeout=300s", seconds=320)


def remove() -> None:
    """Take Argo away again."""
    cluster.kubectl("delete", "-k", "argo-here", "--timeout=200s", code=None, seconds=220)
    cluster.run("rm", "-r", "argo", "argo-here")


class Workflows:
    """The workflows of one namespace."""

    def __init__(self, space: conftest.Namespace) -> None:
        self._space = space

    def create(self, text: str) -> str:
        """Submit a workflow whose images are named as on Docker Hub; its name."""
        text = text.replace("image: ", f"image: {cluster.REGISTRY}/")
        return self._space.kubectl("create", "-f", "-", "-o", "name", stdin=text.encode()).strip().partition("/")[2]

    def example(self, name: str) -> str:
        """Submit one of the examples; its name."""
        return self.create((EXAMPLE / "workflows" / name).read_text())

    def get(self, name: str) -> dict[str, Any]:
        """A workflow."""
        return self._space.get("workflow", name)

    def patch(self, name: str, **spec: Any) -> None:
        """Change a workflow's spec, as `argo stop` and its like do."""
        self._space.kubectl("patch", "workflow", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def finished(self, name: str, *, seconds: float = 300) -> dict[str, Any]:
        """A workflow when it has ended."""

        def ended() -> dict[str, Any] | None:
            found = self.get(name)
            return found if found.get("status", {}).get("phase") in FINISHED else None

        found: dict[str, Any] = until(ended, seconds=seconds)
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a workflow's steps."""
        selector = f"workflows.argoproj.io/workflow={name}"
        items: list[dict[str, Any]] = json.loads(self._space.kubectl("get", "pods", "-l", selector, "-o", "json"))[
            "items"
        ]
        return items

    def log(self, pod: dict[str, Any]) -> str:
        """What a step has printed; nothing while it waits to start."""
        text = self._space.kubectl("logs", pod["metadata"]["name"], "-c", "main", code=None)
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("time="))  # Argo's own, around the step

    def said(self, workflow: dict[str, Any], *, template: str) -> str:
        """What the one step of a template printed."""
        (node,) = nodes(workflow, template=template)
        key = "workflows.argoproj.io/node-id"
        pods = self.pods(workflow["metadata"]["name"])
        (pod,) = (one for one in pods if one["metadata"]["annotations"][key] == node["id"])
        return self.log(pod)

    def python(self, script: str) -> str:
        """Run an example in Python where the user would, on the cluster's network with the user's kubeconfig."""
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": f"{paths.HOME}/{cluster.USER}/.kube/config",
            "NAMESPACE": self._space.name,
            "IMAGE": f"{cluster.REGISTRY}/python:3",
        }
        network = f"--net={paths.netns_file(paths.netns(cluster.HOST))}"
        argv = ["nsenter", network, sys.executable, str(EXAMPLE / script)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def nodes(workflow: dict[str, Any], *, template: str = "") -> list[dict[str, Any]]:
    """A workflow's steps that are pods, of one template or of all."""
    found = workflow["status"].get("nodes", {}).values()
    return [one for one in found if one["type"] == "Pod" and template in ("", one.get("templateName"))]
