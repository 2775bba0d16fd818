"""``python -m tests.conformance [--focus REGEX]``: Kubernetes' own tests on the simulated cluster, as a user runs them.

Without a focus it is the whole official list: what has an outcome already, of an earlier run of the same commit and
profile that was cut off, is not run again, and docs/conformance.json and .md are written. ginkgo runs the tests in
parallel, those that are Serial alone and last, none a second time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests import cluster
from tests.bench import startup
from tests.conformance import outcomes, page
from tests.conformance.outcomes import FAILED, PASSED, Journal, Outcome

THERE = "/tmp/conformance"  # on the login node
BUILD = cluster.ROOT / "build/conformance"
DOCS = cluster.ROOT / "docs"
WRITTEN = (":!docs/conformance.json", ":!docs/conformance.md")
"""What a run that was cut off has written too; that must not keep the next one from going on."""
REGISTRIES = "".join(
    f"{name}: {cluster.REGISTRY}/e2e\n" for name in ("gcRegistry", "gcEtcdRegistry", "promoterE2eRegistry")
)
SAY_SECONDS = 30.0
"""Between two lines on how far it is, where they cannot replace each other on a terminal."""
PROCESSES = 2 if cluster.PROFILE.submit_limit else 14
"""Test processes at a time: they wait more than they work. A site that takes five jobs at a time has room for two."""


def main() -> int:
    """The command line; 0 if all that was asked for has run, and none has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="a folder with e2e.test, ginkgo and kubectl")
    parser.add_argument("--focus", default="", help="tests whose names match, Kubernetes' others included")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    listed = subprocess.run(
        [options.programs / "e2e.test", "--list-conformance-tests"], capture_output=True, text=True, check=True
    )
    names = outcomes.official(listed.stdout)
    subject = {"commit": _git("rev-parse", "HEAD"), "profile": cluster.PROFILE.name}
    if options.focus:
        (BUILD / "focus.jsonl").unlink(missing_ok=True)
        journal, focus, expected = Journal(BUILD / "focus.jsonl", subject=subject), options.focus, 0
    else:
        if changed := _git("status", "--porcelain", "--", ".", *WRITTEN):
            _say(f"not run: the outcome is recorded under a commit, and these changes are in none:\n{changed}")
            return 2
        journal = Journal(BUILD / "outcomes.jsonl", subject=subject)
        wanted = outcomes.pending(names, journal.outcomes)
        if not wanted:
            _say("all have an outcome for this commit and profile: running all of them again")
            (BUILD / "outcomes.jsonl").unlink()
            journal, wanted = Journal(BUILD / "outcomes.jsonl", subject=subject), names
        focus, expected = outcomes.focus(wanted), len(names)
    _stage(options.programs)
    try:
        Run(journal, expected=expected).run(focus, processes=options.processes)
    finally:
        if not options.focus:
            _write(names, journal.outcomes, subject)
    failed = sorted(name for name, outcome in journal.outcomes.items() if outcome.state == FAILED)
    for name in failed:
        print(f"  [FAIL] {name}")  # noqa: T201 -- the command's output
    _say(_counts(journal.outcomes))
    _say(f"the kubelet has {startup._resident()['hpk']:.0f} MiB resident")
    left = [] if options.focus else outcomes.pending(names, journal.outcomes)
    if left:
        _say(f"{len(left)} have no outcome (build/conformance/log may tell why); started again, it goes on with them")
    return 1 if failed or left or not journal.outcomes else 0


class Run:
    """One run of ginkgo on the login node, whose outcomes go into a journal as they come."""

    def __init__(self, journal: Journal, *, expected: int) -> None:
        self._journal = journal
        self._expected = expected
        self._began = time.monotonic()
        self._said = 0.0

    def run(self, focus: str, *, processes: int) -> None:
        """Run the tests that match; what ginkgo's report says of them at the end replaces what it printed."""
        command = _command(focus, processes=processes)
        argv = [str(cluster.SITE), "run", "--user", cluster.USER, cluster.HOST, "--", *command]
        printed = outcomes.Printed()
        with (
            (BUILD / "log").open("a") as log,
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as tests,
        ):
            try:
                for line in tests.stdout or ():
                    log.write(line)
                    self._note(printed.read(line))
            finally:
                tests.terminate()
                tests.wait()
                self._collect()

    def _note(self, ended: dict[str, Outcome]) -> None:
        self._journal.add(ended)
        for name, outcome in ended.items():
            if outcome.state == FAILED:
                _say(f"FAILED {name}")
        if ended and (sys.stderr.isatty() or time.monotonic() - self._said > SAY_SECONDS):
            self._said = time.monotonic()
            minutes = (self._said - self._began) / 60
            _say(f"{_counts(self._journal.outcomes, of=self._expected)} after {minutes:.0f} min")

    def _collect(self) -> None:
        """Take ginkgo's report, if there is one."""
        report = cluster.run("cat", f"{THERE}/report.json", code=None, seconds=60)
        if report.returncode == 0:
            (BUILD / "report.json").write_bytes(report.stdout)
            self._journal.add(outcomes.from_report(report.stdout.decode(errors="replace")))


def _stage(programs: Path) -> None:
    """Lay out on the login node what a run needs."""
    BUILD.mkdir(parents=True, exist_ok=True)
    cluster.run("sh", "-c", f"rm -rf {THERE} && mkdir -p {THERE}")
    for name in ("e2e.test", "ginkgo", "kubectl"):
        there = f"{THERE}/{name}"
        cluster.run("sh", "-c", f"cat >{there} && chmod 755 {there}", stdin=(programs / name).read_bytes())
    cluster.run("sh", "-c", f"cat >{THERE}/registries.yaml", stdin=REGISTRIES.encode())
    cluster.kubectl("delete", "namespace", "--selector=e2e-framework", "--wait=false")  # of a run that was cut off
    if cluster.PROFILE.filtered:  # its compute nodes do not reach the registry
        catalogue = json.loads(cluster.shell(f"curl -fsS http://{cluster.REGISTRY}/v2/_catalog?n=1000"))
        for name in (name for name in catalogue["repositories"] if name.startswith("e2e/")):
            tags = json.loads(cluster.shell(f"curl -fsS http://{cluster.REGISTRY}/v2/{name}/tags/list"))["tags"]
            cluster.run(cluster.HPK, "pull", *(f"{cluster.REGISTRY}/{name}:{tag}" for tag in tags), seconds=600)


def _command(focus: str, *, processes: int) -> list[str]:
    ginkgo = [
        "env", f"KUBE_TEST_REPO_LIST={THERE}/registries.yaml",
        f"{THERE}/ginkgo", f"--procs={processes}", "-v", "--no-color", "--timeout=24h", f"--focus={focus}",
        "--json-report=report.json", f"--output-dir={THERE}", f"{THERE}/e2e.test", "--",
        f"--kubeconfig=/home/{cluster.USER}/.kube/config", "--provider=skeleton", "--allowed-not-ready-nodes=-1",
        f"--kubectl-path={THERE}/kubectl",
    ]  # fmt: skip
    if not cluster.PROFILE.filtered:
        return ginkgo
    # The ports of compute nodes are filtered: the context leads through a tunnel meanwhile.
    connected = f"{cluster.HPK} connect & sleep 10; trap 'kill %1' EXIT; \"$@\""
    return ["bash", "-c", connected, "bash", *ginkgo]


def _write(names: list[str], found: dict[str, Outcome], subject: dict[str, str]) -> None:
    """Write docs/conformance.json and .md."""
    text = (DOCS / "conformance.toml").read_text()
    version = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    date = dt.datetime.now(dt.UTC).date().isoformat()
    document = page.document(names, found, **subject, date=date, version=version)
    (DOCS / "conformance.json").write_text(json.dumps(document, indent=1) + "\n")
    (DOCS / "conformance.md").write_text(page.markdown(document, found, page.reasons(text), page.images(text)))
    _say("docs/conformance.json and docs/conformance.md are written")


def _counts(found: dict[str, Outcome], *, of: int = 0) -> str:
    states = [outcome.state for outcome in found.values()]
    beginning = f"{len(states)} of {of}: " if of else f"{len(states)} run: "
    return f"{beginning}{states.count(PASSED)} passed, {states.count(FAILED)} failed"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(cluster.ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _say(text: str) -> None:
    print(f"conformance: {text}", file=sys.stderr, flush=True)  # noqa: T201 -- the command's output


if __name__ == "__main__":
    os.chdir(cluster.ROOT)
    sys.exit(main())
