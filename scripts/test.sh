#!/usr/bin/env bash
# Every test: what `make check` runs, then those on simulated clusters, which it builds and starts.
#
# An hour on a machine that has none of it yet (upstream's binaries are most of it), 25 minutes on one that has.
# Two clusters at a time: the tests wait more than they work. All is run, whatever failed before. A test of the clusters
# that fails is run once more at the end, alone: tests/again.py says what that comes to. The last lines are pytest's, or
# say what failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
work=$(mktemp -d)
failures=$work/failures # a part of the run a line
failed=$work/failed     # a test a line
lane=
trap 'rm -rf "$work"; [ -z "$lane" ] || kill "$lane"' EXIT
trap 'exit 143' INT TERM HUP

attempt() { # name command...: its failure is noted, and ends nothing
  local name=$1
  shift
  "$@" </dev/null || echo "$name" >>"$failures"
}

cluster_tests() { # marker files...
  local cache code=0
  cache=$(mktemp -d "$work/cache.XXXX")
  "$venv/bin/python" -m pytest -o cache_dir="$cache" --durations 15 --durations-min 15 -m "$@" </dev/null || code=$?
  attempt "pytest -m '$*' (profile ${SITE_PROFILE:-flannel})" python3 tests/again.py note "$failed" "$code" "$cache"
}

# What runs beside the machine's own cluster, on one that is apart: first what is heaviest.
apart() {
  (
    export SITE_PROFILE=flannel
    attempt 'site up' tests/site/site up
    attempt 'site argo' tests/site/site argo
    cluster_tests cluster tests/e2e/test_argo.py tests/e2e/test_streams.py
    cluster_tests destructive tests/site tests/e2e
  )
  bare
}

# The same program on a site that prepared nothing: the profile's own promises, pods, the ways to them, and where all
# that it keeps may lie.
bare() {
  local disks=tests/e2e/test_disks.py
  export SITE_PROFILE=bare
  attempt 'site up (bare)' tests/site/site up
  cluster_tests cluster tests/site/test_site_bare.py tests/e2e/test_bare.py tests/e2e/test_containment.py \
    $disks::TestScratch::test_each_directory_can_be_moved $disks::test_a_control_plane_whose_node_dies_comes_back_elsewhere
}

attempt check scripts/check.sh
venv=$(scripts/venv.sh) || exit
export PYTHONPATH=.
scripts/build-image.sh || exit
tests/site/site up || exit
tests/site/site argo # builds what a cluster that is apart, without a way to the internet, cannot; there it is looked at

export venv work failures failed
export -f attempt cluster_tests apart bare
tests/site/apart tests bash -c apart >build/test-apart.log 2>&1 &
lane=$!
cluster_tests 'cluster and not destructive' --ignore tests/e2e/test_argo.py --ignore tests/e2e/test_streams.py \
  tests/site tests/e2e
wait "$lane" || echo "the second cluster (exit code $?)" >>"$failures"
lane=
cat build/test-apart.log
attempt 'site up' tests/site/site up
[ ! -s "$failed" ] || {
  tests/site/site argo
  attempt 'tests that were run again' python3 tests/again.py run "$failed" "$venv/bin/python" -m pytest -q
  attempt 'site up' tests/site/site up
}
[ ! -s "$failures" ] || { sed 's/^/test: failed: /' "$failures" >&2; exit 1; }
