"""ClusterTrustBundles are found by name or by signer and labels, and become one file of certificates."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from hpk.kube import v1
from hpk.volumes import bundles, plan, sources
from tests.fakes import kube


def pem(content: bytes) -> str:
    """Return a certificate's PEM, of any content."""
    return f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(content).decode()}\n-----END CERTIFICATE-----\n"


ONE, TWO = pem(b"one"), pem(b"two")


def pod(**source: Any) -> v1.Pod:
    """Return a pod with a projected volume of one trust bundle."""
    projected = {"sources": [{"clusterTrustBundle": {"path": "ca.pem", **source}}], "defaultMode": 0o444}
    spec = {"containers": [{"name": "c"}], "volumes": [{"name": "v", "projected": projected}]}
    return v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})


def api() -> Any:
    """Return an API server that knows one bundle without a signer and two of one signer."""
    server = kube.FakeKube()
    for name, signer, text in (("a:b", "", ONE), ("s1", "x/y", ONE), ("s2", "x/y", f"about it\n{TWO}{ONE}")):
        spec = {"trustBundle": text, **({"signerName": signer} if signer else {})}
        server.put(f"{bundles.PATH}/{name.replace(':', '%3A')}", {"metadata": {"name": name}, "spec": spec})
    return server


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"name": "a:b"}, ONE),
        ({"signerName": "x/y", "labelSelector": {}}, ONE + TWO),
        ({"name": "gone", "optional": True}, ""),
        ({"signerName": "x/y", "optional": True}, ""),
    ],
)
async def test_certificates_become_one_file(source: dict[str, Any], text: str) -> None:
    """Each certificate once, of all that match; an optional projection of nothing is an empty file."""
    one = pod(**source)
    found = await sources.gather(api(), one, shared=sources.SharedConfigMaps())
    [volume] = plan.volumes(one, found, allocatable={})
    assert volume["kind"] == "files"
    [file] = volume["files"]
    assert (file["path"], file["mode"], base64.b64decode(file["data"]).decode()) == ("ca.pem", 0o444, text)


@pytest.mark.parametrize(
    "source", [{"name": "gone"}, {"signerName": "z/z", "labelSelector": {}}, {"signerName": "x/y"}]
)
async def test_a_bundle_that_is_not_there_is_waited_for(source: dict[str, Any]) -> None:
    """Without `optional` the volume cannot be made yet; a signer without a selector chooses nothing."""
    one = pod(**source)
    found = await sources.gather(api(), one, shared=sources.SharedConfigMaps())
    with pytest.raises(plan.SourceMissing, match="clustertrustbundle"):
        plan.volumes(one, found, allocatable={})


def test_a_selector_is_said_as_the_api_has_it() -> None:
    """Labels, and the four operators."""
    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    one = pod(signerName="x/y", labelSelector={"matchLabels": {"k": "v"}, "matchExpressions": expressions})
    [wanted] = sources.needs(one).bundles
    assert wanted == ("", "x/y", "k=v,a in (1,2),b notin (3),c,!d")


def test_text_around_certificates_costs_nothing() -> None:
    """A bundle may hold what looks like the beginning of one, and a mebibyte of blanks: pods do not wait for it."""
    blanks = "-----BEGIN CERTIFICATE-----" + " " * (1 << 18)
    odd = "-----BEGIN CERTIFICATE-----abc-----END CERTIFICATE-----"
    assert bundles.normalized([f"{ONE}{odd}\n{blanks}\n{TWO}"]) == ONE + TWO
