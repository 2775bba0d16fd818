"""Nothing of a pod is ignored: each field of the API is done, refused by name, or without meaning for a reason."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kubernetes.client import models

from hpk.kube import model, v1
from hpk.pods import fields

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


def spec(**more: Any) -> dict[str, Any]:
    """A raw spec of one container."""
    return {"containers": [{"name": "c", "image": "i"}], **more}


@pytest.mark.parametrize(
    ("raw", "paths"),
    [
        (spec(), []),
        (spec(hostPID=True, hostIPC=False), ["spec.hostPID"]),
        (spec(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {"server": "x"}}]), ["spec.volumes[1].nfs"]),
        (
            {"containers": [{"name": "c", "securityContext": {"procMount": "Unmasked"}, "volumeDevices": [{}]}]},
            ["spec.containers[0].securityContext.procMount: Unmasked", "spec.containers[0].volumeDevices"],
        ),
        (spec(securityContext={"sysctls": [{"name": "a"}]}), ["spec.securityContext.sysctls"]),
        (
            {"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]}]},
            ["spec.containers[0].env[0].valueFrom.fileKeyRef"],
        ),
        (spec(someday=1), ["spec.someday"]),
        (spec(hostUsers=True, securityContext={"fsGroupChangePolicy": "Always"}), []),
    ],
)
def test_every_set_field_that_is_not_done_is_named(raw: dict[str, Any], paths: list[str]) -> None:
    """By its path, at any depth, with the reason; what is false or empty asks for nothing."""
    found = sorted(fields.unsupported(raw))
    assert [sentence.partition(" is not supported")[0] for sentence in found] == paths


@pytest.mark.parametrize(
    ("raw", "name", "why"),
    [
        (
            spec(securityContext={"fsGroup": 5, "fsGroupChangePolicy": "OnRootMismatch"}),
            "PodSecurityContext.fsGroupChangePolicy",
            "fsGroup changes no hostPath",
        ),
        (
            {"containers": [{"name": "c", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]},
            "Container.resizePolicy",
            "pods cannot be resized",
        ),
    ],
)
def test_a_policy_for_what_never_happens_is_accepted_for_a_listed_reason(
    raw: dict[str, Any], name: str, why: str
) -> None:
    """No volume is there before its pod (the agent's test_volumes), and a resize is refused (test_review)."""
    assert fields.unsupported(raw) == []
    row = next(row for row in fields.table() if row.name == name)
    assert row.standing == "without meaning"
    assert why in row.reason


def test_the_refusal_of_huge_pages_names_both_media_that_work() -> None:
    """The default one as well: memory counts against the pod's limit, the disk does not."""
    (sentence,) = fields.unsupported(spec(volumes=[{"name": "v", "emptyDir": {"medium": "HugePages"}}]))
    assert sentence.endswith("; omit it, or use Memory)")


@pytest.mark.parametrize("empty", [None, False, 0, "", [], {}])
def test_an_unknown_field_that_asks_for_nothing_is_not_named(empty: Any) -> None:
    """The API server fills in such defaults itself."""
    assert fields.unsupported(spec(someday=empty)) == []


def test_every_field_of_the_api_is_sorted_once() -> None:
    """Of the schema of the Kubernetes that hpk.sif runs; a new release's fields fail here until someone decides."""
    found = dict(_schema("V1PodSpec", v1.PodSpec))
    unsorted = {name for name in found if name not in standing()}
    assert not unsorted, "say in hpk/pods/fields.py what becomes of these"
    assert not standing().keys() - found.keys(), "the API has no such field"


def test_a_models_fields_are_looked_at_once() -> None:
    """Each pod has hundreds of them, and passes here whenever it is created, changed or submitted."""
    fields.unsupported(spec())
    before = fields._parts.cache_info().misses
    fields.unsupported(spec())
    assert fields._parts.cache_info().misses == before


def test_no_field_is_both_done_and_refused() -> None:
    """What is refused, or without meaning, is nothing that the code reads."""
    done = {row.name for row in fields.table() if row.standing == "done"}
    assert not done & fields.REFUSED.keys()
    assert not done & fields.WITHOUT_MEANING.keys()
    assert not fields.REFUSED.keys() & fields.WITHOUT_MEANING.keys()
    assert done >= fields.ONLY.keys() | fields.REMARKS.keys()


UNREAD = {
    "PodSecurityContext.appArmorProfile": "only Unconfined is taken",
    "SecurityContext.appArmorProfile": "only Unconfined is taken",
    "SeccompProfile.localhostProfile": "its type is refused",
    "SELinuxOptions.role": "all of them are refused together, or none",
}
"""Fields that are done without being read, and why that is enough."""


def test_what_is_done_is_read() -> None:
    """A field of a model that no code names would be accepted and ignored."""
    files = [path for path in (ROOT / "hpk").rglob("*.py") if path.parent.name != "kube" and path.name != "fields.py"]
    words = set(re.findall(r"[.\"](\w+)", "\n".join(path.read_text() for path in files)))
    unread = {
        f"{kind.__name__}.{field.encode_name}"
        for kind in fields._kinds(v1.PodSpec)
        if not kind.__module__.endswith("selectors")  # they match by themselves
        for field in msgspec.structs.fields(kind)
        if not {field.name, field.encode_name} & words
    }
    assert unread - fields.ONLY.keys() == UNREAD.keys()


def test_every_reason_is_a_short_sentence_without_an_end() -> None:
    """It stands in brackets behind the field's name."""
    reasons = [*fields.REFUSED.values(), *fields.WITHOUT_MEANING.values(), *(why for _, why in fields.ONLY.values())]
    assert all(reason and not reason.endswith(".") and len(reason) < 120 for reason in reasons)


@functools.cache
def standing() -> dict[str, str]:
    """By field, what becomes of it."""
    return {row.name: row.standing for row in fields.table()}


def _schema(name: str, kind: type[model.Model], seen: set[tuple[str, str]] | None = None) -> Iterator[tuple[str, str]]:
    """Each field that the API's type has, by the name of our own type, and those below what we know."""
    seen = set() if seen is None else seen
    if (name, kind.__name__) in seen:
        return
    seen.add((name, kind.__name__))
    theirs = getattr(models, name)
    ours = {field.encode_name: fields._model_of(field.type) for field in msgspec.structs.fields(kind)}
    for attribute, key in theirs.attribute_map.items():
        yield f"{kind.__name__}.{key}", name
        below = re.search(r"V1\w+", theirs.openapi_types[attribute])
        if below and (mine := ours.get(key)) is not None:
            yield from _schema(below[0], mine, seen)
