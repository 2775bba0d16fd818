"""Which pods use which converted images, recorded in the images' directory. Its functions block: call them in threads.

::

    uses/<image>@<pod's UID>    text: the pod's directory, which exists from its job's submission to the pod's end

Several control planes of one user may share the images and do not know each other's pods; pods outlive their control
plane. So a file records that an image is used, and the pod's directory whether that is still true. A kubelet writes
the file before it checks that the image exists; a collector looks for files after it has hidden the image. So one of
the two always notices the other.

A file belongs to its pod, whichever kubelet wrote it. ``hpk prune`` asks no API server: it takes a pod without a
directory for one in preparation while the file is young.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpk import jobdir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNSUBMITTED_SECONDS: Final = 900.0
"""The time that a pod of another control plane may have no directory: its kubelet touches the file every five minutes
(`collect.PERIOD_SECONDS`) while it prepares one.
"""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One pod's use of one image; ``at`` is the last time it was recorded, ``pod`` the pod's directory."""

    file: Path
    image: str
    pod: Path
    at: float


class Uses:
    """The uses of the images of one directory.

    `pods` is the directory of our own control plane's pods; `knows` returns whether our API server has a pod with this
    UID that has not ended.
    """

    def __init__(
        self, directory: Path, *, pods: Path | None = None, knows: Callable[[str], bool] | None = None
    ) -> None:
        self._directory = directory / "uses"
        self._pods, self._knows = pods, knows
        self._ours: dict[Path, set[Path]] = {}
        self._has_looked = False
        self._looking = threading.Lock()

    def add(self, image: str, pod: Path) -> None:
        """Record that a pod uses an image; idempotent.

        Raises:
            OSError: It cannot be written.
        """
        file = self._directory / f"{image}@{pod.name}"
        jobdir.make_directory(str(self._directory))
        jobdir.write_bytes(str(file), os.fsencode(pod))
        self._ours.setdefault(pod, set()).add(file)

    def forget(self, pod: Path) -> None:
        """Remove the uses of a pod, also those of an earlier kubelet.

        Raises:
            OSError: The directory cannot be read.
        """
        self._look_once()
        for file in self._ours.pop(pod, ()):
            with contextlib.suppress(OSError):
                file.unlink()

    def tidy(self) -> None:
        """Remove the uses of our pods that are gone; costs nothing for the others.

        Raises:
            OSError: The directory cannot be read.
        """
        self._look_once()
        for pod in list(self._ours):  # other threads add
            if not (self._knows and self._knows(pod.name)) and not pod.exists():
                self.forget(pod)

    def _look_once(self) -> None:
        """Read what earlier kubelets have recorded for our pods."""
        with self._looking:
            if self._has_looked:
                return
            for use in self._all():
                if self._is_ours(use):
                    self._ours.setdefault(use.pod, set()).add(use.file)
            self._has_looked = True

    def live(self, *, now: float) -> dict[str, list[Use]]:
        """Return the uses by image; remove our own that have ended, and touch those of pods without a job."""
        found: dict[str, list[Use]] = {}
        for use in self._all():
            if self._is_live(use, now=now):
                found.setdefault(use.image, []).append(use)
            elif self._is_ours(use):
                with contextlib.suppress(OSError):
                    use.file.unlink()
        return found

    def _all(self) -> Iterator[Use]:
        try:
            files = list(self._directory.iterdir())
        except FileNotFoundError:
            return
        for file in files:
            image, _, uid = file.name.partition("@")
            if not uid or file.suffix == ".tmp":
                continue
            with contextlib.suppress(OSError):  # removed meanwhile
                yield Use(file=file, image=image, pod=Path(os.fsdecode(file.read_bytes())), at=file.stat().st_mtime)

    def _is_ours(self, use: Use) -> bool:
        return self._knows is not None and use.pod.parent == self._pods

    def _is_live(self, use: Use, *, now: float) -> bool:
        try:
            use.pod.stat()
        except FileNotFoundError:
            if self._knows is None or not self._is_ours(use):
                return now - use.at < UNSUBMITTED_SECONDS
            is_known = self._knows(use.pod.name)
            if is_known:
                with contextlib.suppress(OSError):
                    os.utime(use.file)
            return is_known
        except OSError:
            return True  # the file system does not respond: unknown
        return not _is_finished(use.pod)


def _is_finished(pod: Path) -> bool:
    """Return whether the pod's agent has reported its end."""
    report = jobdir.peek_json(jobdir.PodDirectory(str(pod)).report)
    return bool(report and report.get("finished_at"))
