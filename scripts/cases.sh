#!/usr/bin/env bash
# Run black-box cases as a user of the simulated cluster; ends with the runner's closing line and exit code.
#
#   scripts/cases.sh [FILE_OR_FOLDER ...]    ../shared/cases if none is named
#
# Uses the cluster that runs; starts one if none does, or another profile's where SITE_PROFILE names one.  HAVE names what this cluster can do (the runner skips
# cases that need more), JOBS how many cases run at a time.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
root=$PWD
HAVE=${HAVE-gpu,memory-limits,image-alias}
JOBS=${JOBS:-4}
runner=$root/../shared/cases/run
[ $# != 0 ] || set -- "$root/../shared/cases"
[ -e "$runner" ] || { echo "cases: there is no runner at $runner" >&2; exit 2; }

as_alice() { tests/site/site run --user alice ctl -- "$@"; }
is_ready() { as_alice kubectl --request-timeout=3s get node hpk </dev/null 2>/dev/null | grep -qw Ready; }

is_profile() { [ -z "${SITE_PROFILE:-}" ] || tests/site/site status | grep -q "^profile $SITE_PROFILE:"; }

{ is_profile && is_ready; } || python3 tests/cluster.py up >&2

staged=$(mktemp -d)
remote=cases-$$
trap 'rm -rf "$staged"; as_alice rm -rf "$remote" </dev/null || true' EXIT
for case in "$@"; do
  case $case in /*) ;; *) case=$here/$case ;; esac
  if [ -d "$case" ]; then cp "$case"/*.yaml "$staged/"; else cp "$case" "$staged/"; fi
done
cp "$runner" "$staged/run"
tar -c -C "$staged" . | as_alice sh -c "mkdir -p $remote && tar -x -C $remote"
as_alice python3 "$remote/run" --have "$HAVE" --jobs "$JOBS" "$remote" </dev/null
