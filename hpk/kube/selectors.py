"""Selectors and tolerations, matched as apimachinery and the scheduler do; pure.

Sources, Kubernetes 1.37: apimachinery pkg/labels/selector.go (Requirement.Matches), component-helpers
scheduling/corev1/nodeaffinity, api core/v1/toleration.go (ToleratesTaint).
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - msgspec resolves the annotations

from hpk.kube.model import Model

INT64 = re.compile(r"[+-]?[0-9]+", re.ASCII)
NO_NEW_PODS = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new pods off a node."""


class Requirement(Model, frozen=True, kw_only=True):
    """``v1.NodeSelectorRequirement`` and ``metav1.LabelSelectorRequirement``, which differ in operators only."""

    key: str
    operator: str
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether these labels meet it; an unknown operator never matches."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    def _compares(self, value: str | None) -> bool:
        """Compare as integers; anything else matches nothing."""
        if value is None or len(self.values) != 1:
            return False
        mine, theirs = number(value), number(self.values[0])
        if mine is None or theirs is None:
            return False
        return mine > theirs if self.operator == "Gt" else mine < theirs


class LabelSelector(Model, frozen=True, kw_only=True):
    """``metav1.LabelSelector``; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether these labels meet all of it."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class NodeSelectorTerm(Model, frozen=True, kw_only=True):
    """A term of a node selector; an empty one matches no node."""

    match_expressions: list[Requirement] = []
    match_fields: list[Requirement] = []

    def matches(self, labels: Mapping[str, str], *, name: str) -> bool:
        """Return whether a node of these labels and this name meets all of it."""
        if not self.match_expressions and not self.match_fields:
            return False
        return all(requirement.matches(labels) for requirement in self.match_expressions) and all(
            _is_field_met(requirement, name) for requirement in self.match_fields
        )


class NodeSelector(Model, frozen=True, kw_only=True):
    """``v1.NodeSelector``: one of its terms must match."""

    node_selector_terms: list[NodeSelectorTerm] = []

    def matches(self, labels: Mapping[str, str], *, name: str) -> bool:
        """Return whether a node of these labels and this name meets one of the terms."""
        return any(term.matches(labels, name=name) for term in self.node_selector_terms)


class Taint(Model, frozen=True, kw_only=True):
    """``v1.Taint``."""

    key: str
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """The taint as the scheduler's messages name it."""
        return f"{{{self.key}: {self.value}}}"


class Toleration(Model, frozen=True, kw_only=True):
    """``v1.Toleration``; an empty key with ``Exists`` tolerates everything."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether it covers the taint; ``Lt`` and ``Gt`` compare the taint's number with its own."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case "Lt" | "Gt":
                mine, theirs = number(self.value), number(taint.value)
                if mine is None or theirs is None:
                    return False
                return theirs < mine if self.operator == "Lt" else theirs > mine
            case _:
                return False


class NodeAffinity(Model, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(Model, frozen=True, kw_only=True):
    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None


class PodAffinity(Model, frozen=True, kw_only=True):
    """``v1.PodAffinity`` and ``v1.PodAntiAffinity``."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []


class Affinity(Model, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Model, frozen=True, kw_only=True):
    topology_key: str
    max_skew: int
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None


def untolerated(taints: list[Taint], tolerations: list[Toleration]) -> list[Taint]:
    """Return the taints that keep a pod with these tolerations off the node."""
    return [
        taint
        for taint in taints
        if taint.effect in NO_NEW_PODS and not any(toleration.tolerates(taint) for toleration in tolerations)
    ]


def number(text: str) -> int | None:
    """Return the 64-bit integer that Go's strconv.ParseInt reads, or None."""
    if not INT64.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def _is_field_met(requirement: Requirement, name: str) -> bool:
    """Return whether a field requirement holds: ``In`` or ``NotIn`` with one value, of ``metadata.name``."""
    if len(requirement.values) != 1 or requirement.operator not in {"In", "NotIn"}:
        return False
    return requirement.matches({"metadata.name": name})
