#!/usr/bin/env bash
# Every test: what `make check` runs, then those on the simulated cluster, which it builds and starts.
#
# 75 minutes on a machine that has none of it yet (upstream's binaries are most of it), 30 on one that has.
# All is run, whatever failed before; the last line is pytest's, or says which part failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
failed=()

HPK_UNIT_SECONDS=${HPK_UNIT_SECONDS:-30} scripts/check.sh || failed+=(check)
venv=$(scripts/venv.sh) || exit
export PYTHONPATH=.
scripts/build-image.sh || exit
tests/site/site up || exit
tests/site/site argo || failed+=("site argo") # minutes on a machine that has not built it: too long within a test

# Tests that take the cluster down come last.
for those in 'cluster and not destructive' 'destructive'; do
  "$venv/bin/python" -m pytest --timeout 600 -m "$those" tests/site tests/e2e </dev/null || failed+=("pytest -m '$those'")
done

# The same program on a site that prepared nothing: the profile's own promises, pods, and the ways to them, 6 minutes.
SITE_PROFILE=bare "$venv/bin/python" -m pytest --timeout 600 -m cluster tests/site/test_site_bare.py \
  tests/e2e/test_bare.py tests/e2e/test_containment.py </dev/null || failed+=("pytest with SITE_PROFILE=bare")
tests/site/site up || failed+=("site up")
[ ${#failed[@]} = 0 ] || { printf 'test: failed: %s\n' "${failed[@]}" >&2; exit 1; }
