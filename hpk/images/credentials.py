"""The credentials for an image in a Docker config (``.dockerconfigjson``). Pure.

A key of ``auths`` names a registry, or a path in one; ``*`` matches one label of the host's name. The longest
matching key wins, as in the kubelet (https://kubernetes.io/docs/concepts/containers/images/).
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpk.images import reference

_DOCKER_HUB = ("index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user of a registry, with a password or an identity token in its place."""

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The Authorization header for HTTP's Basic scheme."""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find(docker_config: Mapping[str, Any] | None, *, wanted: reference.Reference) -> Credentials | None:
    """Return the credentials for the image, or None; ignore entries that cannot be read."""
    best: tuple[tuple[int, int], Credentials] | None = None
    auths = (docker_config or {}).get("auths")
    for key, entry in (auths if isinstance(auths, Mapping) else {}).items():
        found, closeness = _read(entry), _closeness(key, wanted=wanted)
        if found is not None and closeness is not None and (best is None or closeness > best[0]):
            best = (closeness, found)
    return best[1] if best else None


def _closeness(key: str, *, wanted: reference.Reference) -> tuple[int, int] | None:
    """Return how exactly a key names the image, as the lengths of its path and host; None if it does not."""
    host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
    path = path.strip("/")
    if path in ("v1", "v2"):
        path = ""
    if host in _DOCKER_HUB:
        host = "docker.io"
    if not _is_host_covered(host, host=wanted.registry):
        return None
    if path and wanted.repository != path and not wanted.repository.startswith(f"{path}/"):
        return None
    return len(path), len(host)


def _is_host_covered(pattern: str, *, host: str) -> bool:
    (name, _, port), (name_pattern, _, port_pattern) = host.partition(":"), pattern.partition(":")
    labels, patterns = name.split("."), name_pattern.split(".")
    return (
        port == port_pattern
        and len(labels) == len(patterns)
        and all(fnmatch.fnmatchcase(label, one) for label, one in zip(labels, patterns, strict=True))
    )


def _read(entry: Any) -> Credentials | None:
    if not isinstance(entry, Mapping):
        return None
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            pair = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        username, _, password = pair.rstrip("\0").partition(":")
    token = str(entry.get("identitytoken") or "")
    if not (username or token):
        return None
    return Credentials(username=username, password=password, identity_token=token)
