"""The merge of an image's layers into one tree by the rules of the OCI image format, without a file system. Pure.

A layer is applied as containerd applies it (https://github.com/opencontainers/image-spec/blob/main/layer.md): first
its whiteouts remove entries of lower layers, then its own entries are added in order. A directory over a directory
merges; anything else replaces. Parents that are symbolic links are followed within the image's root, a hard link
shares the target's inode as it is at that moment, and no name reaches above the root.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
MOUNT_POINTS: Final = ("dev", "etc", "proc", "sys")
"""Directories that every container needs as mount points or parents of mount points."""

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4095
"""Bytes, Linux's own limits (NAME_MAX, PATH_MAX): containerd could not unpack longer ones either."""

_MOST_LINKS: Final = 255
"""Symbolic links in one path before it counts as a loop; containerd's limit."""


class BadLayer(ValueError):
    """A layer breaks the rules of the format."""


class Entry(NamedTuple):
    """One member of a layer.

    ``kind`` is ``directory``, ``file``, ``symlink``, ``hardlink``, ``fifo`` or ``device``. ``link`` is a symbolic
    link's text or a hard link's target. ``number`` counts the layer's members from 0.
    """

    number: int
    name: str
    kind: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    link: str = ""
    xattrs: tuple[tuple[str, str], ...] = ()


IMPLIED: Final = Entry(number=-1, name="", kind="directory")  # a directory that no layer describes


class Inode:
    """One inode: a directory with its children, or a leaf that several names may share."""

    __slots__ = ("children", "entry", "layer")

    def __init__(self, entry: Entry, *, layer: int) -> None:
        self.entry = entry
        self.layer = layer
        self.children: dict[str, Inode] | None = {} if entry.kind == "directory" else None


class Tree:
    """The merged file system; apply the layers from the lowest to the highest."""

    def __init__(self, *, most_nodes: int = 1 << 30) -> None:
        """Begin with an empty root. Implied directories count as nodes: one short entry may imply two thousand."""
        self.root = Inode(IMPLIED, layer=-1)
        self._layer = -1
        self._most_nodes, self._nodes = most_nodes, 0

    def apply(self, entries: Iterable[Entry]) -> None:
        """Add a layer on top.

        Raises:
            BadLayer: A whiteout has no name, a hard link no target, symbolic links form a loop, a name is too long, or
                there are too many nodes.
        """
        self._layer += 1
        members = []
        for entry in entries:
            parts = _clean(entry.name)
            if entry.kind == "symlink" and len(os.fsencode(entry.link)) > LONGEST_PATH:
                raise BadLayer(f"the target of the link {_shown(entry.name)} is longer than {LONGEST_PATH} bytes")
            if parts and parts[-1].startswith(WHITEOUT):
                self._white_out(parts)
            else:
                members.append((parts, entry))
        for parts, entry in members:
            self._put(parts, entry)

    def add_mount_points(self) -> None:
        """Add the directories that every container needs; keep existing ones."""
        for name in MOUNT_POINTS:
            _children(self.root).setdefault(name, Inode(IMPLIED, layer=-1))

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """Yield all names except the root's, parents before children, in a stable order."""
        pending = [("", self.root)]
        while pending:
            prefix, directory = pending.pop()
            below = []
            for name, node in sorted(_children(directory).items()):
                if node.children is not None:
                    below.append((f"{prefix}{name}/", node))
                yield prefix + name, node
            pending.extend(reversed(below))

    def _white_out(self, parts: list[str]) -> None:
        directory = self._directory(parts[:-1], make=False)
        if directory is None:
            return
        if parts[-1] == OPAQUE:
            _children(directory).clear()
        elif not parts[-1].startswith(WHITEOUT * 2):  # .wh..wh.* are AUFS's own records
            name = parts[-1].removeprefix(WHITEOUT)
            if name in ("", ".", ".."):
                raise BadLayer(f"invalid whiteout name: {'/'.join(parts)!r}")
            _children(directory).pop(name, None)

    def _put(self, parts: list[str], entry: Entry) -> None:
        if not parts:
            if entry.kind == "directory":
                self.root.entry, self.root.layer = entry, self._layer
            return
        # The link's target is looked up before the name is touched: the two may be the same.
        target = self._target(entry) if entry.kind == "hardlink" else None
        parent = self._directory(parts[:-1], make=True)
        assert parent is not None
        siblings = _children(parent)
        existing = siblings.get(parts[-1])
        if entry.kind == "directory" and existing is not None and existing.children is not None:
            existing.entry, existing.layer = entry, self._layer
        elif entry.kind == "device":  # no ordinary user can make one; it still hides the lower entry
            siblings.pop(parts[-1], None)
        else:
            siblings[parts[-1]] = target or self._made(entry)

    def _made(self, entry: Entry) -> Inode:
        self._nodes += 1
        if self._nodes > self._most_nodes:
            raise BadLayer(f"the image has more than {self._most_nodes} files and directories")
        return Inode(entry, layer=self._layer)

    def _target(self, entry: Entry) -> Inode:
        parts = _clean(entry.link)
        directory = self._directory(parts[:-1], make=False)
        node = None if directory is None or not parts else _children(directory).get(parts[-1])
        if node is None or node.children is not None:
            what = "a directory" if node else "nothing"
            raise BadLayer(f"hard link {entry.name!r} points to {what}: {entry.link!r}")
        return node

    def _directory(self, parts: list[str], *, make: bool) -> Inode | None:
        """Return the directory at a path, following links within the root; if it is missing, make it or return None."""
        path: list[Inode] = [self.root]
        todo = parts[::-1]
        followed = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                path = path[:-1] or path
                continue
            siblings = _children(path[-1])
            child = siblings.get(name)
            if child is not None and child.entry.kind == "symlink":
                followed += 1
                if followed > _MOST_LINKS:
                    raise BadLayer(f"too many symbolic links: {'/'.join(parts)!r}")
                if child.entry.link.startswith("/"):
                    path = [self.root]
                todo.extend(reversed(child.entry.link.split("/")))
                continue
            if child is None or child.children is None:
                if not make:
                    return None
                child = siblings[name] = self._made(IMPLIED)
            path.append(child)
        return path[-1]


def _children(node: Inode) -> dict[str, Inode]:
    assert node.children is not None
    return node.children


def _shown(name: str) -> str:
    return f"{name[:64]!r}…"


def _clean(name: str) -> list[str]:
    """Return a path's components; ``..`` stops at the root, as after chroot."""
    if "\0" in name:
        raise BadLayer(f"a name contains a NUL byte: {name!r}")
    if len(name) > LONGEST_PATH // 4 and len(os.fsencode(name)) > LONGEST_PATH:
        raise BadLayer(f"the name {_shown(name)} is longer than {LONGEST_PATH} bytes")
    parts: list[str] = []
    for part in name.split("/"):
        if len(part) > LONGEST_NAME // 4 and len(os.fsencode(part.removeprefix(WHITEOUT))) > LONGEST_NAME:
            raise BadLayer(f"the name {_shown(part)} is longer than {LONGEST_NAME} bytes")
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts
