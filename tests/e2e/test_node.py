"""The node and the kubelet's API, seen through the real API server: authorizers, admission, kubectl.

Needs the upstream binaries (``controlplane/build.sh`` links or builds them), not the simulated cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpk import config, jobdir
from hpk.controlplane import apiserver, layout, plane
from hpk.kube import client
from hpk.node import auth, lease, node, nodestatus, server, systeminfo
from hpk.slurm import model
from tests.fakes import pods as fakes
from tests.fakes import sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
NODE = "/api/v1/nodes/hpk"
ENTRY = b"2026-01-01T00:00:00.000000000Z stdout F %b\n"
NOT_READY = "node.kubernetes.io/not-ready"
CAPACITY = model.ClusterCapacity(cpus=1000, memory_bytes=64 << 30, gres={"gpu": 2}, nodes={}, partitions={})


@dataclass
class World:
    """A control plane with our node, whose pods the tests set."""

    control_plane: plane.ControlPlane
    kubectl: Path
    admin: client.Kube
    pods: fakes.FakePods
    state: jobdir.StateDirectory
    node: node.NodeController

    async def run_pod(self, name: str, *, status: dict[str, Any]) -> dict[str, Any]:
        """Create a pod that is bound to our node and give it this status, as the pods room would."""
        container = {"name": "c", "image": "busybox:1"}
        spec = {"nodeName": "hpk", "containers": [container], "automountServiceAccountToken": False}
        made = await self.admin.create(
            client.pod_path("default"),
            {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}},
        )
        made["status"] = status
        self.pods.put(made)
        return made

    def log(self, pod: dict[str, Any], count: int = 0) -> Path:
        """The log of the pod's container; its directory exists."""
        path = Path(self.state.pod(pod["metadata"]["uid"]).log("c", count))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def ask(self, *arguments: str) -> tuple[int, str]:
        """Run kubectl: exit code, and all that it printed."""
        process = await self.start(*arguments)
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start kubectl."""
        kubeconfig = self.control_plane.layout.kubeconfig("admin")
        return await asyncio.create_subprocess_exec(
            self.kubectl,
            f"--kubeconfig={kubeconfig}",
            *arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def _status(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    container = {"name": "c", "state": state, "restartCount": 0, **more}
    return {"phase": "Running", "containerStatuses": [container]}


@pytest.fixture(name="binaries", scope="module")
def _binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("bin")
    names = [*layout.BINARIES, "kubectl"]
    subprocess.run([REPOSITORY / "controlplane" / "build.sh", directory, *names], check=True)
    return {name: str(directory / name) for name in names}


@contextlib.asynccontextmanager
async def _world(state: Path, binaries: dict[str, str]) -> AsyncIterator[World]:
    settings = config.load(environment={}, flags={"state": str(state), "address": "127.0.0.1"})
    upstream = {name: binaries[name] for name in layout.BINARIES}
    async with plane.prepared(settings, binaries=upstream) as ours, asyncio.TaskGroup() as group:
        tasks = [group.create_task(ours.run())]
        await ours.ready.wait()
        async with (
            await client.Kube.from_kubeconfig(ours.kubelet_kubeconfig) as kubelet,
            await client.Kube.from_kubeconfig(ours.layout.kubeconfig("admin")) as admin,
        ):
            pods = fakes.FakePods()
            facts = nodestatus.NodeFacts(
                name="hpk",
                system=systeminfo.read(identity="test"),
                address=ours.api_address,
                hostname="localhost",
                port=ours.kubelet_port.port,
                apptainer_version="1.4.0",
                max_pods=1000,
                taints=({"key": "example.com/only", "effect": "PreferNoSchedule"},),
            )
            controller = node.NodeController(kubelet, facts, lambda: nodestatus.NodeObservation(capacity=CAPACITY))
            api = server.KubeletServer(
                pods,
                state=settings.directory,
                authenticator=auth.Authenticator(kubelet),
                authorizer=auth.Authorizer(kubelet, "hpk"),
                opener=sessions.FakeOpener(),
                context=server.tls(
                    certificate_pem=ours.kubelet_certificate.certificate_pem,
                    key_pem=ours.kubelet_certificate.key_pem,
                    client_ca_pem=ours.ca_pem,
                ),
                host=ours.kubelet_port.host,
                port=ours.kubelet_port.port,
            )
            services = (controller.run(), lease.LeaseController(kubelet, "hpk").run(), api.run())
            tasks += [group.create_task(service) for service in services]
            await controller.registered.wait()
            yield World(ours, Path(binaries["kubectl"]), admin, pods, settings.directory, controller)
            for task in reversed(tasks):
                task.cancel()


async def test_node_and_logs_through_the_real_api_server(tmp_path: Path, binaries: dict[str, str]) -> None:
    """One control plane, many looks: each promise is its own function below."""
    async with _world(tmp_path / ".hpk", binaries) as world:
        await _the_node_is_ready_and_complete(world)
        await _the_lease_is_ours(world)
        await _foreign_capacity_survives(world)
        await _a_deleted_node_comes_back(world)
        await _strangers_are_refused(world)
        await _logs_of_one_that_ended(world)
        await _refusals_reach_the_user(world)
        await _follow(world)
        await _health_and_pods_for_the_api_server(world)


async def _the_node_is_ready_and_complete(world: World) -> None:
    """The node authorizer and NodeRestriction let all of it through, and the server keeps it."""
    made = await world.admin.get(NODE)
    assert made["status"]["capacity"]["nvidia.com/gpu"] == "2"
    assert made["status"]["nodeInfo"]["kubeletVersion"] == systeminfo.KUBELET_VERSION
    assert "example.com/only" in {taint["key"] for taint in made["spec"]["taints"]}
    code, text = await world.ask("wait", "node/hpk", "--for=condition=Ready", "--timeout=300s")
    assert code == 0, text
    before = await _left_alone(world)
    await world.node.sync()
    after = await world.admin.get(NODE)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def _left_alone(world: World) -> dict[str, Any]:
    """The node, when the controller manager has written what it writes on a new one."""
    while True:
        found = await world.admin.get(NODE)
        taints = {taint["key"] for taint in found["spec"].get("taints", [])}
        if "node.alpha.kubernetes.io/ttl" in found["metadata"]["annotations"] and NOT_READY not in taints:
            return found
        await asyncio.sleep(0.05)


async def _the_lease_is_ours(world: World) -> None:
    """The lease is there, owned by the node."""
    found = await world.admin.get(f"{lease.LEASES}/hpk")
    assert found["spec"]["holderIdentity"] == "hpk"
    assert found["metadata"].get("ownerReferences", [{"uid": world.node.uid}])[0]["uid"] == world.node.uid


async def _foreign_capacity_survives(world: World) -> None:
    """As the preemption tests do it: a capacity added by hand stays when the kubelet writes."""
    patch = [{"op": "add", "path": "/status/capacity/example.com~1foo", "value": "5"}]
    await world.admin.patch(f"{NODE}/status", patch, kind="json")
    await world.admin.patch(NODE, {"metadata": {"labels": {"kubernetes.io/os": "plan9"}}}, kind="merge")
    await world.node.sync()
    after = await world.admin.get(NODE)
    assert after["status"]["capacity"]["example.com/foo"] == "5"
    assert after["metadata"]["labels"]["kubernetes.io/os"] == "linux"


async def _a_deleted_node_comes_back(world: World) -> None:
    """A node that an administrator deleted is registered anew."""
    old = world.node.uid
    await world.admin.delete(NODE)
    await world.node.sync()
    assert (await world.admin.get(NODE))["metadata"]["uid"] not in ("", old)


async def _strangers_are_refused(world: World) -> None:
    """Nobody is 401; a user of the cluster without rights is 403, by the real reviews; the API server is let in."""
    token = await world.admin.create(
        "/api/v1/namespaces/default/serviceaccounts/default/token", {"kind": "TokenRequest", "spec": {}}
    )
    stranger = f"Authorization: Bearer {token['status']['token']}\r\n"
    assert (await _ask_kubelet(world, _tls(world), "/pods"))[0] == 401
    code, text = await _ask_kubelet(world, _tls(world), "/pods", header=stranger)
    who = "system:serviceaccount:default:default"
    assert code == 403
    assert text == f"Forbidden (user={who}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"


async def _health_and_pods_for_the_api_server(world: World) -> None:
    """Its client certificate may do all that it needs."""
    ours = world.control_plane.layout
    context = _tls(world)
    context.load_cert_chain(ours.certificate(apiserver.KUBELET_CLIENT), ours.key(apiserver.KUBELET_CLIENT))
    assert await _ask_kubelet(world, context, "/healthz") == (200, "ok")
    assert '"kind":"PodList"' in (await _ask_kubelet(world, context, "/pods"))[1]
    assert (await _ask_kubelet(world, context, "/metrics"))[0] == 200
    assert (await _ask_kubelet(world, context, "/nosuch"))[0] == 404


def _tls(world: World) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=world.control_plane.ca_pem.decode())


async def _ask_kubelet(world: World, context: ssl.SSLContext, path: str, *, header: str = "") -> tuple[int, str]:
    """Ask our port itself: status and body (the API server's proxy refuses nodes on loopback)."""
    port = world.control_plane.kubelet_port.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _logs_of_one_that_ended(world: World) -> None:
    """Kubectl's own flags, end to end."""
    pod = await world.run_pod("done", status=_status(fakes.ENDED))
    partial = b"2026-01-01T00:00:09.000000000Z stdout P no newline\n"
    world.log(pod).write_bytes(b"".join(ENTRY % f"line {n} é".encode() for n in range(1, 5)) + partial)
    whole = "line 1 é\nline 2 é\nline 3 é\nline 4 é\nno newline"
    for arguments, expected in (
        ([], whole),
        (["--tail=2"], "line 4 é\nno newline"),
        (["--tail=0"], ""),
        (["--limit-bytes=9"], "line 1 é"),
        (["--since-time=2026-01-01T00:00:05Z", "--timestamps"], "2026-01-01T00:00:09.000000000Z no newline"),
        (["--follow"], whole),
    ):
        assert await world.ask("logs", "done", *arguments) == (0, expected), arguments


async def _refusals_reach_the_user(world: World) -> None:
    """The texts that users know, through the API server."""
    await world.run_pod("waits", status=_status({"waiting": {"reason": "ContainerCreating"}}))
    code, text = await world.ask("logs", "waits")
    assert code != 0
    assert 'container "c" in pod "waits" is waiting to start: ContainerCreating' in text
    code, text = await world.ask("logs", "done", "--previous")
    assert code != 0
    assert 'previous terminated container "c" in pod "done" not found' in text
    code, text = await world.ask("exec", "done", "--", "true")
    assert code != 0
    assert 'container "c" in pod "done" is not running' in text


async def _follow(world: World) -> None:
    """Each line when it comes, and the end when the container ends."""
    pod = await world.run_pod("slow", status=_status(fakes.RUNNING))
    process = await world.start("logs", "--follow", "slow")
    assert process.stdout is not None
    await world.pods.waiting.wait()
    world.log(pod).write_bytes(ENTRY % b"old")
    assert await process.stdout.readline() == b"old\n"
    with world.log(pod).open("ab") as file:
        file.write(ENTRY % b"new")
    world.pods.put({**pod, "status": _status(fakes.ENDED)})
    assert await process.stdout.read() == b"new\n"
    assert await process.wait() == 0
