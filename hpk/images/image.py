"""An image as the other rooms see it: a squashfs file system at an offset in a file, and a config."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_GO_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The part of an image's config that decides how its container starts."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    user: str = ""
    stop_signal: str = ""
    architecture: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the config as the cache stores it; :func:`config_from_json` reads it."""
        return {
            "config": {
                "Entrypoint": list(self.entrypoint),
                "Cmd": list(self.command),
                "Env": [f"{name}={value}" for name, value in self.env],
                "WorkingDir": self.working_dir,
                "User": self.user,
                "StopSignal": self.stop_signal,
            },
            "architecture": self.architecture,
        }


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on the file system, ready to be mounted.

    Attributes:
        image_id: ``<repository>@sha256:<manifest digest>``, for ``containerStatuses[].imageID``.
        file: The file that holds the squashfs, ``offset`` bytes from its start.
        was_pulled: Whether this call fetched it; false if the cache had it.
        seconds: Duration of the call.
    """

    reference: str
    image_id: str
    file: Path
    offset: int
    size_bytes: int
    config: ImageConfig
    was_pulled: bool
    seconds: float


def config_from_json(document: Mapping[str, Any]) -> ImageConfig:
    """Read an OCI image config; absent or null values are empty, unknown keys are ignored.

    Raises:
        ValueError: A value has the wrong shape.
    """
    inner = document.get("config") or {}
    if not isinstance(inner, Mapping):
        raise ValueError("'config' is not an object")  # noqa: TRY004 - one error for a document of a wrong shape
    pairs = [entry.partition("=") for entry in _texts(inner, "Env")]
    return ImageConfig(
        entrypoint=_texts(inner, "Entrypoint"),
        command=_texts(inner, "Cmd"),
        env=tuple((name, value) for name, _, value in pairs if name),
        working_dir=_text(inner, "WorkingDir"),
        user=_text(inner, "User"),
        stop_signal=_text(inner, "StopSignal"),
        architecture=_text(document, "architecture"),
    )


def host_architecture() -> str:
    """Return this machine's architecture by its name in registries and in Kubernetes, which is Go's."""
    machine = platform.machine()
    return _GO_NAMES.get(machine, machine)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"'{key}' is not a string")  # noqa: TRY004 - as above
    return value


def _texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key) or []
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError(f"'{key}' is not a list of strings")
    return tuple(value)
