"""What the API server is told about the kubelet's webhook."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import yaml

from hpk import config
from hpk.controlplane import admission, layout

GOLDEN = Path(__file__).parent / "golden"
LAYOUT = layout.Layout(
    settings=config.Settings(state=Path("/home/alice/.hpk")),
    address="10.77.0.11",
    host_names=("c1",),
    etcd_port=20001,
    api_port=6443,
    kubelet_port=10250,
)


def test_the_webhook_is_golden() -> None:
    """What is asked about, how long it may take, and that a kubelet that is away stops nobody."""
    made = yaml.safe_dump(admission.webhook(LAYOUT, ca_pem=b"PEM"), sort_keys=False)
    assert made == (GOLDEN / "webhook.yaml").read_text()


def test_the_api_server_shows_its_certificate_to_the_kubelet_alone(tmp_path: Path) -> None:
    """The user is named for one address: other webhooks, which a user may add, never see the certificate."""
    made = dataclasses.replace(LAYOUT, settings=config.Settings(state=tmp_path))
    made.make_directories()
    admission.write(made)
    (plugin,) = yaml.safe_load(made.admission.read_text())["plugins"]
    file = Path(plugin["configuration"]["kubeConfigFile"])
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    (user,) = document["users"]
    assert user["name"] == "127.0.0.1:10250"
    assert user["user"]["client-key"] == str(made.key("apiserver-kubelet-client"))
    assert "current-context" not in document
    assert {path.stat().st_mode & 0o777 for path in (file, made.admission)} == {0o600}


def test_the_address_and_the_authority_follow_each_start() -> None:
    """The kubelet's port may differ from last time's."""
    (hook,) = admission.webhook(dataclasses.replace(LAYOUT, kubelet_port=31000), ca_pem=b"PEM")["webhooks"]
    assert hook["clientConfig"]["url"] == "https://127.0.0.1:31000/admission"
    assert base64.b64decode(hook["clientConfig"]["caBundle"]) == b"PEM"
