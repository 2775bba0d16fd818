"""The user's own kubeconfig: the control plane adds the context ``hpk``, and ``hpk down`` removes it.

Everything else in the file is kept, as data (YAML comments are not). kubectl's own lock is honoured, so a concurrent
``kubectl config`` loses nothing. :func:`merge`, :func:`remove` and :func:`point` raise errors.Conflict if the file
stays locked, and errors.Fatal if it is not a kubeconfig or cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "hpk"  # of the cluster, user and context
REMEMBERED = "hpk.io/previous-context"
"""Extension of our context with the name of the context that was current before."""
LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.05
_SECTIONS = ("clusters", "users", "contexts")


def path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the file that kubectl writes to: the first of ``$KUBECONFIG``, else ``~/.kube/config``."""
    environment = os.environ if environment is None else environment
    for entry in environment.get("KUBECONFIG", "").split(os.pathsep):
        if entry:
            return Path(entry).expanduser()
    return Path("~/.kube/config").expanduser()


def merge(document: bytes, *, into: Path | None = None) -> None:
    """Write the document's ``hpk`` cluster, user and context to the file, and make the context current; idempotent.

    A missing file is created; the result is always 0600, since it holds a key.
    """
    ours = yaml.safe_load(document)
    with _edited(into or path()) as config:
        current = config.get("current-context") or ""
        previous = _previous(config) if current == NAME else current
        for section in _SECTIONS:
            added = [entry for entry in ours[section] if entry["name"] == NAME]
            config[section] = [e for e in config.get(section) or [] if e.get("name") != NAME] + added
        context = next(entry for entry in config["contexts"] if entry["name"] == NAME)["context"]
        context["extensions"] = [{"name": REMEMBERED, "extension": {"context": previous}}]
        config["current-context"] = NAME
        config.setdefault("apiVersion", "v1")
        config.setdefault("kind", "Config")


def remove(document: bytes, *, out_of: Path | None = None) -> bool:
    """Remove ``hpk`` and restore the context that was current before; return whether anything was removed.

    A context with another authority than the document's belongs to another cluster and stays.
    """
    file = out_of or path()
    if not file.exists():
        return False
    with _edited(file) as config:
        entries = [entry for section in _SECTIONS for entry in config.get(section) or []]
        if not any(entry.get("name") == NAME for entry in entries):
            return False
        if _authority(config) not in {None, _authority(_parsed(document))}:
            return False
        if config.get("current-context") == NAME:
            previous = _previous(config)
            names = {entry.get("name") for entry in config.get("contexts") or []} - {NAME}
            config["current-context"] = previous if previous in names else ""
        for section in _SECTIONS:
            config[section] = [entry for entry in config.get(section) or [] if entry.get("name") != NAME]
    return True


def point(server: str, *, into: Path | None = None) -> bool:
    """Set the URL of the context's cluster; return whether the file has the context."""
    file = into or path()
    if not file.exists():
        return False
    with _edited(file) as config:
        ours = [entry for entry in config.get("clusters") or [] if entry.get("name") == NAME]
        for entry in ours:
            entry["cluster"] = (entry.get("cluster") or {}) | {"server": server}
    return bool(ours)


def current(file: Path | None = None) -> tuple[str, str]:
    """Return the name of the file's current context, and the URL of our cluster; each empty if there is none."""
    config = _read(file or path())
    urls = [(e.get("cluster") or {}).get("server") for e in config.get("clusters") or [] if e.get("name") == NAME]
    return str(config.get("current-context") or ""), str(urls[0] if urls else "")


def _parsed(document: bytes) -> dict[str, Any]:
    """Return the content of our kubeconfig; empty if it is torn, as a power cut may leave it."""
    with contextlib.suppress(yaml.YAMLError):
        found = yaml.safe_load(document)
        if isinstance(found, dict):
            return found
    return {}


def _authority(config: dict[str, Any]) -> str | None:
    ours = [entry.get("cluster") or {} for entry in config.get("clusters") or [] if entry.get("name") == NAME]
    return ours[0].get("certificate-authority-data") if ours else None


def _previous(config: dict[str, Any]) -> str:
    for entry in config.get("contexts") or []:
        if entry.get("name") == NAME:
            for extension in (entry.get("context") or {}).get("extensions") or []:
                if extension.get("name") == REMEMBERED:
                    return str((extension.get("extension") or {}).get("context") or "")
    return ""


@contextlib.contextmanager
def _edited(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the file's content under its lock; write its changes after the block."""
    # Keep a symbolic link to a file elsewhere.
    file = Path(os.path.realpath(file))
    try:
        jobdir.make_directory(str(file.parent))
        with _locked(file):
            config = _read(file)
            before = yaml.safe_dump(config, sort_keys=False)
            yield config
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            if before != yaml.safe_dump(config, sort_keys=False):
                jobdir.write_bytes(str(file), text.encode())
    except OSError as error:
        raise errors.Fatal(f"Cannot change the kubeconfig {file}: {error.strerror or error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise errors.Fatal(f"Cannot change the kubeconfig {file}: it is not YAML ({error})") from error
    except OSError as error:
        raise errors.Fatal(
            f"Cannot change the kubeconfig {file}: it cannot be read ({error.strerror or error})"
        ) from error
    if config is None:
        return {}
    sections = [config.get(section) for section in _SECTIONS] if isinstance(config, dict) else [""]
    if not all(section is None or _has_shape(section) for section in sections):
        raise errors.Fatal(f"Cannot change the kubeconfig {file}: it does not have the structure of one")
    made: dict[str, Any] = config
    return made


def _has_shape(section: Any) -> bool:
    """Return whether it is a list of named entries, each with a mapping or nothing."""
    entries = section if isinstance(section, list) else [section]
    return isinstance(section, list) and all(
        isinstance(entry, dict)
        and all(isinstance(entry.get(key) or {}, dict) for key in ("cluster", "context", "user"))
        for entry in entries
    )


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold kubectl's lock of the file (``<file>.lock``; the file itself may be missing)."""
    lock = f"{file}.lock"
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError as error:
            if time.monotonic() > deadline:
                raise errors.Conflict(
                    f"Cannot change the kubeconfig {file}: {lock} has been there for {LOCK_SECONDS:.0f} s; "
                    "remove it if no kubectl is running"
                ) from error
            time.sleep(_LOCK_PAUSE_SECONDS)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)  # noqa: PTH108 - beside its os.open
