"""What the API server asks of an admission webhook, and how it wants the answer; pure.

Source: k8s.io/api/admission/v1/types.go of Kubernetes 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

PATH = "/admission"
"""Where the kubelet's API takes reviews; the API server is told so."""
FORBIDDEN = 403

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Question:
    """May this object be created, or changed?

    Attributes:
        uid: Of the question.
        kind: Of the object, such as ``Pod``.
        raw: The object, with the server's defaults.
        old: What it shall replace.
        part: The subresource through which it is changed, such as ``ephemeralcontainers``; empty for the object.
    """

    uid: str
    kind: str
    raw: Object
    old: Object | None = None
    part: str = ""


def question(body: bytes) -> Question:
    """Read an AdmissionReview.

    Raises:
        ValueError: It is none.
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
    """Encode the answer: yes without a refusal, else no with its text, which kubectl prints."""
    response: Object = {"uid": uid, "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"message": refusal, "reason": "Forbidden", "code": FORBIDDEN}
    if warnings:
        response["warnings"] = warnings
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
