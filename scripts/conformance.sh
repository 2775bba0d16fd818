#!/usr/bin/env bash
# Kubernetes' own tests (e2e.test of the release that runs) on the simulated cluster, as a user would run them.
#
#   scripts/conformance.sh [REGEX]    those whose names match (ginkgo.focus); by default those that a client's streams
#                                     are made of: exec, attach, logs, port-forward, ephemeral containers
#
# Uses the cluster that runs; starts one if none does.  The program takes 17 minutes to build the first time.
# Ends with ginkgo's summary and exit code; build/conformance.log is all of it.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}
streams='Kubectl Port forwarding|Kubectl client Simple pod|Kubectl logs|Kubectl exec|Ephemeral Containers'
streams+='|Pods should support (remote command execution|retrieving logs)'
focus=${1:-$streams}
there=/tmp/conformance

as_alice() { tests/site/site run --user alice ctl -- "$@"; }

controlplane/build.sh "$cache/conformance" e2e.test
as_alice kubectl --request-timeout=3s get node hpk </dev/null 2>/dev/null | grep -qw Ready || python3 tests/cluster.py up >&2
tests/site/site conformance
as_alice sh -c "mkdir -p $there && cat >$there/e2e.test && chmod +x $there/e2e.test" <"$cache/conformance/e2e.test"
as_alice sh -c "cat >$there/registries.yaml" <<'REGISTRIES'
gcRegistry: ctl:5000/e2e
promoterE2eRegistry: ctl:5000/e2e
REGISTRIES
mkdir -p build
as_alice env KUBE_TEST_REPO_LIST=$there/registries.yaml "$there/e2e.test" --kubeconfig /home/alice/.kube/config \
  --provider=skeleton --allowed-not-ready-nodes=-1 --ginkgo.focus="$focus" --ginkgo.no-color --ginkgo.v=false \
  --report-dir=$there </dev/null >build/conformance.log 2>&1 && code=0 || code=$?
grep -E '^(Ran |(PASS|FAIL)|  *\[(FAIL|PANICKED|TIMEDOUT)\])' build/conformance.log | sort -u
exit "$code"
