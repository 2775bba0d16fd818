"""Layers merge as the OCI image format says, and as containerd applies them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import strategies

from hpk.images import layers


def entry(name: str, kind: str = "file", *, link: str = "", number: int = 0) -> layers.Entry:
    """A member of a layer."""
    return layers.Entry(number=number, name=name, kind=kind, link=link)


def merged(*stack: list[layers.Entry]) -> dict[str, str]:
    """Names in the merged tree, with their kind, and for a file ``layer.number`` of its content."""
    tree = layers.Tree()
    for layer in stack:
        tree.apply([one._replace(number=number) for number, one in enumerate(layer)])
    return {
        name: f"{node.layer}.{node.entry.number}" if node.entry.kind == "file" else node.entry.kind
        for name, node in tree.walk()
    }


def test_later_layers_win_and_directories_merge() -> None:
    """A file hides the one below; a directory keeps what only the lower layer has."""
    lower = [entry("a/", "directory"), entry("a/x"), entry("a/y")]
    assert merged(lower, [entry("a/", "directory"), entry("a/x")]) == {"a": "directory", "a/x": "1.1", "a/y": "0.2"}


def test_the_last_of_one_name_in_a_layer_wins() -> None:
    """As tar would leave it."""
    assert merged([entry("x"), entry("y"), entry("./x")]) == {"x": "0.2", "y": "0.1"}


def test_a_whiteout_removes_what_is_below_only() -> None:
    """Wherever it stands in its layer, it does not touch its own layer's file."""
    assert merged([entry("d/a"), entry("d/b")], [entry("d/.wh.a")]) == {"d": "directory", "d/b": "0.1"}
    assert merged([entry("a")], [entry("a"), entry(".wh.a")]) == {"a": "1.0"}
    assert merged([entry("d/a/x")], [entry("d/.wh.a")]) == {"d": "directory"}
    assert merged([entry("a")], [entry(".wh.missing"), entry("no/such/.wh.x")]) == {"a": "0.0"}


def test_an_opaque_directory_hides_all_below_it() -> None:
    """Its own layer's entries stay, before or after the mark."""
    upper = [entry("d/new"), entry("d/.wh..wh..opq"), entry("d/late")]
    assert merged([entry("d/a"), entry("d/s/b"), entry("e")], upper) == {
        "d": "directory",
        "d/late": "1.2",
        "d/new": "1.0",
        "e": "0.2",
    }


def test_aufs_book_keeping_is_not_a_file() -> None:
    """Names that begin with two whiteout marks never reach the image."""
    assert merged([entry(".wh..wh.plnk/"), entry(".wh..wh.aufs"), entry("a")]) == {"a": "0.2"}


@pytest.mark.parametrize("name", [".wh.", "a/.wh..", "a/.wh..."])
def test_a_whiteout_without_a_name_is_refused(name: str) -> None:
    """It would remove the directory itself, or the one above."""
    with pytest.raises(layers.BadLayer, match="invalid whiteout name"):
        merged([entry("a/x")], [entry(name)])


def test_kinds_replace_each_other() -> None:
    """A file over a directory removes the subtree; a directory over a file or a link takes its place."""
    assert merged([entry("a/b")], [entry("a")]) == {"a": "1.0"}
    assert merged([entry("a")], [entry("a/", "directory")]) == {"a": "directory"}
    assert merged([entry("a", "symlink", link="b")], [entry("a/", "directory")]) == {"a": "directory"}
    assert merged([entry("a")], [entry("a/b")]) == {"a": "directory", "a/b": "1.0"}


def test_devices_are_left_out_and_still_hide() -> None:
    """Nobody but root could make one."""
    assert merged([entry("null"), entry("a")], [entry("null", "device")]) == {"a": "0.1"}


def test_parents_that_are_links_are_followed() -> None:
    """A layer made without looking at its base (``bin/x`` over ``bin -> usr/bin``) lands where it belongs."""
    base = [entry("usr/bin/", "directory"), entry("bin", "symlink", link="usr/bin")]
    found = merged(base, [entry("bin/x")], [entry("bin/.wh.x"), entry("bin/y")])
    assert found == {"bin": "symlink", "usr": "directory", "usr/bin": "directory", "usr/bin/y": "2.1"}


@pytest.mark.parametrize("link", ["/etc", "../../../etc", "../etc/../../etc", "/../etc"])
def test_links_stay_within_the_image(link: str) -> None:
    """Above the root is the root, however the link says it."""
    assert merged([entry("a/l", "symlink", link=link)], [entry("a/l/passwd")])["etc/passwd"] == "1.0"


@pytest.mark.parametrize("name", ["/a", "./a", "../a", "../../a", "b/../a", "a/", "//a"])
def test_names_stay_within_the_image(name: str) -> None:
    """No name reaches above the root, and all spellings are one name."""
    assert merged([entry(name)]) == {"a": "0.0"}


def test_loops_and_nul_are_refused() -> None:
    """A layer that would never end, or that no kernel could hold, is the image's fault."""
    with pytest.raises(layers.BadLayer, match="too many symbolic links"):
        merged([entry("a", "symlink", link="b"), entry("b", "symlink", link="a"), entry("a/x")])
    with pytest.raises(layers.BadLayer, match="NUL"):
        merged([entry("a\0b")])


def test_hard_links_keep_the_content_of_their_time() -> None:
    """Replacing or deleting one name later leaves the other names what they were."""
    lower = [entry("a"), entry("b", "hardlink", link="./a"), entry("c", "hardlink", link="b")]
    assert merged(lower) == {"a": "0.0", "b": "0.0", "c": "0.0"}
    assert merged(lower, [entry("a"), entry(".wh.b")]) == {"a": "1.0", "c": "0.0"}
    assert merged(lower, [entry("c", "hardlink", link="c")]) == merged(lower)
    assert merged(lower, [entry("d", "hardlink", link="/a")])["d"] == "0.0"


@pytest.mark.parametrize(("link", "what"), [("nothing", "nothing"), ("d", "a directory"), ("/", "nothing")])
def test_hard_links_to_no_file_are_refused(link: str, what: str) -> None:
    """As containerd fails on them."""
    with pytest.raises(layers.BadLayer, match=f"points to {what}"):
        merged([entry("d/x"), entry("h", "hardlink", link=link)])


def test_mount_points_are_added_and_not_replaced() -> None:
    """Every container mounts something there; an image's own stay as they are, and nothing else is invented."""
    tree = layers.Tree()
    tree.apply([entry("etc", "symlink", link="usr/etc")])
    tree.add_mount_points()
    assert {name: node.entry.kind for name, node in tree.walk()} == {
        "dev": "directory",
        "etc": "symlink",
        "proc": "directory",
        "sys": "directory",
    }


def test_the_root_has_its_own_mode() -> None:
    """The entry ``./`` describes the root directory."""
    tree = layers.Tree()
    tree.apply([layers.Entry(number=0, name="./", kind="directory", mode=0o1777)])
    assert (tree.root.entry.mode, list(tree.walk())) == (0o1777, [])


def test_walk_gives_parents_first() -> None:
    """So that a directory's header comes before what is in it."""
    names = list(merged([entry("b/c/d"), entry("a/z"), entry("b/a")]))
    assert all(name.rpartition("/")[0] in ["", *names[:index]] for index, name in enumerate(names))


@dataclass
class Model:
    """The same rules over a flat table of paths: slow, and too simple to be wrong in the same way."""

    paths: dict[tuple[str, ...], tuple[str, object]] = field(default_factory=dict)
    inodes: itertools.count[int] = field(default_factory=itertools.count)

    def real(self, parts: tuple[str, ...], hops: int = 0) -> tuple[str, ...]:
        """Follow links in all of parts."""
        if hops > 300:
            raise layers.BadLayer("loop")
        done: tuple[str, ...] = ()
        for index, part in enumerate(parts):
            if part == "..":
                done = done[:-1]
                continue
            kind, value = self.paths.get((*done, part), ("", None))
            if kind == "symlink":
                target = str(value)
                base = () if target.startswith("/") else done
                steps = tuple(step for step in target.split("/") if step not in ("", "."))
                return self.real((*base, *steps, *parts[index + 1 :]), hops + 1)
            done = (*done, part)
        return done

    def remove(self, path: tuple[str, ...], *, keep: bool = False) -> None:
        """Remove a path and what is under it; or only what is under it."""
        for other in [one for one in self.paths if one[: len(path)] == path and not (keep and one == path)]:
            del self.paths[other]

    def apply(self, layer: list[tuple[str, str, str]]) -> None:
        """Whiteouts first, then the rest."""
        for whiteout in (True, False):
            for name, kind, link in layer:
                if (".wh." in name) is whiteout:
                    self.one(tuple(name.split("/")), kind, link)

    def one(self, parts: tuple[str, ...], kind: str, link: str) -> None:
        """One member."""
        value: object = link if kind == "symlink" else next(self.inodes)
        if kind == "hardlink":
            target = tuple(link.split("/"))
            kind, value = self.paths.get((*self.real(target[:-1]), target[-1]), ("directory", None))
            if kind == "directory":
                raise layers.BadLayer("no target")
        parent = self.real(parts[:-1])
        if parts[-1] == layers.OPAQUE:
            self.remove(parent, keep=True)
            return
        if parts[-1].startswith(layers.WHITEOUT):
            self.remove((*parent, parts[-1].removeprefix(layers.WHITEOUT)))
            return
        for depth in range(1, len(parent) + 1):
            if self.paths.get(parent[:depth], ("", None))[0] != "directory":
                self.remove(parent[:depth])
                self.paths[parent[:depth]] = ("directory", None)
        path = (*parent, parts[-1])
        if not (kind == "directory" and self.paths.get(path, ("", None))[0] == "directory"):
            self.remove(path)
        self.paths[path] = (kind, value if kind != "directory" else None)


def apply_all(tree: layers.Tree, stack: list[list[tuple[str, str, str]]]) -> None:
    """Put the layers on the tree, one after the other."""
    for layer in stack:
        tree.apply(entry(name, kind, link=link) for name, kind, link in layer)


PATHS = strategies.lists(strategies.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
MEMBERS = strategies.one_of(
    strategies.tuples(PATHS, strategies.sampled_from(["file", "directory"]), strategies.just("")),
    strategies.tuples(PATHS, strategies.just("hardlink"), PATHS),
    strategies.tuples(
        PATHS, strategies.just("symlink"), strategies.sampled_from(["a", "/b", "../c", "b/a", "../../a/b", "."])
    ),
    strategies.tuples(PATHS.map(lambda path: f"{path}/{layers.OPAQUE}"), strategies.just("file"), strategies.just("")),
    strategies.tuples(
        PATHS.map(lambda path: "/".join([*path.split("/")[:-1], f".wh.{path.rpartition('/')[2]}"])),
        strategies.just("file"),
        strategies.just(""),
    ),
)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(strategies.lists(strategies.lists(MEMBERS, max_size=8), max_size=4))
def test_merging_equals_the_model(stack: list[list[tuple[str, str, str]]]) -> None:
    """Any layers give the same names, kinds, links and shared inodes as the flat model, or fail with it."""
    model, tree = Model(), layers.Tree()
    try:
        for layer in stack:
            model.apply(layer)
    except layers.BadLayer:
        with pytest.raises(layers.BadLayer):
            apply_all(tree, stack)
        return
    apply_all(tree, stack)
    expected = {"/".join(path): kind for path, (kind, _) in model.paths.items()}
    assert {name: node.entry.kind for name, node in tree.walk()} == expected
    shared = {name: {other for other, two in tree.walk() if two is node} for name, node in tree.walk()}
    for path, (kind, value) in model.paths.items():
        if kind == "file":
            same = {"/".join(other) for other, two in model.paths.items() if two == (kind, value)}
            assert shared["/".join(path)] == same
