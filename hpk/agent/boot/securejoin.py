"""Resolves paths that a pod controls without leaving their root, as Go's filepath-securejoin does.

A container may put a symbolic link where a subPath or an image's passwd file should be. So a path is walked one
component at a time with descriptors, links are followed as if the root were ``/`` (RESOLVE_IN_ROOT of openat2, which
Python cannot call), and the result is a descriptor, which nobody can exchange later.
"""

from __future__ import annotations

import errno
import os
import stat

_MOST_LINKS = 40
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def hold(root: str, path: str, *, create_mode: int | None = None, beneath: str | None = None) -> int:
    """Return a descriptor (O_PATH) of ``path`` below ``root``; the caller closes it.

    Args:
        root: A directory that the pod does not control.
        path: Absolute or relative; both mean below root.
        create_mode: Make missing directories, with this mode whatever the umask.
        beneath: If given, refuse a link that leads out (RESOLVE_BENEATH) instead of taking root for ``/``, and make
            nothing behind a link. Its value is an absolute path that means the root as well, or empty.

    Raises:
        OSError: A component is missing (ENOENT) or no directory, the path leads out (EXDEV), or has too many links.
    """
    held = [os.open(root, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)]
    try:
        _walk(held, path, create_mode, beneath)
        return held.pop()
    finally:
        for descriptor in held:
            os.close(descriptor)


def path_of(descriptor: int) -> str:
    """Return a path by which this process and its children can open the file behind the descriptor."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def read(root: str, path: str, *, most: int = 1 << 20) -> bytes:
    """Return the first bytes of a regular file below root; empty if there is none."""
    try:
        descriptor = hold(root, path)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with open(path_of(descriptor), "rb") as file:
            return file.read(most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _walk(held: list[int], path: str, create_mode: int | None, beneath: str | None) -> None:
    """Walk down path; ``held`` has the descriptors from the root to the current component."""
    left, links = _parts(path), 0
    while left:
        part = left.pop()
        if part == "..":
            if len(held) > 1:
                os.close(held.pop())
            elif beneath is not None:
                raise OSError(errno.EXDEV, f"Cannot resolve {path}: it leads out")
            continue
        found = _open(held[-1], part, path, create_mode if beneath is None or not links else None)
        mode = os.fstat(found).st_mode
        if stat.S_ISLNK(mode):
            target = os.readlink("", dir_fd=found)
            os.close(found)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, f"Cannot resolve {path}: too many links")
            if target.startswith("/"):
                target = target if beneath is None else _below(target, beneath)
                while len(held) > 1:
                    os.close(held.pop())
            left += _parts(target)
            continue
        held.append(found)
        if left and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, f"Cannot resolve {path}: {part} is not a directory")


def _below(target: str, top: str) -> str:
    """Return the rest of an absolute path below ``top``; raise OSError if it is not there."""
    if top == "/":
        return target
    top = top.rstrip("/")
    if not top or not f"{target}/".startswith(f"{top}/"):
        raise OSError(errno.EXDEV, f"Cannot resolve {target}: it leads out")
    return target.removeprefix(top)


def _parts(path: str) -> list[str]:
    """Return the components, the first one last."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


def _open(parent: int, part: str, path: str, create_mode: int | None) -> int:
    try:
        return os.open(part, _HOLD, dir_fd=parent)
    except FileNotFoundError:
        if create_mode is None:
            raise FileNotFoundError(errno.ENOENT, f"Cannot resolve {path}: there is no {part}") from None
    try:
        os.mkdir(part, dir_fd=parent)
        made = True
    except FileExistsError:  # another container was faster
        made = False
    found = os.open(part, _HOLD, dir_fd=parent)
    if made and stat.S_ISDIR(os.fstat(found).st_mode):
        os.chmod(path_of(found), create_mode)
    return found
