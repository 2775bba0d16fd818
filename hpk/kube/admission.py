"""The API server's questions to an admission webhook, and the answers; pure.

Source: k8s.io/api/admission/v1/types.go of Kubernetes 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

PATH = "/admission"
"""Path of the webhook in the kubelet's API, as registered with the API server."""
FORBIDDEN = 403

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question whether an object may be created or changed.

    Attributes:
        raw: The object, with the server's defaults.
        old: The object that it replaces.
        part: The subresource that changes it, such as ``ephemeralcontainers``; empty for the object itself.
    """

    uid: str
    kind: str
    raw: Object
    old: Object | None = None
    part: str = ""


def question(body: bytes) -> Question:
    """Parse an AdmissionReview.

    Raises:
        ValueError: It is not an AdmissionReview.
    """
    try:
        request = msgspec.json.decode(body)["request"]
        raw = request["object"]
        meta = raw.setdefault("metadata", {})
        meta.setdefault("namespace", request.get("namespace", ""))
        meta.setdefault("name", request.get("name") or meta.get("generateName", ""))
        return Question(
            uid=request["uid"],
            kind=request["kind"]["kind"],
            raw=raw,
            old=request.get("oldObject"),
            part=request.get("subResource") or "",
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an AdmissionReview: {error!r}") from error


def answer(uid: str, *, refusal: str | None, warnings: list[str]) -> bytes:
    """Encode the answer: allowed, or denied with the text of the refusal, which kubectl prints."""
    response: Object = {"uid": uid, "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"message": refusal, "reason": "Forbidden", "code": FORBIDDEN}
    if warnings:
        response["warnings"] = warnings
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
