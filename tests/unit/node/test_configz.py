"""The configuration that a kubelet shows."""

from __future__ import annotations

from hpk.node import configz


def test_it_says_what_is_true_here() -> None:
    """Nobody is anonymous, the API server decides, answers are remembered as long as they are."""
    found = configz.configuration(
        address="10.0.0.1",
        port=10250,
        max_pods=1000,
        cluster_domain="cluster.local",
        log_file_mib=10,
        log_files=5,
        images={"imageMinimumGCAge": "2m0s"},
    )
    assert (found["containerLogMaxSize"], found["containerLogMaxFiles"]) == ("10Mi", 5)
    assert (found["port"], found["maxPods"], found["readOnlyPort"]) == (10250, 1000, 0)
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authorization"]["webhook"] == {"cacheAuthorizedTTL": "300s", "cacheUnauthorizedTTL": "30s"}
    assert found["streamingConnectionIdleTimeout"] == "14400s"
