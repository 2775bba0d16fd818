"""The preparation of a pod before its job is submitted, so that no compute time is spent waiting.

First images are converted, for any number of pods at a time; then ConfigMaps, Secrets and tokens are fetched and the
agent's certificate is issued, for a few at a time. Missing items are reported per container in the kubelet's words.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpk import errors, jobdir
from hpk.aio import backoff
from hpk.aio import clock as clocks
from hpk.images import reference
from hpk.pods import admit, runtime, script, translate
from hpk.volumes import plan as volume_plan
from hpk.volumes import sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from hpk import records
    from hpk.images import image as images
    from hpk.images import store
    from hpk.kube import client, v1
    from hpk.network import ipam, sandbox
    from hpk.pods import events

PULL_PAUSES = backoff.BackoffPolicy(first_seconds=10.0, cap_seconds=300.0)
CONFIG_PAUSE_SECONDS = 2.0
RUNTIME_PAUSE_SECONDS = 15.0
SHOW_ERROR_SECONDS = 1.0
"""How long a container shows ErrImagePull before ImagePullBackOff."""


class NotReady(errors.HpkError):
    """The pod cannot be submitted yet; ``waiting`` says why, ``seconds`` when to try again."""

    def __init__(self, waiting: Mapping[str, tuple[str, str]], *, seconds: float) -> None:
        super().__init__("; ".join(sorted({message or reason for reason, message in waiting.values()})))
        self.waiting, self.seconds = dict(waiting), seconds


@dataclass
class Attempts:
    """What a worker remembers between attempts.

    Attributes:
        failures: By image, how often its pull failed in a row.
        due: By image, when its next pull is due (`Clock.monotonic`).
        said: By image the last failure's reason; by container the reported image id.
        fresh: Images whose failure still shows as itself, not as a back-off.
        begun: (container, image) pairs whose pull was reported and has not failed: a retry is not reported again.
    """

    failures: dict[str, int] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    begun: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A pod whose job can be submitted: the contents of its directory's two files."""

    plan: records.PodPlan
    script: str


class Preparer:
    """The preparation of pods, with everything that it needs.

    Args:
        credentials: Returns a certificate for the agent of the pod with this UID.
    """

    def __init__(
        self,
        *,
        kube: client.Kube,
        store: store.ImageStore,
        credentials: Callable[[str], records.LinkCredentials],
        services: Callable[[], list[dict[str, Any]]],
        recorder: events.EventRecorder,
        site: translate.Site,
        launcher: sandbox.SandboxCommands,
        addresses: ipam.Addresses,
        state: jobdir.StateDirectory,
        clock: clocks.Clock = clocks.SYSTEM,
    ) -> None:
        self._kube, self._store, self._link_credentials, self._services = kube, store, credentials, services
        self._recorder, self._site, self._launcher, self._state = recorder, site, launcher, state
        self._addresses, self._clock = addresses, clock
        self._shared = sources.SharedConfigMaps()

    async def pull(self, pod: v1.Pod, *, cluster: admit.Cluster, attempts: Attempts) -> dict[str, images.Image]:
        """Return the images of all the pod's containers, by container name; may take minutes.

        Raises:
            NotReady: An image or the runtime class is missing; events have reported it.
            errors.PodRefused: A pull secret holds no docker config.
            errors.ApiUnavailable: The API server is unreachable.
        """
        if (trouble := runtime.trouble(pod, cluster)) is not None:
            self._recorder.tell(pod, "Warning", "FailedCreatePodSandBox", trouble)
            raise NotReady({}, seconds=RUNTIME_PAUSE_SECONDS)
        secrets = sources.Sources()
        if pod.spec.image_pull_secrets:
            with self._told(pod):
                secrets = await self._fetch(_only(pod))
        return await self._pull(pod, attempts, secrets)

    def keep(self, plan: records.PodPlan) -> None:
        """Keep what an earlier kubelet's plan promised to a pod."""
        if address := plan.get("address"):
            self._addresses.keep(plan["uid"], address["ip"])

    async def forget(self, uid: str) -> None:
        """Release the images of a pod that is gone."""
        await self._store.forget(Path(self._state.pod(uid).root))

    async def prepare(
        self,
        admitted: admit.Admitted,
        *,
        cluster: admit.Cluster,
        started_at: datetime,
        pulled: Mapping[str, images.Image],
    ) -> Ready:
        """Return what is submitted.

        Raises:
            NotReady: Something is missing; events have reported it.
            errors.PodRefused: The pod is not supported.
            errors.ApiUnavailable: The API server is unreachable.
        """
        pod = admitted.pod
        with self._told(pod):
            found = translate.Ingredients(
                images=pulled,
                sources=await self._fetch(pod),
                services=self._services(),
                link=self._link_credentials(pod.metadata.uid),
                started_at=started_at,
                address=self._addresses.give(pod.metadata.uid) if admitted.network == "overlay" else None,
            )
            plan = translate.pod_plan(admitted, site=self._site, cluster=cluster, found=found)
        directory = self._state.pod(pod.metadata.uid).root
        text = script.render(
            admitted,
            prelude=self._site.prelude,
            directory=Path(directory),
            commands=self._launcher.commands(plan, directory=directory),
            capacity=cluster.capacity,
        )
        return Ready(plan=plan, script=text)

    async def prepare_ephemeral(
        self, pod: v1.Pod, container: v1.Container, *, cluster: admit.Cluster, attempts: Attempts
    ) -> records.ContainerPlan:
        """Return the plan of a running pod's ephemeral container, or of one whose image was changed.

        Raises:
            NotReady: Something is missing; events have reported it.
            errors.PodRefused: The container is not supported.
            errors.ApiUnavailable: The API server is unreachable.
        """
        alone = _only(pod, container)
        with self._told(pod):
            fetched = await self._fetch(alone)
            pulled = await self._pull(alone, attempts, fetched)
            found = translate.Fetched(images=pulled, sources=fetched, services=self._services())
            return translate.container_plan(pod, container, site=self._site, cluster=cluster, found=found)

    async def token(self, pod: v1.Pod, key: sources.TokenKey) -> sources.IssuedToken:
        """Request another token for the pod with the key in its plan (see `sources.token`)."""
        return await sources.token(self._kube, pod, key)

    async def _fetch(self, pod: v1.Pod) -> sources.Sources:
        return await sources.gather(self._kube, pod, shared=self._shared)

    @contextlib.contextmanager
    def _told(self, pod: v1.Pod) -> Iterator[None]:
        """Record what is missing as an event, and raise `NotReady`."""
        try:
            yield
        except errors.PodRefused:
            raise
        except translate.ContainerConfigError as error:
            self._recorder.tell(pod, "Warning", "Failed", f"Error: {error}", container=error.container)
            waiting = {error.container: ("CreateContainerConfigError", str(error))}
            raise NotReady(waiting, seconds=CONFIG_PAUSE_SECONDS) from error
        except (volume_plan.SourceMissing, errors.Rejected, errors.NotFound) as error:
            # Rejected: such as a token for a deleted service account.
            self._recorder.tell(pod, "Warning", "FailedMount", str(error))
            raise NotReady({}, seconds=CONFIG_PAUSE_SECONDS) from error

    # Images

    async def _pull(self, pod: v1.Pod, attempts: Attempts, secrets: sources.Sources) -> dict[str, images.Image]:
        """Return every container's image; report errors of several containers together."""
        containers, credentials = pod.all_containers, _credentials(pod, secrets)
        answers = await asyncio.gather(*(self._ensure(pod, c, attempts, credentials) for c in containers))
        waiting = {c.name: answer for c, answer in zip(containers, answers, strict=True) if isinstance(answer, tuple)}
        if waiting:
            raise NotReady(waiting, seconds=self._pause(attempts, {c.image for c in containers}))
        return {c.name: a for c, a in zip(containers, answers, strict=True) if not isinstance(a, tuple)}

    async def _ensure(
        self, pod: v1.Pod, container: v1.Container, attempts: Attempts, credentials: Mapping[str, Any] | None
    ) -> images.Image | tuple[str, str]:
        name = container.image
        if attempts.due.get(name, 0.0) > self._clock.monotonic():
            return self._backing_off(pod, container, attempts)
        try:
            policy = container.image_pull_policy or reference.default_policy(name)
            image: images.Image = await self._store.ensure(
                name,
                policy=policy,
                credentials=credentials,
                on_pull=lambda: self._pulling(pod, container, attempts),
                pod=Path(self._state.pod(pod.metadata.uid).root),
            )
        except errors.RegistryUnavailable as error:
            advised = errors.RegistryUnavailable(f"{error}; {_advice(name, policy)}")
            return self._failed(pod, container, advised, attempts)
        except (errors.ImageRefused, errors.Retryable) as error:
            return self._failed(pod, container, error, attempts)
        attempts.failures.pop(name, None)
        if attempts.said.get(container.name) != image.image_id:
            attempts.said[container.name] = image.image_id
            self._recorder.tell(pod, "Normal", "Pulled", _pulled(image), container=container.name)
        return image

    def _pulling(self, pod: v1.Pod, container: v1.Container, attempts: Attempts) -> None:
        if (container.name, container.image) not in attempts.begun:
            attempts.begun.add((container.name, container.image))
            message = f'Pulling image "{container.image}"'
            self._recorder.tell(pod, "Normal", "Pulling", message, container=container.name)

    def _failed(
        self, pod: v1.Pod, container: v1.Container, error: errors.HpkError, attempts: Attempts
    ) -> tuple[str, str]:
        name = container.image
        failures = attempts.failures.get(name, 0)
        if attempts.due.get(name, 0.0) <= self._clock.monotonic():  # two containers with one image fail once
            failures = attempts.failures[name] = failures + 1
        pause = PULL_PAUSES.pause(failures)
        attempts.due[name] = self._clock.monotonic() + pause
        reason = error.reason if isinstance(error, errors.ImageRefused) else "ErrImagePull"
        attempts.said[name] = reason
        attempts.fresh.add(name)
        attempts.begun.discard((container.name, name))
        message = f'Failed to pull image "{name}": {error}' if reason == "ErrImagePull" else str(error)
        self._recorder.tell(pod, "Warning", "Failed", message, container=container.name)
        self._recorder.tell(pod, "Warning", "Failed", f"Error: {reason}", container=container.name)
        return reason, str(error)

    def _backing_off(self, pod: v1.Pod, container: v1.Container, attempts: Attempts) -> tuple[str, str]:
        attempts.fresh.discard(container.image)
        reason = attempts.said.get(container.image, "ErrImagePull")
        if reason != "ErrImagePull":
            return reason, f'Image "{container.image}" cannot be used'
        message = f'Back-off pulling image "{container.image}"'
        self._recorder.tell(pod, "Normal", "BackOff", message, container=container.name)
        self._recorder.tell(pod, "Warning", "Failed", "Error: ImagePullBackOff", container=container.name)
        return "ImagePullBackOff", message

    def _pause(self, attempts: Attempts, names: set[str]) -> float:
        """Return the seconds until the shown state changes: from error to back-off soon, then when a pull is due."""
        now = self._clock.monotonic()
        dues = [attempts.due[name] - now for name in names if attempts.due.get(name, 0.0) > now]
        shortest = min(dues, default=PULL_PAUSES.first_seconds)
        return min(shortest, SHOW_ERROR_SECONDS) if attempts.fresh & names else shortest


def _only(pod: v1.Pod, *containers: v1.Container) -> v1.Pod:
    """Return the pod with only these containers, so that nothing is fetched for the others and the volumes."""
    spec = msgspec.structs.replace(
        pod.spec, containers=list(containers), init_containers=[], ephemeral_containers=[], volumes=[]
    )
    return msgspec.structs.replace(pod, spec=spec)


def _credentials(pod: v1.Pod, found: sources.Sources) -> dict[str, Any] | None:
    """Return the registries' credentials as one docker config, None without pull secrets; a missing one adds none."""
    if not pod.spec.image_pull_secrets:
        return None
    auths: dict[str, Any] = {}
    for secret in pod.spec.image_pull_secrets:
        data = (found.secrets.get(secret.name) or {}).get("data") or {}
        try:
            config = json.loads(base64.b64decode(data.get(".dockerconfigjson", "")) or b"{}")
            older = json.loads(base64.b64decode(data.get(".dockercfg", "")) or b"{}")
            auths = {**older, **(config.get("auths") or {}), **auths}
        except (ValueError, AttributeError) as error:
            raise errors.PodRefused(
                f"imagePullSecret {secret.name} holds no docker config: {error}", reason="InvalidPullSecret"
            ) from error
    return {"auths": auths}


def _advice(name: str, policy: str) -> str:
    """Return advice for sites whose compute nodes reach no registry."""
    then = ", and set imagePullPolicy: IfNotPresent" if policy == "Always" else ""
    return f"if only login nodes reach the registry, run there: hpk pull {name}{then}"


def _pulled(image: images.Image) -> str:
    if not image.was_pulled:
        return f'Container image "{image.reference}" already present on machine'
    size = image.size_bytes
    return f'Successfully pulled image "{image.reference}" in {image.seconds:.3f}s. Image size: {size} bytes.'
