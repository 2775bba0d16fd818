"""The components as values: golden command lines, and the promises that they must not lose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpk import config, errors
from hpk.controlplane import apiserver, component, controller_manager, etcd, layout

if TYPE_CHECKING:
    from types import ModuleType

GOLDEN = Path(__file__).parent / "golden"
MODULES = [etcd, apiserver, controller_manager]
LAYOUT = layout.Layout(
    settings=config.Settings(state=Path("/home/alice/.hpk"), control_plane_memory=512),
    address="10.77.0.11",
    host_names=("c1.cluster", "c1"),
    etcd_port=20001,
    api_port=6443,
    kubelet_port=10250,
    binaries={name: f"/usr/local/bin/{name}" for name in layout.BINARIES},
    processors=4,
)


def text(made: component.Component) -> str:
    """A component as a golden file shows it."""
    needs = f"needs {', '.join(made.needs) or 'nothing'}"
    return "\n".join([needs, *(f"{key}={value}" for key, value in made.env.items()), *made.argv]) + "\n"


def flags(made: component.Component) -> dict[str, str]:
    """The flags by name."""
    return dict(argument[2:].split("=", 1) for argument in made.argv[1:])


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_command_lines_are_golden(module: ModuleType) -> None:
    """A change of what is run shows in review, line by line."""
    assert text(module.component_of(LAYOUT)) == (GOLDEN / f"{module.NAME}.txt").read_text()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_no_secret_and_no_foreign_environment(module: ModuleType) -> None:
    """Keys are named by path only, and the environment is ours alone: no proxy, nothing of Slurm's."""
    made = module.component_of(LAYOUT)
    assert not any("BEGIN" in argument for argument in made.argv)
    assert set(made.env) == {"PATH", "GOMEMLIMIT", "GOMAXPROCS", "GOGC"}


def test_etcd_is_for_this_host_and_for_certificates() -> None:
    """Etcd listens on loopback alone, with TLS, and asks its clients for certificates of its own authority."""
    made = flags(etcd.component_of(LAYOUT))
    for name in ("listen-client-urls", "listen-peer-urls"):
        assert made[name].startswith("https://127.0.0.1:")
    assert made["client-cert-auth"] == made["peer-client-cert-auth"] == "true"
    assert made["trusted-ca-file"].endswith("/pki/etcd/ca.crt")
    assert "unsafe-no-fsync" not in made


def test_the_api_server_lets_nobody_in_unasked() -> None:
    """No anonymous access, Node and RBAC, NodeRestriction, and each authority for its own purpose."""
    made = flags(apiserver.component_of(LAYOUT))
    assert made["anonymous-auth"] == "false"
    assert made["authorization-mode"] == "Node,RBAC"
    assert "NodeRestriction" in made["enable-admission-plugins"]
    authorities = {made[name] for name in ("client-ca-file", "requestheader-client-ca-file", "etcd-cafile")}
    assert len(authorities) == 3
    assert made["kubelet-certificate-authority"] == made["client-ca-file"]


def test_a_local_trial_opens_no_door() -> None:
    """On loopback the API server listens there only, and publishes no endpoint that could not be one."""
    made = flags(apiserver.component_of(dataclasses.replace(LAYOUT, address="127.0.0.1")))
    assert made["bind-address"] == "127.0.0.1"
    assert made["endpoint-reconciler-type"] == "none"


def test_the_first_service_address_follows_the_setting() -> None:
    """The certificate must cover the ClusterIP of the service ``kubernetes``, wherever a site puts services."""
    assert (
        dataclasses.replace(LAYOUT, settings=config.Settings(service_cidr="172.30.0.0/16")).first_service_address
        == "172.30.0.1"
    )


def test_missing_binaries_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Outside hpk.sif the text says which programs are missing and where they come from."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.Fatal, match=r"etcd, kube-apiserver, kube-controller-manager.*build\.sh"):
        layout.find_binaries()


def test_directories_are_ours_alone(tmp_path: Path) -> None:
    """Every directory is 0700, also one that was there before with other modes."""
    made = dataclasses.replace(LAYOUT, settings=config.Settings(state=tmp_path))
    (tmp_path / "state" / "etcd").mkdir(parents=True, mode=0o755)
    made.make_directories()
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found} == {0o700}
