"""ClusterTrustBundles that a projected volume asks for: which, and their certificates as one file (KEP-3257).

As pkg/kubelet/clustertrustbundle has it: a bundle by its name, or those of a signer that a label selector chooses.
"""

from __future__ import annotations

import base64
import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpk.kube import client, selectors, v1

PATH = "/apis/certificates.k8s.io/v1/clustertrustbundles"
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
LINE = 64
"""Characters of base64 in a line of PEM."""


class Key(NamedTuple):
    """What a projection asks for. A selector of None chooses nothing, an empty one every bundle of the signer."""

    name: str
    signer: str = ""
    selector: str | None = None


def key(source: v1.TrustBundleSource) -> Key:
    """Return what a projection asks for."""
    selector = source.label_selector
    return Key(source.name, source.signer_name, None if selector is None else _text(selector))


def _text(selector: selectors.LabelSelector) -> str:
    """Return a label selector as the API's query parameter has it."""
    parts = [f"{label}={value}" for label, value in sorted(selector.match_labels.items())]
    for one in selector.match_expressions:
        values = ",".join(one.values)
        match one.operator:
            case "In":
                parts.append(f"{one.key} in ({values})")
            case "NotIn":
                parts.append(f"{one.key} notin ({values})")
            case "Exists":
                parts.append(one.key)
            case _:  # DoesNotExist: the API server lets no other through
                parts.append(f"!{one.key}")
    return ",".join(parts)


async def read(kube: client.Kube, wanted: Key) -> str | None:
    """Return the certificates that a projection asks for, or None if there is no such bundle.

    Raises:
        errors.ApiUnavailable: The API server is away.
    """
    if wanted.name:
        try:
            found = [await kube.get(f"{PATH}/{quote(wanted.name, safe='')}")]
        except errors.NotFound:
            return None
    elif wanted.selector is None:
        return None
    else:
        query = {"labelSelector": wanted.selector, "fieldSelector": f"spec.signerName={wanted.signer}"}
        items = (await kube.get(PATH, query=query))["items"]
        found = [item for item in items if item["spec"].get("signerName") == wanted.signer]
    return normalized(item["spec"]["trustBundle"] for item in found) if found else None


def normalized(bundles: Iterable[str]) -> str:
    """Return the certificates of PEM texts, each once, without what stands around them."""
    blocks = set[bytes]()
    for block in (block for text in bundles for block in CERTIFICATE.findall(text)):
        with contextlib.suppress(ValueError):  # no base64: it stands around them
            blocks.add(base64.b64decode(block))
    return "".join(map(_pem, sorted(blocks)))


def _pem(certificate: bytes) -> str:
    text = base64.b64encode(certificate).decode()
    lines = [text[at : at + LINE] for at in range(0, len(text), LINE)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])
