"""References mean what they mean to the kubelet and containerd."""

from __future__ import annotations

import re

import hypothesis
import pytest
from hypothesis import strategies

from hpk import errors
from hpk.images import reference

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("a/b", "docker.io/a/b:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
        ("docker://busybox", "docker.io/library/busybox:latest"),
        ("docker://quay.io/a/b:c", "quay.io/a/b:c"),
        ("ctl:5000/alias/busybox:1", "ctl:5000/alias/busybox:1"),
        ("localhost/busybox", "localhost/busybox:latest"),
        ("localhost:5000/busybox", "localhost:5000/busybox:latest"),
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("Registry/a", "Registry/a:latest"),
        ("a__b/c---d/e.f_g", "docker.io/a__b/c---d/e.f_g:latest"),
        ("x.sif", "docker.io/library/x.sif:latest"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"quay.io/a/b:tag@{DIGEST}", f"quay.io/a/b:tag@{DIGEST}"),
    ],
)
def test_registry_references(text: str, expected: str) -> None:
    """Registry, library and latest are added where containerd adds them."""
    assert str(reference.parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/x.sif", "/data/x.sif"),
        ("file:///data/x.sif", "/data/x.sif"),
        ("file://localhost/data/x.sif", "/data/x.sif"),
        ("file:///data/a%20b.sif", "/data/a b.sif"),
        ("/data/a%20b", "/data/a%20b"),
    ],
)
def test_sif_paths(text: str, path: str) -> None:
    """An absolute path or a file URL is a SIF file, whatever it is called."""
    assert reference.parse(text) == reference.SifPath(path=path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid reference format"),
        ("a b", "invalid reference format"),
        (":1", "invalid reference format"),
        ("busybox:", "invalid reference format"),
        ("busybox:-x", "invalid reference format"),
        ("busybox:" + "x" * 129, "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("ctl:port/a", "invalid reference format"),
        ("docker:///a", "invalid reference format"),
        ("http://quay.io/a", "invalid reference format"),
        ("busybox\n", "invalid reference format"),
        ("busybox@sha256:12", "invalid reference format"),
        ("BusyBox", "invalid reference format: repository name (library/BusyBox) must be lowercase"),
        (HEX, f"invalid repository name ({HEX}), cannot specify 64-byte hexadecimal strings"),
        ("quay.io/" + "a" * 256, "repository name must not be more than 255 characters"),
        (f"busybox@md5:{HEX}", "unsupported digest algorithm"),
        (f"busybox@{DIGEST}00", "invalid checksum digest length"),
        (f"busybox@sha256:{HEX.upper()}", "invalid checksum digest format"),
        ("file:x.sif", "a SIF file is named by an absolute path, as in file:///path/image.sif"),
        ("/data/", "a SIF file is named by an absolute path, as in /path/image.sif"),
    ],
)
def test_invalid_names(text: str, why: str) -> None:
    """What is no name is refused in the kubelet's words, with its reason."""
    with pytest.raises(errors.ImageRefused, match=re.escape(f": {why}") + r"\Z") as caught:
        reference.parse(text)
    assert caught.value.reason == "InvalidImageName"
    assert str(caught.value).startswith(f'Failed to apply default image tag "{text}": couldn\'t parse image name')


def test_default_policy() -> None:
    """Only latest, said or unsaid, is asked for again each time; also beside a digest, as the API server has it."""
    names = ("a", "a:latest", f"a:latest@{DIGEST}", "a:1", f"a@{DIGEST}", "/a.sif")
    policies = {name: reference.default_policy(name) for name in names}
    assert policies == {
        "a": "Always",
        "a:latest": "Always",
        f"a:latest@{DIGEST}": "Always",
        "a:1": "IfNotPresent",
        f"a@{DIGEST}": "IfNotPresent",
        "/a.sif": "IfNotPresent",
    }


@hypothesis.given(strategies.text(alphabet="aZ0.:/@-_[]% \0é", max_size=30))
def test_parsing_is_total_and_idempotent(text: str) -> None:
    """Any text is refused or parsed, and what was parsed parses to itself."""
    try:
        parsed = reference.parse(text)
    except errors.ImageRefused:
        return
    assert reference.parse(str(parsed)) == parsed
