"""The ClusterTrustBundles of a projected volume, and their certificates as one file (KEP-3257).

As in pkg/kubelet/clustertrustbundle, a projection selects a bundle by name, or a signer's bundles by label.
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
LINE = 64  # characters of base64 in a line of PEM


class Key(NamedTuple):
    """The bundles of a projection. A selector of None selects none, an empty one all bundles of the signer."""

    name: str
    signer: str = ""
    selector: str | None = None


def key(source: v1.TrustBundleSource) -> Key:
    """Return the key of a projection."""
    selector = source.label_selector
    return Key(source.name, source.signer_name, None if selector is None else _text(selector))


def _text(selector: selectors.LabelSelector) -> str:
    """Return a label selector as the API's query parameter."""
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
            case _:  # DoesNotExist: the API server rejects any other
                parts.append(f"!{one.key}")
    return ",".join(parts)


async def read(kube: client.Kube, wanted: Key) -> str | None:
    """Return the certificates of a projection, or None if there is no such bundle.

    Raises:
        errors.ApiUnavailable: The API server does not respond.
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
    """Return the distinct certificates of PEM texts, without the text around them."""
    blocks = set[bytes]()
    for block in (block for text in bundles for block in CERTIFICATE.findall(text)):
        with contextlib.suppress(ValueError):  # not base64: text around them
            blocks.add(base64.b64decode(block))
    return "".join(map(_pem, sorted(blocks)))


def _pem(certificate: bytes) -> str:
    text = base64.b64encode(certificate).decode()
    lines = [text[at : at + LINE] for at in range(0, len(text), LINE)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])
