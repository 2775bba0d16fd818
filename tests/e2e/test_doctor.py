"""``hpk doctor`` on the simulated cluster: each partition by a job of its own, and nothing stays."""

from __future__ import annotations

import json

import pytest

from tests import cluster
from tests.e2e.conftest import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_a_prepared_site_is_well(hpk: None) -> None:
    """No errors, a line for each partition that says what was tried; files and jobs are gone."""
    found = json.loads(cluster.run(cluster.HPK, "doctor", "--json", seconds=180).stdout)
    assert [one for one in found if one["level"] == "error"] == []
    for name in ("login host ctl", "partition main", "partition gpu", "partition service"):
        about = [one for one in found if one["where"].startswith(name)]
        # A disk that is busy with other things is noted, and rightly.
        assert [one for one in about if one["level"] != "ok" and "fsync of the state" not in one["what"]] == []
        summaries = [one["what"] for one in about if one["level"] == "ok"]
        assert about
        assert name.startswith("login") or all("a sandbox starts in" in words for words in summaries)
    assert cluster.shell("ls -d ~/.hpk/doctor-* 2>/dev/null; true") == ""
    until(lambda: cluster.shell("squeue -h --me -t PD,R -n hpk-doctor") == "")  # it has the answer before the job ends


def test_what_is_wrong_is_told(hpk: None) -> None:
    """Scratch that cannot be written, a network that clashes, flags that sbatch refuses: by name, with exit code 1."""
    settings = "HPK_SCRATCH=/proc/nowhere HPK_SERVICE_CIDR=10.77.0.0/16"
    done = cluster.run("bash", "-c", f"{settings} {cluster.HPK} doctor", code=1, seconds=180)
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("error   partition main") and "/proc/nowhere" in line]
    assert [line for line in lines if "overlaps service_cidr 10.77.0.0/16" in line and "HPK_SERVICE_CIDR" in line]
    done = cluster.run("bash", "-c", f"HPK_FLAGS=--constraint=nosuch {cluster.HPK} doctor", seconds=180, code=None)
    assert "sbatch refuses jobs: " in done.stdout.decode()
