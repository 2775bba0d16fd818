#!/usr/bin/env bash
# Kubernetes' own tests (e2e.test of the release that runs) on the simulated cluster, as a user would run them.
#
#   scripts/conformance.sh            the whole official list; writes docs/conformance.json and docs/conformance.md.
#                                     One that was cut off goes on with what has no outcome yet for this commit
#   scripts/conformance.sh REGEX      those whose names match, of all of Kubernetes' tests
#
# Uses the cluster that runs; starts one if none does, or another profile's where SITE_PROFILE names one.  PROCESSES
# says how many tests run at a time.  build/conformance/log is all of what ginkgo says.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}
runs=$({ tests/site/site status || true; } | sed -n 's/^profile \([a-z]*\):.*/\1/p')
export SITE_PROFILE=${SITE_PROFILE:-${runs:-flannel}}
controlplane/build.sh "$cache/conformance" e2e.test ginkgo kubectl
venv=$(scripts/venv.sh)
PYTHONPATH=. "$venv/bin/python" -m tests.cluster up >&2
tests/site/site conformance
PYTHONPATH=. exec "$venv/bin/python" -m tests.conformance --programs "$cache/conformance" \
  ${1:+--focus "$1"} ${PROCESSES:+--processes "$PROCESSES"}
