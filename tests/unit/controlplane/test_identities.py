"""Who may speak to the API server, and with what."""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509 import oid

from hpk import config
from hpk.controlplane import apiserver, bootstrap, etcd, identities, layout

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> layout.Layout:
    """A state directory with everything issued."""
    made = layout.Layout(
        settings=config.Settings(state=tmp_path_factory.mktemp("state"), cluster_domain="hpc.example", node_name="hpk"),
        address="10.77.0.11",
        host_names=("c1.cluster", "c1"),
        etcd_port=1,
        api_port=6443,
        kubelet_port=10250,
    )
    made.make_directories()
    identities.issue(made, identities.open_authorities(made))
    return made


def load(path: Path) -> x509.Certificate:
    """A certificate from its file."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def user_of(made: layout.Layout, identity: str) -> tuple[str, list[str], dict[str, Any]]:
    """User, groups and cluster of a kubeconfig."""
    document = yaml.safe_load(made.kubeconfig(identity).read_text())
    pem = base64.b64decode(document["users"][0]["user"]["client-certificate-data"])
    subject = x509.load_pem_x509_certificate(pem).subject
    groups = [str(part.value) for part in subject.get_attributes_for_oid(oid.NameOID.ORGANIZATION_NAME)]
    (name,) = subject.get_attributes_for_oid(oid.NameOID.COMMON_NAME)
    return str(name.value), groups, document["clusters"][0]["cluster"]


@pytest.mark.parametrize(
    ("identity", "user", "groups"),
    [
        ("admin", "hpk:admin", ["hpk:admins"]),
        ("kubelet", "system:node:hpk", ["system:nodes"]),
        ("binder", "hpk:binder", []),
        ("controller-manager", "system:kube-controller-manager", []),
        ("bootstrap", "hpk:bootstrap", ["system:masters"]),
    ],
)
def test_each_identity_is_who_it_should_be(made: layout.Layout, identity: str, user: str, groups: list[str]) -> None:
    """Users and groups are what the Node authorizer and RBAC expect; only the bootstrap identity may do all."""
    assert user_of(made, identity)[:2] == (user, groups)


def test_only_the_admin_comes_from_elsewhere(made: layout.Layout) -> None:
    """The user's kubeconfig names this host's address; our own processes stay on loopback."""
    servers = {name: user_of(made, name)[2]["server"] for name in ("admin", "kubelet", "binder")}
    assert servers.pop("admin") == "https://10.77.0.11:6443"
    assert set(servers.values()) == {"https://127.0.0.1:6443"}


def test_the_api_server_answers_to_every_name(made: layout.Layout) -> None:
    """Pods reach it by service name, service address or host address; all are in the certificate."""
    names = load(made.certificate(apiserver.SERVER)).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert set(names.value.get_values_for_type(x509.DNSName)) == {
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.hpc.example",
        "c1.cluster",
        "c1",
        "localhost",
    }
    assert set(names.value.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address(address) for address in ("10.77.0.11", "127.0.0.1", "10.96.0.1")
    }


def test_authorities_sign_only_for_their_own_purpose(made: layout.Layout) -> None:
    """What is worth something to etcd is worth nothing to the API server, and so on."""
    issuers = {
        name: load(made.certificate(name)).issuer.rfc4514_string()
        for name in (etcd.CLIENT, etcd.SERVER, apiserver.FRONT_PROXY_CLIENT, apiserver.KUBELET_CLIENT, apiserver.PROBE)
    }
    assert issuers == {
        etcd.CLIENT: "CN=etcd",
        etcd.SERVER: "CN=etcd",
        apiserver.FRONT_PROXY_CLIENT: "CN=front-proxy",
        apiserver.KUBELET_CLIENT: "CN=kubernetes",
        apiserver.PROBE: "CN=kubernetes",
    }


def test_all_files_are_private(made: layout.Layout) -> None:
    """Every file is 0600 and every directory 0700."""
    for path in made.root.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_new_start_keeps_authorities_and_changes_the_rest(made: layout.Layout) -> None:
    """On another host the serving certificate is new and has its address; the authorities are the same."""
    before = made.authority_certificate("kubernetes").read_bytes(), made.certificate(apiserver.SERVER).read_bytes()
    moved = dataclasses.replace(made, address="10.77.0.12")
    identities.issue(moved, identities.open_authorities(moved))
    after = made.authority_certificate("kubernetes").read_bytes(), made.certificate(apiserver.SERVER).read_bytes()
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_the_binder_may_bind_and_little_else() -> None:
    """Its role has no verb that changes a pod but binding and to say why it waits, and no secrets."""
    roles = [body for path, body in bootstrap.objects() if path.endswith("/clusterroles/hpk:binder")]
    (rules,) = [role["rules"] for role in roles]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert ("pods/binding", "create") in granted
    writes = {(resource, verb) for resource, verb in granted if verb not in {"get", "list", "watch"}}
    assert {resource for resource, _ in writes} == {"pods/binding", "bindings", "pods/status", "events"}
    assert not any("*" in part for pair in granted for part in pair)
