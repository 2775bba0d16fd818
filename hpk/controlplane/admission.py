"""The API server's configuration of the kubelet's admission webhook: URL, rules and client certificate.

The kubelet rejects pods that it cannot honour in any case; the webhook only tells their creator at once. It may
therefore fail: if the kubelet is away, objects are admitted.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

from hpk import jobdir
from hpk.controlplane import apiserver
from hpk.controlplane import layout as layouts
from hpk.kube import admission

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout

NAME = "hpk.io"
OBJECT = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
SECONDS = 10
"""The API server's timeout for the webhook: Kubernetes' default. An answer normally takes milliseconds."""
TEMPLATES = {
    "apps": ["deployments", "replicasets", "statefulsets", "daemonsets"],
    "batch": ["jobs", "cronjobs"],
}
"""Workload resources, which are never rejected: the controller reports what becomes of its pods. Their creator gets
warnings."""
CHANGED = (
    "oldObject == null || object.spec != oldObject.spec || "
    "object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})"
)
"""A CEL match condition that skips frequent changes of labels, finalizers and owners, which do not matter here."""


def write(layout: Layout) -> None:
    """Write the admission configuration, with a client certificate for this address only."""
    config = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {
                "name": "ValidatingAdmissionWebhook",
                "configuration": {
                    "apiVersion": "apiserver.config.k8s.io/v1",
                    "kind": "WebhookAdmissionConfiguration",
                    "kubeConfigFile": str(layout.kubeconfig("webhook")),
                },
            }
        ],
    }
    user = {
        "client-certificate": str(layout.certificate(apiserver.KUBELET_CLIENT)),
        "client-key": str(layout.key(apiserver.KUBELET_CLIENT)),
    }
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "users": [{"name": _host(layout), "user": user}]}
    jobdir.write_bytes(str(layout.admission), yaml.safe_dump(config, sort_keys=False).encode(), is_durable=False)
    jobdir.write_bytes(
        str(layout.kubeconfig("webhook")), yaml.safe_dump(kubeconfig, sort_keys=False).encode(), is_durable=False
    )


def webhook(layout: Layout, *, ca_pem: bytes) -> dict[str, Any]:
    """Return the ValidatingWebhookConfiguration for this start."""
    rules = [_rule("", ["pods"], ["CREATE", "UPDATE"])]
    rules.append(_rule("", ["pods/ephemeralcontainers", "pods/resize"], ["UPDATE"]))
    rules += [_rule(group, kinds, ["CREATE", "UPDATE"]) for group, kinds in TEMPLATES.items()]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": f"pods.{NAME}",
                "clientConfig": {
                    "url": f"https://{_host(layout)}{admission.PATH}",
                    "caBundle": base64.b64encode(ca_pem).decode(),
                },
                "rules": rules,
                "failurePolicy": "Ignore",
                "timeoutSeconds": SECONDS,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "matchConditions": [{"name": "changed", "expression": CHANGED}],
            }
        ],
    }


def _host(layout: Layout) -> str:
    return f"{layouts.LOOPBACK}:{layout.kubelet_port}"


def _rule(group: str, resources: list[str], operations: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "resources": resources,
        "operations": operations,
        "scope": "Namespaced",
    }
