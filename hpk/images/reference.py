"""A pod's ``image:``, with the defaults and the errors of the kubelet and containerd. Pure.

Grammar: https://github.com/distribution/reference, which the kubelet calls through ``pkg/util/parsers``. In addition
a ``docker://`` prefix is accepted, as Apptainer's users write it, and the path of a SIF file (``/path/x.sif`` or
``file:///path/x.sif``), which is never valid in that grammar.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from dataclasses import dataclass
from typing import Final

from hpk import errors

DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"

_LONGEST_NAME: Final = 255
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_REFERENCE: Final = re.compile(
    rf"(?P<registry>{_HOST})/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_IDENTIFIER: Final = re.compile(r"[a-f0-9]{64}")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image in a registry with all defaults filled in; a tag or a digest is set, and the digest decides."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository: ``docker.io/library/busybox``."""
        return f"{self.registry}/{self.repository}"

    @property
    def target(self) -> str:
        """The digest if there is one, else the tag."""
        return self.digest or self.tag

    @property
    def key(self) -> str:
        """The cache's name of the image: by its digest if there is one, else by its tag."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, kw_only=True)
class SifPath:
    """An image that is a SIF file, by absolute path."""

    path: str

    def __str__(self) -> str:
        return self.path


def parse(text: str) -> Reference | SifPath:
    """Parse the ``image:`` of a container.

    Raises:
        errors.ImageRefused: The name is invalid (reason ``InvalidImageName``); the text is the kubelet's.
    """
    if text.startswith(("/", "file:")):
        return _sif(text)
    name = text.removeprefix("docker://")
    if _IDENTIFIER.fullmatch(name):
        raise _refused(text, f"invalid repository name ({name}), cannot specify 64-byte hexadecimal strings")
    registry, remainder = _split(name)
    repository = remainder.partition(":")[0]
    if repository.lower() != repository:
        raise _refused(text, f"invalid reference format: repository name ({repository}) must be lowercase")
    found = _REFERENCE.fullmatch(f"{registry}/{remainder}")
    if found is None:
        raise _refused(text, "invalid reference format")
    if len(found["repository"]) > _LONGEST_NAME:
        raise _refused(text, f"repository name must not be more than {_LONGEST_NAME} characters")
    digest = found["digest"] or ""
    if digest and not is_digest(digest):
        raise _refused(text, _why_not_a_digest(digest))
    tag = found["tag"] or ("" if digest else DEFAULT_TAG)
    return Reference(registry=found["registry"], repository=found["repository"], tag=tag, digest=digest)


def default_policy(text: str) -> str:
    """Return the API server's default imagePullPolicy, which depends on the tag alone.

    Raises:
        errors.ImageRefused: As :func:`parse`.
    """
    wanted = parse(text)
    return "Always" if isinstance(wanted, Reference) and wanted.tag == DEFAULT_TAG else "IfNotPresent"


def is_digest(text: str) -> bool:
    """Return whether text is a digest of a supported algorithm."""
    return _DIGEST.fullmatch(text) is not None


def _split(name: str) -> tuple[str, str]:
    """Return the registry, or the default, and the rest; a first part that does not look like a host is no registry."""
    first, slash, rest = name.partition("/")
    looks_like_host = any(mark in first for mark in ".:") or first == "localhost" or first.lower() != first
    if not slash or not looks_like_host:
        registry, remainder = DEFAULT_REGISTRY, name
    else:
        registry, remainder = first, rest
    if registry == "index.docker.io":
        registry = DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in remainder:
        remainder = f"library/{remainder}"
    return registry, remainder


def _sif(text: str) -> SifPath:
    path = text
    if text.startswith("file:"):
        parts = urllib.parse.urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise _refused(text, "a SIF file is named by an absolute path, as in file:///path/image.sif")
        path = urllib.parse.unquote(parts.path, errors="surrogateescape")
    if "\0" in path:
        raise _refused(text, "a path cannot contain a NUL byte")
    if path.endswith("/"):
        raise _refused(text, "a SIF file is named by an absolute path, as in /path/image.sif")
    return SifPath(path=path)


def _why_not_a_digest(digest: str) -> str:
    algorithm, _, encoded = digest.partition(":")
    if algorithm not in ("sha256", "sha384", "sha512"):
        return "unsupported digest algorithm"
    if len(encoded) != hashlib.new(algorithm).digest_size * 2:
        return "invalid checksum digest length"
    return "invalid checksum digest format"


def _refused(text: str, why: str) -> errors.ImageRefused:
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    message = f"Failed to apply default image tag {quoted}: couldn't parse image name {quoted}: {why}"
    return errors.ImageRefused(message, reason="InvalidImageName")
