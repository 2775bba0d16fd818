"""Manifests and indexes: an image's blobs, and the image of an index for this machine. Pure.

Formats: https://github.com/opencontainers/image-spec and Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hpk import errors
from hpk.images import reference

_DOCKER: Final = "application/vnd.docker.distribution.manifest"
_OCI: Final = "application/vnd.oci.image"
ACCEPT: Final = ", ".join(
    (f"{_DOCKER}.v2+json", f"{_DOCKER}.list.v2+json", f"{_OCI}.manifest.v1+json", f"{_OCI}.index.v1+json", "*/*;q=0.1")
)
LARGEST_DOCUMENT: Final = 8 << 20
"""Most bytes of a manifest or a config; containerd's limit."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A blob or a manifest, addressed by its digest."""

    digest: str
    size: int
    media_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One image for one platform: its config and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, kw_only=True)
class Index:
    """Several images under one name, each with its platform (``os``, ``architecture``, ``variant``)."""

    manifests: tuple[tuple[Descriptor, Mapping[str, Any]], ...]


def read(body: bytes, *, media_type: str) -> Manifest | Index:
    """Parse a manifest or an index.

    Raises:
        errors.ImageRefused: Another kind of document, such as schema 1 or an artifact.
    """
    try:
        document = json.loads(body)
        if not isinstance(document, Mapping):
            raise ValueError("it is not an object")  # noqa: TRY004, TRY301 - one error for any wrong shape
        kind = document.get("mediaType") or media_type
        if document.get("schemaVersion") == 1 or kind.startswith(f"{_DOCKER}.v1"):
            message = f'media type "{kind}" is no longer supported: build or push the image again with a newer tool'
            raise errors.ImageRefused(message)
        if "manifests" in document:
            pairs = [(_descriptor(entry), entry.get("platform") or {}) for entry in document["manifests"]]
            return Index(manifests=tuple(pairs))
        layers = tuple(_descriptor(entry) for entry in document["layers"])
        return Manifest(config=_descriptor(document["config"]), layers=layers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.ImageRefused(f"the registry's manifest cannot be read: {error!r}") from error


def choose(index: Index, *, architecture: str) -> Descriptor:
    """Return the image for this machine; the first of several variants, as the index's author ordered them.

    Raises:
        errors.ImageRefused: There is none; names the available platforms.
    """
    known = []
    for descriptor, platform in index.manifests:
        system, machine = platform.get("os", ""), platform.get("architecture", "")
        if (system, machine) == ("linux", architecture):
            return descriptor
        if system not in ("", "unknown"):
            known.append(f"{system}/{machine}")
    listed = f" (it has {', '.join(dict.fromkeys(known))})" if known else ""
    raise errors.ImageRefused(f"no match for platform linux/{architecture} in manifest{listed}: not found")


def _descriptor(entry: Mapping[str, Any]) -> Descriptor:
    digest, size = entry["digest"], entry["size"]
    if not isinstance(digest, str) or not reference.is_digest(digest):
        raise ValueError(f"not a digest: {digest!r}")
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"not a size: {size!r}")
    return Descriptor(digest=digest, size=size, media_type=str(entry.get("mediaType") or ""))
