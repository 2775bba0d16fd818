"""The image store, this room's only interface: ensures that an image is on the file system.

An image in the cache costs two stats and no network. Any other is pulled once, however many pods wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import signal
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from hpk import errors
from hpk.images import (
    authorization,
    bounds,
    cache,
    collect,
    image,
    reference,
    registry,
    responses,
    sif,
    singleflight,
    uses,
)
from hpk.images import credentials as docker_config
from hpk.images import workspace as workspaces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from hpk.images import manifest

LOG = structlog.get_logger(__name__)

_DOWNLOADS: Final = 3
"""Layers of one image that are fetched at once; containerd's default."""
FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
_ADVICE: Final = "; free some space there (hpk prune), or let HPK_IMAGES name a directory elsewhere"
NOT_OURS: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a directory that we cannot write to: no image can be removed from it either."""
_ROOM_FOR_EACH_BYTE: Final = 3
"""Layers and the image made of them coexist for a while."""
_PULLS: Final = 4
"""Images fetched at once; each holds a few megabytes of memory."""


class _Full(errors.Retryable):
    """The disk or the user's quota is full."""


@dataclass(frozen=True, kw_only=True)
class CachedImage:
    """An image for ``node.status.images``; its names are references with tag or digest."""

    names: tuple[str, ...]
    size_bytes: int


class ImageStore:
    """All images of a user, in one directory; an async context manager that closes its connections.

    Args:
        directory: On the file system that all nodes share; created when first needed.
        conversions: Images converted at once; each uses all CPUs for a moment.
        has_one_owner: Whether root owns all files of converted images; they need a separate directory.
        policy: Bounds on the space of images; without one nothing is ever removed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        insecure: Collection[str] = (),
        conversions: int = 1,
        has_one_owner: bool = False,
        client: registry.Registry | None = None,
        used_by: uses.Uses | None = None,
        policy: collect.ImageGCPolicy | None = None,
    ) -> None:
        self._directory = directory
        self._uses = used_by or uses.Uses(directory)
        self._has_one_owner = has_one_owner
        self._registry = client or registry.Registry(insecure=insecure)
        self._cache = cache.Cache(directory)
        self.collector = collect.Collector(self._cache, self._uses, policy) if policy else None
        self._resolving: singleflight.Flights[str] = singleflight.Flights()
        self._pulling: singleflight.Flights[cache.Stored] = singleflight.Flights()
        self._fetching: singleflight.Flights[None] = singleflight.Flights()
        self._pulls = asyncio.Semaphore(_PULLS)
        self._conversions = asyncio.Semaphore(conversions)
        self._sifs: dict[str, tuple[tuple[int, ...], sif.Sif]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to registries."""
        await self._registry.close()

    async def ensure(
        self,
        name: str,
        *,
        policy: str,
        credentials: Mapping[str, Any] | None = None,
        on_pull: Callable[[], None] | None = None,
        pod: Path | None = None,
        is_pinned: bool = False,
    ) -> image.Image:
        """Return the image, pulled if it is missing or the policy asks for it; overlapping calls share the work.

        Args:
            name: The container's ``image:``, or the absolute path of a SIF file.
            policy: The imagePullPolicy: ``Always``, ``IfNotPresent`` or ``Never``; ignored for a SIF file.
            credentials: A ``.dockerconfigjson``, from imagePullSecrets.
            on_pull: Called once before a registry is contacted; not if the cached image is used.
            pod: The directory of the pod that will use it: the image is kept until the pod has ended.
            is_pinned: Whether the user wants to keep it, used or not.

        Raises:
            errors.ImageRefused: The name, the registry's response or the image is wrong; ``reason`` says which.
            errors.RegistryUnavailable: The registry does not respond.
            errors.Retryable: The local disk is full, or a program is missing.
        """
        started = time.monotonic()
        wanted = reference.parse(name)
        if isinstance(wanted, reference.SifPath):
            return await self._sif(wanted, name=name, started=started)
        stored = await asyncio.to_thread(self._cache.find, wanted)
        if policy == "Never" and stored is None:
            message = f'Container image "{name}" is not present with pull policy of Never'
            raise errors.ImageRefused(message, reason="ErrImageNeverPull")
        known = stored
        if stored is None or policy == "Always":
            access = authorization.Access(reference=wanted, login=docker_config.find(credentials, wanted=wanted))
            with responses.told(f'failed to pull and unpack image "{wanted}"'):
                if on_pull is not None:
                    on_pull()
                stored = await self._refresh(access, known=known)
        try:
            is_there = await asyncio.to_thread(self._hold, wanted, stored, pod=pod, is_pinned=is_pinned)
        except OSError as error:
            raise self._cannot_store(error) from error
        if not is_there:  # another process has made room meanwhile
            raise errors.Retryable(f'image "{name}" was removed from {self._directory} a moment ago')
        return image.Image(
            reference=name,
            image_id=f"{wanted.name}@{stored.digest}",
            file=stored.file,
            offset=0,
            size_bytes=stored.size_bytes,
            config=stored.config,
            was_pulled=stored is not known,
            seconds=time.monotonic() - started,
        )

    async def forget(self, pod: Path) -> None:
        """Remove the uses of a pod that is gone; `tidy` retries failures."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._uses.forget, pod)

    async def tidy(self) -> None:
        """Remove the uses of all pods that are gone."""
        await asyncio.to_thread(self._uses.tidy)

    async def list(self) -> tuple[CachedImage, ...]:
        """Return the cached images, the biggest first, as the kubelet lists them."""
        names: dict[str, dict[str, None]] = {}
        sizes: dict[str, int] = {}
        for stored in await asyncio.to_thread(self._cache.references):
            wanted = reference.parse(stored.reference)
            assert isinstance(wanted, reference.Reference)
            sizes[stored.manifest] = stored.size_bytes
            named = names.setdefault(stored.manifest, {})
            named[f"{wanted.name}@{stored.digest}"] = None
            if wanted.tag:
                named[f"{wanted.name}:{wanted.tag}"] = None
        images = [CachedImage(names=tuple(names[key]), size_bytes=size) for key, size in sizes.items()]
        return tuple(sorted(images, key=lambda one: (-one.size_bytes, one.names)))

    def _hold(self, wanted: reference.Reference, stored: cache.Stored, *, pod: Path | None, is_pinned: bool) -> bool:
        """Record the image's use, then return whether the image exists (in this order, see `uses`)."""
        key = stored.file.stem
        if is_pinned:
            self._cache.pin(wanted, stored)
        if pod is not None:
            try:
                self._uses.add(key, pod)
            except OSError as error:
                if error.errno not in NOT_OURS:
                    raise
        self._cache.touch(key)
        return (pod is None and not is_pinned) or self._cache.is_there(stored)

    async def _sif(self, wanted: reference.SifPath, *, name: str, started: float) -> image.Image:
        read, size_bytes = await asyncio.to_thread(self._read_sif, wanted.path)
        return image.Image(
            reference=name,
            image_id=f"file://{wanted.path}@{read.digest}",
            file=Path(wanted.path),
            offset=read.offset,
            size_bytes=size_bytes,
            config=read.config,
            was_pulled=False,
            seconds=time.monotonic() - started,
        )

    def _read_sif(self, path: str) -> tuple[sif.Sif, int]:
        try:
            status = Path(path).stat()
        except OSError as error:
            advice = "; outside your home, HPK_BIND must name its directory" if error.errno == errno.ENOENT else ""
            raise errors.ImageRefused(f"Cannot read the SIF file {path}: {error.strerror}{advice}") from error
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise errors.ImageRefused(f"Cannot read the SIF file {path}: it is not a regular file")
        fingerprint = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._sifs.get(path)
        if known is None or known[0] != fingerprint:
            known = self._sifs[path] = (fingerprint, sif.read(Path(path)))
        return known[1], status.st_size

    async def _refresh(self, access: authorization.Access, *, known: cache.Stored | None) -> cache.Stored:
        digest = await self._resolving.join(access, start=lambda: self._registry.resolve(access))
        if known is not None and known.digest == digest:
            return known
        return await self._pulling.join((access, digest), start=lambda: self._pull(access, digest=digest))

    async def _pull(self, access: authorization.Access, *, digest: str) -> cache.Stored:
        name = str(access.reference)
        chosen, found = await self._registry.fetch_manifest(access, digest=digest)
        try:
            bounds.check_layers([layer.size for layer in found.layers])
        except bounds.TooMuch as error:
            raise errors.ImageRefused(str(error)) from error
        config = await self._registry.fetch_config(access, descriptor=found.config)
        try:
            # Another name may have brought the same manifest; the registry has just granted access to it.
            stored = await asyncio.to_thread(self._cache.load, chosen, reference=name, digest=digest)
            if stored is None:
                fetch = functools.partial(self._fetch, access, chosen=chosen, layers=found.layers, config=config)
                wanted = _ROOM_FOR_EACH_BYTE * sum(layer.size for layer in found.layers)
                await self._fetching.join(chosen, start=lambda: self._with_room(fetch, wanted_bytes=wanted))
            await asyncio.to_thread(self._cache.link, access.reference, digest=digest, manifest=chosen)
            stored = await asyncio.to_thread(self._cache.find, access.reference)
        except OSError as error:
            raise self._cannot_store(error) from error
        if stored is None:
            raise errors.Retryable(f"the converted image vanished from {self._directory}")
        return stored

    async def _with_room(self, fetch: Callable[[], Awaitable[None]], *, wanted_bytes: int) -> None:
        """Fetch an image; if the disk or the quota is full, remove unused images and try once more."""
        async with self._pulls:
            try:
                await fetch()
            except (_Full, OSError) as error:
                if isinstance(error, OSError) and error.errno not in FULL_ERRORS:
                    raise
                if self.collector is None or not await asyncio.to_thread(self.collector.make_room, wanted_bytes):
                    raise
                await fetch()

    async def _fetch(
        self,
        access: authorization.Access,
        *,
        chosen: str,
        layers: Sequence[manifest.Descriptor],
        config: image.ImageConfig,
    ) -> None:
        """Download the layers and convert them into the cache."""
        async with _in_thread(workspaces.made(self._directory)) as workspace:
            started = time.monotonic()
            files = {layer.digest: workspace / layer.digest.replace(":", "-") for layer in layers}
            await self._download(access, layers=layers, files=files)
            downloaded = time.monotonic()
            output = workspace / "image.sqfs"
            async with self._conversions:
                answer = await _convert(
                    [str(files[layer.digest]) for layer in layers],
                    output=str(output),
                    has_one_owner=self._has_one_owner,
                )
            if "error" in answer:
                raise self._cannot_convert(answer)
            await asyncio.to_thread(self._cache.add, chosen, converted=output, config=config)
            LOG.info(
                "Converted an image",
                image=str(access.reference),
                digest=chosen,
                download_seconds=round(downloaded - started, 3),
                convert_seconds=round(time.monotonic() - downloaded, 3),
                bytes=answer["bytes"],
            )

    def _cannot_convert(self, answer: Mapping[str, Any]) -> errors.HpkError:
        if answer["is_images_fault"]:
            return errors.ImageRefused(f"failed to extract layer: {answer['error']}")
        text = f"failed to convert into {self._directory}: {answer['error']}"
        is_full = any(os.strerror(number) in answer["error"] for number in FULL_ERRORS)
        return _Full(text + _ADVICE) if is_full else errors.Retryable(text)

    async def _download(
        self, access: authorization.Access, *, layers: Sequence[manifest.Descriptor], files: Mapping[str, Path]
    ) -> None:
        several = asyncio.Semaphore(_DOWNLOADS)

        async def one(layer: manifest.Descriptor) -> None:
            async with several:
                await self._registry.download(access, descriptor=layer, path=files[layer.digest])

        try:
            async with asyncio.TaskGroup() as group:
                for layer in {layer.digest: layer for layer in layers}.values():
                    group.create_task(one(layer))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # the others were cancelled because of it

    def _cannot_store(self, error: OSError) -> errors.Retryable:
        advice = _ADVICE if error.errno in FULL_ERRORS else ""
        return errors.Retryable(f"cannot write to {self._directory}: {error.strerror or error}{advice}")


async def _convert(files: Sequence[str], *, output: str, has_one_owner: bool) -> dict[str, Any]:
    """Run the converter; kill it and its children if cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hpk.images.convert",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        # The converter needs our sys.path, which hpk.sif's entry point sets itself.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        request = json.dumps({"layers": files, "output": output, "has_one_owner": has_one_owner}).encode()
        said, complaint = await process.communicate(request)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        answer = _without_answer(process.returncode, complaint)
    return answer


def _without_answer(status: int | None, complaint: bytes) -> dict[str, Any]:
    if status == -signal.SIGXCPU:
        why = f"the image cannot be converted within {bounds.DEFAULT.cpu_seconds} s of CPU time"
        return {"error": why, "is_images_fault": True}
    if status == -signal.SIGKILL:
        why = "the converter was killed: the control plane's job may be short of memory (hpk up --mem=4G)"
        return {"error": why, "is_images_fault": False}
    last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
    return {"error": f"the converter ended with status {status}: {last}", "is_images_fault": False}


@contextlib.asynccontextmanager
async def _in_thread(manager: contextlib.AbstractContextManager[Path]) -> Any:
    """Enter and leave a blocking context manager in threads."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
