"""What a pod needs before its job is fetched once, and what is missing is said in the kubelet's words."""

from __future__ import annotations

import base64
import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hpk import config, errors
from hpk.images import image as images
from hpk.kube import v1
from hpk.network import ipam, sandbox
from hpk.pods import admit, prepare, translate
from hpk.slurm import parse
from hpk.volumes import sources
from tests.fakes import kube

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CLUSTER = admit.Cluster(name="hpk", allocatable={"cpu": Decimal(8)})
NAMESPACE = "/api/v1/namespaces/ns"


class FakeStore:
    """Images by reference; `errors` are raised once each."""

    def __init__(self) -> None:
        self.errors: dict[str, list[errors.HpkError]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.pods: list[Path] = []
        self.forgotten: list[Path] = []

    async def forget(self, pod: Path) -> None:
        self.forgotten.append(pod)

    async def ensure(self, name: str, *, policy: str, credentials: Any, on_pull: Any, pod: Path) -> images.Image:
        self.pods.append(pod)
        self.asked.append((name, policy, credentials))
        if policy == "Always" or self.errors.get(name):
            on_pull()
        if waiting := self.errors.get(name):
            raise waiting.pop(0)
        return images.Image(
            reference=name,
            image_id=f"id of {name}",
            file=Path("/images/a.sqfs"),
            offset=0,
            size_bytes=1,
            config=images.ImageConfig(command=("run",)),
            was_pulled=False,
            seconds=0.0,
        )


class FakeRecorder:
    """What was told: (reason, message)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def tell(self, _pod: v1.Pod, _kind: str, reason: str, message: str, **_: Any) -> None:
        self.told.append((reason, message))


class World:
    """A preparer with everything around it in memory."""

    def __init__(self, home: Path) -> None:
        settings = config.load(environment={"HPK_STATE": str(home)})
        self.api, self.store, self.recorder = kube.FakeKube(), FakeStore(), FakeRecorder()
        site = translate.Site(
            cluster_domain="cluster.local",
            api_host="192.0.2.1",
            api_port=6443,
            images=Path("/images"),
            prelude="",
        )
        fakes: dict[str, Any] = {"kube": self.api, "store": self.store, "recorder": self.recorder}
        self.preparer = prepare.Preparer(
            **fakes,
            credentials=lambda uid: {"ca": "", "certificate": uid, "key": ""},
            services=list,
            site=site,
            launcher=sandbox.SandboxCommands(settings),
            state=settings.directory,
            addresses=ipam.Addresses("10.244.0.0/16", pods=dict),
        )
        self.attempts = prepare.Attempts()

    async def once(
        self, container: dict[str, Any] | None = None, *, cluster: admit.Cluster = CLUSTER, **spec: Any
    ) -> prepare.Ready:
        """Try once."""
        raw = {"name": "c", "image": "reg/a:1", **(container or {})}
        meta = {"name": "p", "namespace": "ns", "uid": "u"}
        pod = v1.pod({"metadata": meta, "spec": {"containers": [raw], **spec}})
        pulled = await self.preparer.pull(pod, cluster=cluster, attempts=self.attempts)
        return await self.preparer.prepare(admit.derive(pod, cluster), cluster=cluster, started_at=NOW, pulled=pulled)

    async def waiting(self, container: dict[str, Any] | None = None, **spec: Any) -> prepare.NotReady:
        """Try once, in vain."""
        with pytest.raises(prepare.NotReady) as caught:
            await self.once(container, **spec)
        return caught.value


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A fresh one, that does not pause between tries of a read."""
    monkeypatch.setattr(sources, "SECONDS_TRIES", (0.0,))
    return World(tmp_path)


async def test_agent_and_slurm_hear_the_same_of_a_limit_that_the_partition_sets(world: World) -> None:
    """A warning that the agent would not expect, or expects in vain, ends a pod too early or too late."""
    row = ("c1", "main", "main*", "infinite", "0:01:00", "idle", "8", "16000", "(null)")
    capacity = parse.capacity(parse.UNIT.join(row) + parse.RECORD + "\n")
    ready = await world.once(cluster=dataclasses.replace(CLUSTER, capacity=capacity))
    assert ready.plan["warning"]["not_before"] == 30.0
    assert "--signal=B:50@20" in ready.script
    ready = await world.once()
    assert "not_before" not in ready.plan["warning"]
    assert "--signal=B:50@45" in ready.script


async def test_a_pod_with_all_that_it_needs_is_ready(world: World) -> None:
    """Plan, script and the images' names; the certificate is the pod's own."""
    ready = await world.once()
    container = ready.plan["containers"][0]
    assert (container["image"], container["image_id"]) == ("reg/a:1", "id of reg/a:1")
    assert container["argv"] == ["run"]
    assert ready.plan["link"]["certificate"] == "u"
    assert ready.script.startswith("#!/bin/bash\n#SBATCH ")
    assert [pod.name for pod in world.store.pods] == ["u"]
    await world.preparer.forget("u")
    assert world.store.forgotten == world.store.pods
    assert [reason for reason, _ in world.recorder.told] == ["Pulled"]


async def test_what_was_told_of_an_image_is_told_once(world: World) -> None:
    """However often the pod is prepared, for another reason."""
    await world.once()
    await world.once()
    assert [reason for reason, _ in world.recorder.told] == ["Pulled"]


@pytest.mark.parametrize(
    ("name", "given", "policy"),
    [
        ("reg/a", "", "Always"),
        ("reg/a:latest", "", "Always"),
        ("reg:5000/a", "", "Always"),
        ("reg/a:1", "", "IfNotPresent"),
        (f"reg/a@sha256:{64 * '0'}", "", "IfNotPresent"),
        ("reg/a", "Never", "Never"),
    ],
)
async def test_the_pull_policy_is_kubernetes_own(world: World, name: str, given: str, policy: str) -> None:
    """Always where the tag is latest or missing, unless the pod says."""
    await world.once({"image": name, "imagePullPolicy": given})
    assert world.store.asked[0][:2] == (name, policy)


async def test_a_pull_that_fails_shows_itself_and_then_backs_off(world: World) -> None:
    """ErrImagePull with the registry's answer, then ImagePullBackOff, and no pull before it is due."""
    world.store.errors["reg/a:1"] = [errors.ImageRefused("manifest unknown")]
    first = await world.waiting()
    assert first.waiting == {"c": ("ErrImagePull", "manifest unknown")}
    assert first.seconds <= prepare.SHOW_ERROR_SECONDS
    second = await world.waiting()
    assert second.waiting == {"c": ("ImagePullBackOff", 'Back-off pulling image "reg/a:1"')}
    assert prepare.SHOW_ERROR_SECONDS < second.seconds <= prepare.PULL_PAUSES.first_seconds
    assert len(world.store.asked) == 1
    assert [reason for reason, _ in world.recorder.told] == ["Pulling", "Failed", "Failed", "BackOff", "Failed"]


async def test_each_try_of_a_pull_is_told_and_no_other_look(world: World) -> None:
    """A pod that waits for something else asks for its image again each time; a kubelet tells of one pull."""
    container = {"image": "reg/a", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    world.store.errors["reg/a"] = [errors.RegistryUnavailable("away")] * 2
    for _ in range(3):
        await world.waiting(container)
        await world.waiting(container)
        world.attempts.due.clear()
    assert len(world.store.asked) == 4
    pulls = [reason for reason, _ in world.recorder.told if reason in {"Pulling", "Pulled"}]
    assert pulls == ["Pulling", "Pulling", "Pulling", "Pulled"]


async def test_pauses_between_pulls_double_and_end_with_success(world: World) -> None:
    """10 s, 20 s, and from the start again after a pull that worked."""
    world.store.errors["reg/a:1"] = [errors.RegistryUnavailable("away")] * 2
    for seconds in (10.0, 20.0):
        world.attempts.due.clear()
        await world.waiting()
        assert seconds / 2 < (await world.waiting()).seconds <= seconds
    world.attempts.due.clear()
    await world.once()
    assert world.attempts.failures == {}


async def test_a_registry_that_compute_nodes_do_not_reach_is_explained(world: World) -> None:
    """The error names the command that helps, and what else it takes."""
    world.store.errors["reg/a:1"] = [errors.RegistryUnavailable("away")]
    told = (await world.waiting()).waiting["c"][1]
    assert told == "away; if only login nodes reach the registry, run there: hpk pull reg/a:1"
    world.store.errors["reg/a"] = [errors.RegistryUnavailable("away")]
    told = (await world.waiting({"image": "reg/a"})).waiting["c"][1]
    assert told.endswith("hpk pull reg/a, and set imagePullPolicy: IfNotPresent")


async def test_an_image_that_can_never_be_used_keeps_its_reason(world: World) -> None:
    """InvalidImageName does not turn into a back-off."""
    world.store.errors["A:"] = [errors.ImageRefused("bad name", reason="InvalidImageName")]
    await world.waiting({"image": "A:"})
    assert (await world.waiting({"image": "A:"})).waiting["c"][0] == "InvalidImageName"


async def test_a_missing_config_map_is_a_config_error_of_its_container(world: World) -> None:
    """In the kubelet's words; it is looked for again soon, and found when it is there."""
    container = {"envFrom": [{"configMapRef": {"name": "settings"}}]}
    error = await world.waiting(container)
    assert error.waiting == {"c": ("CreateContainerConfigError", 'configmap "settings" not found')}
    world.api.put(f"{NAMESPACE}/configmaps/settings", {"metadata": {"name": "settings"}, "data": {"A": "1"}})
    ready = await world.once(container)
    assert ["A", "1"] in ready.plan["containers"][0]["env"]


async def test_a_missing_volume_source_is_a_failed_mount(world: World) -> None:
    """The container stays ContainerCreating; the event names the volume."""
    error = await world.waiting(volumes=[{"name": "v", "secret": {"secretName": "s"}}])
    assert error.waiting == {}
    assert world.recorder.told[-1] == ("FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "s" not found')


@pytest.mark.parametrize("error", [errors.NotFound('serviceaccounts "gone" not found'), errors.Rejected("forbidden")])
async def test_a_read_that_is_refused_is_told_and_tried_again(world: World, error: errors.HpkError) -> None:
    """A token for a service account that is gone leaves no silent pod."""
    world.api.fail(error)
    world.api.fail(error)
    token = {"serviceAccountToken": {"path": "token"}}
    await world.waiting(serviceAccountName="gone", volumes=[{"name": "t", "projected": {"sources": [token]}}])
    assert ("FailedMount", str(error)) in world.recorder.told


async def test_pull_secrets_reach_the_registry_client(world: World) -> None:
    """All of them together, the first one winning."""
    for name, word in (("one", "Zmlyc3Q="), ("two", "c2Vjb25k")):
        text = f'{{"auths": {{"reg": {{"auth": "{word}"}}, "{name}": {{}}}}}}'
        data = {".dockerconfigjson": base64.b64encode(text.encode()).decode()}
        world.api.put(f"{NAMESPACE}/secrets/{name}", {"metadata": {"name": name}, "data": data})
    older = base64.b64encode(b'{"reg": {"auth": "b2xk"}, "old": {"auth": "b2xk"}}').decode()
    world.api.put(f"{NAMESPACE}/secrets/old", {"metadata": {"name": "old"}, "data": {".dockercfg": older}})
    await world.once(imagePullSecrets=[{"name": name} for name in ("one", "two", "missing", "old")])
    auths = {"reg": {"auth": "Zmlyc3Q="}, "one": {}, "two": {}, "old": {"auth": "b2xk"}}
    assert world.store.asked[0][2] == {"auths": auths}


async def test_a_runtime_that_is_not_here_is_waited_for(world: World) -> None:
    """In the kubelet's words: a pod that wants a sandbox of another kind must not run without it."""
    cluster = dataclasses.replace(CLUSTER, runtime_handlers={"gvisor": "runsc"})
    with pytest.raises(prepare.NotReady):
        await world.once(cluster=cluster, runtimeClassName="gvisor")
    (told,) = world.recorder.told
    assert told == (
        "FailedCreatePodSandBox",
        'Failed to create pod sandbox: no runtime for "runsc" is configured (handlers: apptainer, crun, runc)',
    )


async def ephemeral(world: World, container: dict[str, Any], **spec: Any) -> Any:
    """The plan of an ephemeral container of a pod whose own needs cannot be met any more."""
    own = {"name": "c", "image": "reg/gone:1", "envFrom": [{"secretRef": {"name": "gone"}}]}
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "secret": {"secretName": "gone"}}]
    raw = {"name": "d", "image": "reg/a:1", **container}
    meta = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}}
    pod = v1.pod(
        {"metadata": meta, "spec": {"containers": [own], "volumes": volumes, "ephemeralContainers": [raw], **spec}}
    )
    (one,) = pod.spec.ephemeral_containers
    return await world.preparer.prepare_ephemeral(pod, one, cluster=CLUSTER, attempts=world.attempts)


async def test_an_ephemeral_container_is_made_ready_by_itself(world: World) -> None:
    """Its own image, Secrets and mounts; what the pod needed once is not asked for again."""
    secret = {"metadata": {"name": "s"}, "data": {"K": base64.b64encode(b"v").decode()}}
    world.api.put(f"{NAMESPACE}/secrets/s", secret)
    env: list[dict[str, Any]] = [{"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]
    env.append({"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}})
    plan = await ephemeral(
        world,
        {
            "targetContainerName": "c",
            "envFrom": [{"secretRef": {"name": "s"}}],
            "env": env,
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "stdin": True,
            "tty": True,
        },
        restartPolicy="Always",
    )
    assert (plan["kind"], plan["target"], plan["restart_policy"]) == ("ephemeral", "c", "Never")
    assert (plan["tty"], plan["stdin"], plan["image_id"]) == (True, True, "id of reg/a:1")
    assert [value for value in plan["env"] if value[0] in "KLC"] == [["K", "v"], ["L", "b"], ["C", "8"]]
    assert [mount["path"] for mount in plan["mounts"]] == ["/v"]
    assert [name for name, _, _ in world.store.asked] == ["reg/a:1"]


@pytest.mark.parametrize(
    ("container", "reason", "words"),
    [
        ({"envFrom": [{"secretRef": {"name": "no"}}]}, "CreateContainerConfigError", 'secret "no" not found'),
        ({"securityContext": {"runAsNonRoot": True}}, "CreateContainerConfigError", "image will run as root"),
        ({"image": "reg/bad:1"}, "ErrImagePull", "no such image"),
    ],
)
async def test_what_an_ephemeral_container_lacks_is_said(
    world: World, container: dict[str, Any], reason: str, words: str
) -> None:
    """In the kubelet's words, as for others."""
    world.store.errors["reg/bad:1"] = [errors.ImageRefused("no such image")]
    with pytest.raises(prepare.NotReady) as caught:
        await ephemeral(world, container)
    assert caught.value.waiting["d"][0] == reason
    assert words in caught.value.waiting["d"][1]
