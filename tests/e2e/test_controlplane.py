"""The real etcd, kube-apiserver and kube-controller-manager, run by an ordinary user on loopback.

Needs the upstream binaries (``controlplane/build.sh`` links or builds them), not the simulated cluster.
The program runs in a process of its own: what is tested is what a user would see.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import psutil
import pytest
import yaml

from hpk import config, pki
from hpk.controlplane import apiserver, etcd, etcd_client, identities, layout, supervisor, upkeep
from tests import background

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
READY_SECONDS = 120.0
# Root of the test machine becomes an ordinary user without any capability: a user namespace maps it to one.
AS_USER = ["unshare", "--user", "--map-user=2000", "--map-group=2000", "--"] if os.getuid() == 0 else []


@dataclass
class Program:
    """A running ``python -m hpk.controlplane``."""

    process: subprocess.Popen[bytes]
    state: Path
    line: str

    @property
    def layout(self) -> layout.Layout:
        """Where its files are, with the ports that it recorded."""
        ports = json.loads((self.state / "state" / "ports.json").read_text())
        return layout.Layout(
            settings=config.Settings(state=self.state),
            address="127.0.0.1",
            host_names=(),
            etcd_port=ports["etcd"],
            api_port=ports["kube-apiserver"],
            kubelet_port=ports["kubelet"],
        )

    def children(self) -> dict[str, psutil.Process]:
        """Its processes by name."""
        found = {child.name(): child for child in psutil.Process(self.process.pid).children(recursive=True)}
        return {name: found[name] for name in layout.BINARIES}

    def ask(self, path: str, *, identity: str | None, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Ask the API server with the certificate of this kubeconfig (or name in ``issued/``), or with none."""
        tls = ssl.create_default_context(cafile=str(self.layout.authority_certificate("kubernetes")))
        if identity:
            tls.load_cert_chain(*self._certificate(identity))
        connection = http.client.HTTPSConnection("127.0.0.1", self.layout.api_port, context=tls, timeout=20)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
        return answer.status, json.loads(data) if data.startswith(b"{") else data.decode()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def _certificate(self, identity: str) -> tuple[Path, Path]:
        if not self.layout.kubeconfig(identity).exists():
            return self.layout.certificate(identity), self.layout.key(identity)
        user = yaml.safe_load(self.layout.kubeconfig(identity).read_text())["users"][0]["user"]
        pems = (base64.b64decode(user[f"client-{kind}-data"]) for kind in ("certificate", "key"))
        return pki.Certificate(*pems).write(self.state.parent, "client")


@pytest.fixture(name="binaries", scope="module")
def _binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the upstream programs."""
    directory = tmp_path_factory.mktemp("bin")
    subprocess.run([REPOSITORY / "controlplane" / "build.sh", directory, *layout.BINARIES], check=True)
    return directory


@contextlib.contextmanager
def started(state: Path, binaries: Path, *, is_ready: bool = True, node_disk: Path | None = None) -> Iterator[Program]:
    """Start the program and wait until it says that it is ready; with a node's disk its etcd is there."""
    environment = {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "HOME": str(state.parent),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        **({"HPK_ETCD": "node", "TMPDIR": str(node_disk)} if node_disk else {}),
    }
    argv = [*AS_USER, sys.executable, "-m", "hpk.controlplane", "--state", str(state)]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Program(process, state, _ready_line(process) if is_ready else "")
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def _ready_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    end, seen = time.monotonic() + READY_SECONDS, b""
    while (left := end - time.monotonic()) > 0 and select.select([process.stdout], [], [], left)[0]:
        data = os.read(process.stdout.fileno(), 65536)
        seen += data
        for line in seen.decode().splitlines():
            if line.startswith("ready after"):
                return line
        if not data:
            break
    pytest.fail(f"not ready:\n{seen.decode()}")


@pytest.fixture(name="program", scope="module")
def _program(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[Program]:
    """One control plane for the tests that only ask."""
    with started(tmp_path_factory.mktemp("home") / ".hpk", binaries) as program:
        yield program


def test_it_runs_without_any_privilege(program: Program) -> None:
    """No process of it has a capability or a user id of root's."""
    for pid in (program.process.pid, *(child.pid for child in program.children().values())):
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert int(status["CapEff"], 16) == 0


def test_ready_for_who_has_a_certificate(program: Program) -> None:
    """``/readyz`` answers the probe's certificate and is 401 without one."""
    assert program.ask("/readyz", identity=apiserver.PROBE) == (200, "ok")
    for path in ("/readyz", "/healthz", "/version", "/api", "/api/v1/namespaces", "/openapi/v2", "/"):
        assert program.ask(path, identity=None)[0] == 401


def test_another_authority_opens_nothing(program: Program, tmp_path: Path) -> None:
    """A certificate that the link's authority signed is worth nothing to the API server, whatever name it bears."""
    link = pki.Authority.open(program.layout.authority("link"), "link")
    forged = link.issue("hpk:admin", organizations=["system:masters"], is_client=True)
    forged.write(program.layout.issued, "forged")
    assert program.ask("/api/v1/namespaces", identity="forged")[0] == 401


@pytest.mark.parametrize(
    ("identity", "method", "path", "code"),
    [
        ("admin", "GET", "/api/v1/secrets", 200),
        ("admin", "GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", 200),
        (apiserver.PROBE, "GET", "/api/v1/pods", 403),
        ("binder", "GET", "/api/v1/pods", 200),
        ("binder", "GET", "/api/v1/nodes/hpk", 404),
        ("binder", "GET", "/api/v1/secrets", 403),
        ("binder", "POST", "/api/v1/namespaces/default/pods", 403),
        ("binder", "DELETE", "/api/v1/namespaces/default/pods/x", 403),
        ("kubelet", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dhpk", 200),
        ("kubelet", "GET", "/api/v1/pods", 403),
        ("kubelet", "GET", "/api/v1/secrets", 403),
        ("kubelet", "POST", "/api/v1/namespaces/default/pods/x/binding", 403),
        ("kubelet", "DELETE", "/api/v1/nodes/another", 403),
    ],
)
def test_each_identity_may_do_its_own_work(program: Program, identity: str, method: str, path: str, code: int) -> None:
    """The user may do everything, the binder binds, the kubelet keeps to its own node, and nobody does more."""
    status, answer = program.ask(path, identity=identity, method=method, body={} if method == "POST" else None)
    assert status == code, answer


def test_the_kubelet_registers_its_own_node_only(program: Program) -> None:
    """NodeRestriction: node ``hpk`` is its own, any other is refused."""
    for name, code in (("hpk", 201), ("other", 403)):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        assert program.ask("/api/v1/nodes", identity="kubelet", method="POST", body=node)[0] == code
    assert program.ask("/api/v1/nodes/hpk", identity="admin", method="DELETE")[0] == 200


def test_namespaces_take_pods_and_controllers_work(program: Program) -> None:
    """The default service account is there, and a Deployment becomes pods at the API server."""
    assert program.ask("/api/v1/namespaces/default/serviceaccounts/default", identity="admin")[0] == 200
    labels = {"app": "x"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}},
        },
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    assert program.ask(path, identity="admin", method="POST", body=body)[0] == 201

    def pods() -> list[Any]:
        items: list[Any] = program.ask("/api/v1/namespaces/default/pods", identity="binder")[1]["items"]
        return items

    until(lambda: len(pods()) == 2, seconds=120)
    volumes = {source for volume in pods()[0]["spec"]["volumes"] for source in volume["projected"]["sources"][0]}
    assert "serviceAccountToken" in volumes
    assert program.ask(f"{path}/x", identity="admin", method="DELETE")[0] == 200
    until(lambda: not pods(), seconds=120)


def test_the_bootstrap_identity_is_gone(program: Program) -> None:
    """Who may do everything has no file any more."""
    assert not program.layout.kubeconfig("bootstrap").exists()


def test_etcd_answers_only_the_api_server(program: Program) -> None:
    """Without a certificate, or with one of another authority, etcd's handshake fails."""
    where = program.layout

    def ask(identity: str | None) -> int:
        tls = ssl.create_default_context(cafile=str(where.authority_certificate("etcd")))
        if identity:
            tls.load_cert_chain(where.certificate(identity), where.key(identity))
        connection = http.client.HTTPSConnection("127.0.0.1", where.etcd_port, context=tls, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            return connection.getresponse().status

    assert ask(etcd.CLIENT) == 200
    for identity in (None, apiserver.PROBE):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(identity)


def test_etcd_is_on_loopback_only(program: Program) -> None:
    """No listener of etcd's can be reached from another host."""
    listening = [entry for entry in program.children()["etcd"].net_connections() if entry.status == "LISTEN"]
    assert listening
    assert {entry.laddr.ip for entry in listening} == {"127.0.0.1"}


def test_files_are_private(program: Program) -> None:
    """Everything under the state directory, etcd's files and logs included, is 0600 or 0700."""
    for path in (program.state, *program.state.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # etcd removes files of its own at any time
            assert path.stat().st_mode & 0o077 == 0, path


def test_no_secret_in_any_command_line(program: Program) -> None:
    """``ps`` shows paths only."""
    for child in program.children().values():
        assert "BEGIN" not in " ".join(child.cmdline())


def test_a_second_one_is_refused(program: Program, binaries: Path) -> None:
    """Two control planes never share a state directory; the text says who has it."""
    with started(program.state, binaries, is_ready=False) as second:
        output, _ = second.process.communicate(timeout=30)
    assert second.process.returncode == 1
    assert f"another control plane runs on it (host {socket.gethostname()}" in output.decode()
    assert program.ask("/readyz", identity=apiserver.PROBE)[0] == 200


def test_small(program: Program) -> None:
    """The three components and the program leave the kubelet its share of 700 MB."""
    resident = sum(child.memory_info().rss for child in program.children().values())
    assert resident + psutil.Process(program.process.pid).memory_info().rss < 600 << 20


def test_a_component_that_is_killed_comes_back(program: Program) -> None:
    """The API server and etcd are restarted when they die, on the same ports, with the same data."""
    for name in ("kube-apiserver", "etcd"):
        killed = program.children()[name]
        killed.kill()
        psutil.wait_procs([killed], timeout=10)

        def is_back(name: str = name, old: int = killed.pid) -> bool:
            try:
                return (
                    program.children()[name].pid != old
                    and program.ask("/api/v1/namespaces/default", identity="admin")[0] == 200
                )
            except (KeyError, OSError, psutil.Error):
                return False

        until(is_back, seconds=120)


def test_state_survives_with_other_ports_and_nothing_is_left(tmp_path: Path, binaries: Path) -> None:
    """After a stop no process is left; the next start has the same data and authorities, if need be on other ports."""
    state = tmp_path / ".hpk"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"key": "value"}}
    with started(state, binaries) as first:
        path = "/api/v1/namespaces/default/configmaps"
        assert first.ask(path, identity="admin", method="POST", body=body)[0] == 201
        children = list(first.children().values())
        port = first.layout.api_port
        authority = first.layout.authority_certificate("kubernetes").read_bytes()
        assert first.stop() == 0
    assert not any(child.is_running() for child in children)
    assert not (state / "state" / "owner.json").exists()
    with contextlib.closing(socket.create_server(("127.0.0.1", port))), started(state, binaries) as second:
        assert second.layout.api_port != port
        assert second.layout.authority_certificate("kubernetes").read_bytes() == authority
        assert second.ask(f"{path}/kept", identity="admin")[1]["data"] == {"key": "value"}


def test_a_crash_leaves_nothing_and_is_no_obstacle(tmp_path: Path, binaries: Path) -> None:
    """When the program is killed its children die with it, and the next start on this host succeeds at once."""
    state = tmp_path / ".hpk"
    with started(state, binaries) as first:
        children = list(first.children().values())
        port = first.layout.api_port
        first.process.kill()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
    with started(state, binaries) as second:
        assert second.layout.api_port == port
        assert second.ask("/readyz", identity=apiserver.PROBE)[0] == 200


def test_etcd_on_a_node_that_dies_loses_only_what_is_not_copied_yet(tmp_path: Path, binaries: Path) -> None:
    """Without a warning, and on another node: what was copied meanwhile is there again, and the next end is orderly."""
    state, path = tmp_path / ".hpk", "/api/v1/namespaces/default/configmaps"
    disks = [tmp_path / name for name in ("node-1", "node-2")]
    for disk in disks:
        disk.mkdir()
    copied: list[set[str]] = []
    with started(state, binaries, node_disk=disks[0]) as first:
        end = time.monotonic() + 5
        # The copy grows while things are written; how quickly is the machine's affair.
        while time.monotonic() < end or len({len(names) for names in copied}) <= 3:
            name = f"c{len(copied)}"
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "y" * 5000}}
            assert first.ask(path, identity="admin", method="POST", body=body)[0] == 201
            copied.append(names_in(state / "state/etcd"))
        children = list(first.children().values())
        first.process.kill()
        psutil.wait_procs(children, timeout=30)
    shutil.rmtree(disks[0])
    with started(state, binaries, node_disk=disks[1]) as second:
        found = {item["metadata"]["name"] for item in second.ask(path, identity="admin")[1]["items"]}
        assert copied[-1] <= found
        assert second.stop() == 0
    assert list(disks[1].iterdir()) == []
    with started(state, binaries) as third:  # in the state directory itself, as it was or as the copy is
        again = {item["metadata"]["name"] for item in third.ask(path, identity="admin")[1]["items"]}
        assert again == found


async def test_an_etcd_that_is_full_is_relieved(program: Program, binaries: Path, tmp_path: Path) -> None:
    """It refuses writes; compacted, defragmented and disarmed it takes them again."""
    settings = config.Settings(state=tmp_path / "hpk")
    shutil.copytree(program.layout.root / "pki", Path(settings.directory.control_plane) / "pki")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    programs = {"etcd": str(binaries / "etcd")}
    where = dataclasses.replace(
        program.layout, settings=settings, etcd_port=port, binaries=programs, etcd_quota_bytes=4 << 20
    )
    where.make_directories()
    identities.issue(where, identities.open_authorities(where))
    running = supervisor.Supervisor([etcd.component_of(where)])
    task = asyncio.create_task(running.run())
    try:
        await asyncio.wait_for(running.ready(etcd.NAME).wait(), 60)
        async with etcd_client.connected(where) as client:

            async def put() -> bool:
                message = b"\x0a\x01k" + b"\x12\x80\x80\x10" + b"x" * (256 << 10)  # PutRequest: key 1, value 2
                try:
                    await client._channel.unary_unary("/etcdserverpb.KV/Put")(message)
                except grpc.aio.AioRpcError as error:
                    return "database space exceeded" not in str(error.details())
                return True

            while await put():
                pass
            assert await client.has_no_space()
            assert await upkeep.look_after(client) == ""
            assert await put()
    finally:
        await background.end(task)


def names_in(etcd: Path) -> set[str]:
    """Of the ConfigMaps that etcd's log, or its copy, holds."""
    logs = b"".join(path.read_bytes() for path in etcd.rglob("*.wal"))
    return {name.decode() for name in re.findall(rb"/configmaps/default/(c\d+)\x12", logs)}


def until(condition: Any, *, seconds: float) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
