"""The plan of a pod's volumes: the files that the agent will make; pure.

Modes and layout are the kubelet's (pkg/volume/{configmap,secret,projected,downwardapi}): ``defaultMode`` 0644, only
the listed items if there are any, and later projections override earlier ones.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.kube import quantity
from hpk.volumes import bundles, downward, sources

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from hpk import records
    from hpk.kube import v1

DEFAULT_MODE = 0o644
OWNED_MODE = 0o600
"""Mode of a file with an owner; the agent adds the permissions for an fsGroup."""


class SourceMissing(errors.HpkError):
    """A ConfigMap, a Secret or a key that a volume needs does not exist (yet)."""

    def __init__(self, message: str, *, volume: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {message}')
        self.volume = volume


def volumes(
    pod: v1.Pod, found: sources.Sources, *, allocatable: Mapping[str, Decimal], memory_limit: int | None = None
) -> list[records.Volume]:
    """Return the pod's volumes for the agent; those in memory are at most as large as the pod's memory limit.

    Raises:
        SourceMissing: A source of a volume is missing; the text is the kubelet's.
    """
    return [_volume(pod, volume, found, allocatable, memory_limit) for volume in pod.spec.volumes]


def _volume(
    pod: v1.Pod,
    volume: v1.Volume,
    found: sources.Sources,
    allocatable: Mapping[str, Decimal],
    memory_limit: int | None,
) -> records.Volume:
    if volume.host_path:
        path, kind = volume.host_path.path, volume.host_path.type
        return {"name": volume.name, "kind": "host_path", "host_path": path, "host_path_type": kind}
    if volume.projected or volume.config_map or volume.secret or volume.downward_api:
        builder = _Files(pod, volume, found, allocatable)
        return {"name": volume.name, "kind": "files", "files": builder.files()}
    directory = volume.empty_dir
    limit = directory.size_limit if directory else None
    size = quantity.ceiling(quantity.parse(limit)) if limit is not None else None
    medium = directory.medium if directory else ""
    if medium == "Memory" and memory_limit:
        # Its content counts as the pod's memory (pkg/volume/emptydir, calculateEmptyDirMemorySize).
        size = min(size or memory_limit, memory_limit)
    return {"name": volume.name, "kind": "empty_dir", "medium": medium, "size_limit": size}


def only_user(pod: v1.Pod) -> int | None:
    """Return the user that all containers of the pod run as, or None (pkg/volume/util FsUserFrom)."""
    users = set()
    for container in (*pod.all_containers, *pod.spec.ephemeral_containers):
        own = container.security_context.run_as_user
        users.add(pod.spec.security_context.run_as_user if own is None else own)
    return users.pop() if len(users) == 1 else None


class _Files:
    """Collects the files of one volume; a later file replaces one with the same path."""

    def __init__(
        self, pod: v1.Pod, volume: v1.Volume, found: sources.Sources, allocatable: Mapping[str, Decimal]
    ) -> None:
        self._pod, self._volume, self._found, self._allocatable = pod, volume, found, allocatable
        self._files: dict[str, records.File] = {}

    def files(self) -> list[records.File]:
        volume = self._volume
        if volume.projected:
            for source in volume.projected.sources:
                self._add_all(source, volume.projected.default_mode)
        else:
            self._add_all(volume, None)
        return [self._files[path] for path in sorted(self._files)]

    def _add_all(self, source: Any, default: int | None) -> None:
        if source.config_map:
            self._add_config_map(source.config_map, default)
        if source.secret:
            self._add_secret(source.secret, default)
        if source.downward_api:
            self._add_downward(source.downward_api, default)
        if token := getattr(source, "service_account_token", None):
            key = sources.token_key(token)
            found = self._found.tokens[key]
            self._add_owned(token.path, found.text, default)
            self._files[token.path]["token"] = {
                "audience": key[0],
                "expiration_seconds": key[1],
                "renew_at": found.renew_at,
            }
        if trusted := getattr(source, "cluster_trust_bundle", None):
            self._add_bundle(trusted, default)

    def _add(self, path: str, data: bytes, mode: int | None) -> None:
        text = base64.b64encode(data).decode()
        self._files[path] = {"path": path, "mode": DEFAULT_MODE if mode is None else mode, "data": text}

    def _add_owned(self, path: str, text: str, default: int | None) -> None:
        """Add a token or trust bundle, readable by the one user of the pod's containers or by its fsGroup, if any."""
        user = only_user(self._pod)
        has_owner = user is not None or self._pod.spec.security_context.fs_group is not None
        self._add(path, text.encode(), OWNED_MODE if has_owner else default)
        if user is not None:
            self._files[path]["uid"] = user

    def _add_config_map(self, source: v1.ConfigMapSource, default: int | None) -> None:
        item = self._found.config_maps.get(source.name)
        data = {} if item is None else {key: value.encode() for key, value in (item.get("data") or {}).items()}
        if item is not None:
            data |= {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
        self._add_keys("configmap", source.name, source, None if item is None else data, default)

    def _add_secret(self, source: v1.SecretSource, default: int | None) -> None:
        name = source.secret_name or source.name
        item = self._found.secrets.get(name)
        data = {key: base64.b64decode(value) for key, value in ((item or {}).get("data") or {}).items()}
        self._add_keys("secret", name, source, None if item is None else data, default)

    def _add_keys(
        self,
        kind: str,
        name: str,
        source: v1.ConfigMapSource | v1.SecretSource,
        data: dict[str, bytes] | None,
        default: int | None,
    ) -> None:
        mode = source.default_mode if source.default_mode is not None else default
        if data is None:
            if source.optional:
                return
            raise SourceMissing(f'{kind} "{name}" not found', volume=self._volume.name)
        if not source.items:
            for key, value in data.items():
                self._add(key, value, mode)
        for item in source.items:
            if item.key in data:
                self._add(item.path, data[item.key], mode if item.mode is None else item.mode)
            elif not source.optional:
                raise SourceMissing(f"{kind} references non-existent key: {item.key}", volume=self._volume.name)

    def _add_bundle(self, source: v1.TrustBundleSource, default: int | None) -> None:
        text = self._found.bundles.get(bundles.key(source))
        if text is None and not source.optional:
            named = (
                f'clustertrustbundle "{source.name}"' if source.name else f"clustertrustbundle of {source.signer_name}"
            )
            raise SourceMissing(f"{named} not found", volume=self._volume.name)
        self._add_owned(source.path, text or "", default)

    def _add_downward(self, source: v1.DownwardSource, default: int | None) -> None:
        for item in source.items:
            text = self._downward(item)
            mode = next((m for m in (item.mode, source.default_mode, default) if m is not None), None)
            self._add(item.path, text.encode(), mode)

    def _downward(self, item: v1.DownwardItem) -> str:
        if item.field_ref:
            return downward.field(self._pod, item.field_ref.field_path)
        if item.resource_field_ref:
            return downward.resource(self._pod, "", item.resource_field_ref, allocatable=self._allocatable)
        return ""
