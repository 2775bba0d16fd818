"""HPK started anew on a prepared site, by a user who chooses ``overlay``, while a node is of another architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e import conftest, test_bare, test_containment

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.destructive,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not cluster.PROFILE.flannel, reason="needs the prepared site"),
]


def slurmd(start: str) -> None:
    """Let another slurmd run on c2."""
    cluster.shell(f"pkill -x slurmd; while pgrep -x slurmd; do sleep 0.1; done; {start}", host="c2", user="root")


def architecture() -> str:
    """What Slurm says of c2."""
    return cluster.shell("scontrol --oneliner show node c2 | grep -o 'Arch=[^ ]*.*State=[^ ]*'; true")


@pytest.fixture(scope="module")
def elsewhere(hpk: None) -> Iterator[None]:
    """c2 says that it is a 32-bit machine, and HPK runs with a network of its own choice."""
    cluster.stop()
    try:
        slurmd("setarch i686 slurmd -N c2")
        conftest.until(lambda: "Arch=i686" in architecture() and "State=IDLE" in architecture())
        cluster.run("env", "HPK_NETWORK=overlay", cluster.HPK, "up", seconds=180)
        yield
        cluster.stop()
    finally:
        slurmd("true")
        cluster.site_up(is_quiet=True)
        conftest.until(lambda: "Arch=x86_64" in architecture() and "State=IDLE" in architecture())
        cluster.start()


@pytest.fixture
def room(elsewhere: None, request: pytest.FixtureRequest) -> conftest.Namespace:
    """A namespace there."""
    found: conftest.Namespace = request.getfixturevalue("space")
    return found


def test_a_partition_of_another_architecture_is_refused_by_name(room: conftest.Namespace) -> None:
    """Before anything is submitted; one that has a fitting node takes the pod."""
    other = test_bare.pod("other", "true").replace(
        "{name: other}", "{name: other, annotations: {slurm.hpk.io/flags: --partition=gpu}}"
    )
    with pytest.raises(
        cluster.Failed, match=r"the images here are linux/amd64.*the nodes of partition gpu are linux/386"
    ):
        room.apply(other)
    room.apply(other.replace("--partition=gpu", "--nodelist=c1"))
    conftest.until(lambda: room.phase("other") == "Succeeded")


def test_pods_have_networks_of_their_own(room: conftest.Namespace) -> None:
    """As on a site that prepared nothing, though all ids are mapped by Apptainer."""
    test_bare.test_pods_have_networks_of_their_own(room)


def test_pods_have_several_ids(room: conftest.Namespace) -> None:
    """What subordinate ids give is there in this network too."""
    second = test_bare.SECOND.replace('["true"]', '[sh, -c, "id -u; touch /e/first"]').replace(
        "{runAsUser: 7}}", "{runAsUser: 7}, volumeMounts: [{name: e, mountPath: /e}]}"
    )
    script = "id -u; id -G; stat -c %u:%g /e/first; cat /stuff/private"
    text = test_bare.pod("ids", script, context="{runAsUser: 1000, fsGroup: 77}", image="layers:1", more=second)
    room.apply(text)
    words = test_bare.said(room, "ids").splitlines()
    assert words[0] == "1000"
    assert "77" in words[1].split()
    assert words[2:] == ["7:77", "only uid 1000 reads this"]


def test_containers_are_contained(room: conftest.Namespace) -> None:
    """The pod's root owns the network that pasta connects; a container's root does not."""
    test_containment.test_the_network_cannot_be_changed(room)
    test_containment.test_low_ports_and_ping_are_for_everybody(room)
