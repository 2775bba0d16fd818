"""How a host reaches the API server, and what of the user's kubeconfig changes for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import runpy
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hpk import config, errors, jobdir, kubeconfig
from hpk.cli import connect, kubectl, reach, slurmaccess
from hpk.host import dial, protocol, tunnel
from hpk.slurm import client, runner
from tests.fakes import slurm as fake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LAUNCHER = Path(__file__).parents[3] / "scripts/hpk"
TUNNEL = ("^tunnel ", json.dumps({"port": 4, "way": "srun", "host": "c1", "job_id": "7"}))

LIVES = ("^tunnels$", "[0, null]")


class Stage:
    """A home with a control plane, and a gateway with a script."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = config.Settings(state=root / ".hpk", gateway=root / "socket")
        self.file = root / ".kube/config"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("HOME", str(root))
        monkeypatch.delenv("KUBECONFIG", raising=False)

    def control_plane(self, server: str) -> None:
        """Have it announce itself, as it does."""
        document = yaml.safe_dump({
            "clusters": [{"name": "hpk", "cluster": {"server": server, "certificate-authority-data": "Y2E="}}],
            "users": [{"name": "hpk", "user": {}}],
            "contexts": [{"name": "hpk", "context": {"cluster": "hpk", "user": "hpk"}}],
        }).encode()  # fmt: skip
        jobdir.make_directory(str(self.settings.state))
        jobdir.write_bytes(self.settings.directory.kubeconfig, document)
        kubeconfig.merge(document)

    def tunnel(self) -> None:
        """Have the record of one."""
        dial.write(protocol.tunnel_record(str(self.settings.state)), b"{}")

    def talk(self, *script: tuple[str, str | runner.CommandResult | Exception]) -> fake.Conversation:
        """Have the gateway answer by this script."""
        conversation = fake.Conversation(*script)

        @contextlib.contextmanager
        def slurm(_: config.Settings) -> Iterator[client.Slurm]:
            yield client.Slurm(conversation)

        self._monkeypatch.setattr(slurmaccess, "slurm", slurm)
        return conversation

    async def find(self, *script: tuple[str, str | runner.CommandResult | Exception]) -> reach.Way:
        """The way, with a gateway that answers by this script."""
        return await reach.find(self.settings, client.Slurm(fake.Conversation(*script)))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage of one test."""
    return Stage(tmp_path, monkeypatch)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port of this host where something answers."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


async def test_a_port_that_answers_needs_no_tunnel(stage: Stage, port: int) -> None:
    """Slurm hears nothing of it."""
    stage.control_plane(url := f"https://127.0.0.1:{port}")
    assert await stage.find() == reach.Way(server=url, direct=url)


async def test_a_port_that_does_not_answer_does(stage: Stage) -> None:
    """The gateway starts one, which leads there."""
    stage.control_plane("https://127.0.0.1:1")
    talk = fake.Conversation(TUNNEL)
    way = await reach.find(stage.settings, client.Slurm(talk))
    assert (way.server, str(way)) == ("https://127.0.0.1:4", "https://127.0.0.1:4, by srun to c1")
    assert talk.calls[0].line.split()[:2] == ["tunnel", f"--state={stage.settings.state}"]
    assert await reach.find(stage.settings, client.Slurm(talk)) == way


async def test_a_tunnel_that_serves_is_used(stage: Stage, port: int) -> None:
    """Nobody waits for a firewall again while it does."""
    stage.control_plane(f"https://127.0.0.1:{port}")
    stage.tunnel()
    assert (await stage.find(TUNNEL)).by == "srun"


async def test_what_was_tried_is_told(stage: Stage) -> None:
    """The port's own fault, and the tunnel's."""
    with pytest.raises(errors.ApiUnavailable, match="'hpk up' starts it"):
        await stage.find()
    stage.control_plane("https://127.0.0.1:1")
    with pytest.raises(errors.ApiUnavailable, match=r"Connection refused\. Cannot make a tunnel to .*: srun failed"):
        await stage.find(("tunnel", json.dumps({"error": "srun failed"})))


@pytest.mark.virtual_time
async def test_a_port_that_swallows_is_not_waited_for() -> None:
    """As firewalls do it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        with socket.create_connection(place), contextlib.ExitStack() as stack:
            for _ in range(3):
                more = stack.enter_context(socket.socket())
                more.setblocking(False)
                more.connect_ex(place)
            assert "no answer" in await reach.refusal(f"https://127.0.0.1:{place[1]}")


def test_an_overlay_leads_kubectl(stage: Stage) -> None:
    """It has the cluster with the other URL, and nothing that would hide what the user's own file says."""
    stage.control_plane("https://c1:1")
    path = reach.overlay(stage.settings, reach.Way(server="https://127.0.0.1:4", direct="https://c1:1"))
    document = yaml.safe_load(path.read_text())
    cluster = {"server": "https://127.0.0.1:4", "certificate-authority-data": "Y2E="}
    assert document == {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "hpk", "cluster": cluster}]}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_home_without_room_keeps_nobody_from_kubectl(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig that leads there is beside the gateway then, where the launcher removes it."""
    stage.control_plane("https://c1:1")
    real = jobdir.write_bytes

    def full(path: str, data: bytes, **how: Any) -> None:
        if path.startswith(stage.settings.directory.endpoint_directory):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        real(path, data, **how)

    monkeypatch.setattr(jobdir, "write_bytes", full)
    path = reach.overlay(stage.settings, reach.Way(server="https://127.0.0.1:4", direct="https://c1:1"))
    assert "server: https://127.0.0.1:4" in path.read_text()
    assert stage.settings.gateway is not None
    assert stage.settings.gateway.parent in path.parents


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("get pods", True),
        ("-n config get pods", True),
        ("exec p -- sh --help", True),
        ("--request-timeout=3s get nodes", True),
        ("config view", False),
        ("", False),
        ("--help", False),
        ("get pods --context work", False),
        ("get pods --kubeconfig=/x", False),
        ("version --client", False),
    ],
)
def test_only_what_asks_our_server_needs_a_way(stage: Stage, line: str, *, expected: bool) -> None:
    """Another cluster, or none, is the user's own affair."""
    stage.control_plane("https://c1:1")
    assert kubectl.is_for_us(line.split()) == expected
    text = stage.file.read_text().replace("current-context: hpk", "current-context: work")
    stage.file.write_text(text)
    assert not kubectl.is_for_us(line.split())


def test_kubectl_is_led(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kubeconfig before the user's own, which stays as it is."""
    stage.control_plane("https://127.0.0.1:1")
    stage.talk(TUNNEL)
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.extend(words))
    before = stage.file.read_text()
    kubectl.run(stage.settings, ["get", "pods"])
    overlay, _, own = became[2]["KUBECONFIG"].partition(":")
    assert "server: https://127.0.0.1:4" in Path(overlay).read_text()
    assert own == str(stage.file)
    assert stage.file.read_text() == before


@pytest.mark.parametrize("line", ["create configmap c --dry-run=client -o yaml", "set image -f x c=i --local"])
def test_kubectl_that_asks_nobody_needs_no_control_plane(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """It makes manifests before `hpk up`; where there is a way, it is led there all the same."""
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.extend(words))
    stage.talk(("^tunnel ", errors.SlurmUnavailable("slurmctld is away")))
    kubectl.run(stage.settings, line.split())
    assert became[1] == ["kubectl", *line.split()]
    assert "KUBECONFIG" not in became[2]
    for other in ("create configmap c --dry-run=server", "get pods", "exec p -- x --local"):
        with pytest.raises(errors.ApiUnavailable, match="no control plane runs"):
            kubectl.run(stage.settings, other.split())
    stage.control_plane("https://127.0.0.1:1")
    kubectl.run(stage.settings, line.split())
    with pytest.raises(errors.SlurmUnavailable):
        kubectl.run(stage.settings, ["get", "pods"])
    stage.talk(TUNNEL)
    kubectl.run(stage.settings, line.split())
    assert became[-1]["KUBECONFIG"].endswith(f":{stage.file}")


@pytest.mark.virtual_time
async def test_connect_leads_the_context_while_it_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """To the tunnel, also after a new control plane has put its own URL there; and back at the end."""
    stage.control_plane("https://c1:1")
    talk = stage.talk(LIVES, TUNNEL)
    running = asyncio.create_task(connect.run(stage.settings, port=9))
    for server in ("https://c1:1", "https://c2:2"):
        stage.control_plane(server)
        await asyncio.sleep(2 * connect.LOOK_SECONDS)
        assert kubeconfig.current()[1] == "https://127.0.0.1:4"
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert kubeconfig.current() == ("hpk", "https://c2:2")
    assert talk.calls[0].line.endswith("--port=9 --hold")
    assert "job 7 on c1 by srun: https://127.0.0.1:4" in capsys.readouterr().out


@pytest.mark.virtual_time
async def test_connect_ends_with_its_tunnel(stage: Stage) -> None:
    """And leaves nothing that leads nowhere."""
    stage.control_plane("https://c1:1")
    stage.tunnel()  # killed outright it leaves its record
    stage.talk(("^tunnels$", "[0, -9]"), TUNNEL)
    with pytest.raises(errors.ApiUnavailable, match="The tunnel has ended"):
        await connect.run(stage.settings, port=0)
    assert kubeconfig.current() == ("hpk", "https://c1:1")


def test_the_launcher_goes_the_same_way_by_itself(stage: Stage) -> None:
    """As long as the tunnel lives, and no control plane came anew."""
    lead = runpy.run_path(str(LAUNCHER))["tunnel"]
    state = str(stage.settings.state)
    stage.control_plane("https://c1:1")
    way = reach.Way(server="https://127.0.0.1:4", direct="https://c1:1")
    path = reach.overlay(stage.settings, way)
    assert lead(state) is None
    record = {"pid": os.getpid(), "started": tunnel.started(os.getpid()), "port": 4}
    file = protocol.tunnel_record(state)
    for wrong in ({"port": 5}, {"started": "1"}, {"pid": 0}):
        dial.write(file, json.dumps(record | wrong).encode())
        assert lead(state) is None
    dial.write(file, json.dumps(record).encode())
    assert lead(state) == str(path)
    os.utime(stage.settings.directory.kubeconfig, (2e9, 2e9))
    assert lead(state) is None
