#!/usr/bin/env bash
# Run black-box cases as a user of the simulated cluster; ends with the runner's closing line and exit code.
#
#   scripts/cases.sh [FILE_OR_FOLDER ...]    ../shared/cases if none is named
#
# Uses the cluster that runs; starts one if none does, or another profile's where SITE_PROFILE names one.  HAVE names
# what this cluster can do (the runner skips cases that need more), JOBS how many cases run at a time: one where the
# site takes few jobs.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
root=$PWD
HAVE=${HAVE-gpu,memory-limits,image-alias}
runner=$root/../shared/cases/run
[ $# != 0 ] || set -- "$root/../shared/cases"
[ -e "$runner" ] || { echo "cases: there is no runner at $runner" >&2; exit 2; }

as_alice() { tests/site/site run --user alice ctl -- "$@"; }
is_ready() { as_alice "${kubectl[@]}" --request-timeout=3s get node hpk </dev/null 2>/dev/null | grep -qw Ready; }

runs=$({ tests/site/site status || true; } | sed -n 's/^profile \([a-z]*\):.*/\1/p')
export SITE_PROFILE=${SITE_PROFILE:-${runs:-flannel}}
read -r jobs kubectl <<<"$(PYTHONPATH=. python3 -c '
from tests import cluster
print(1 if cluster.PROFILE.submit_limit else 4, *cluster.KUBECTL)')"
read -ra kubectl <<<"$kubectl"

{ [ "$runs" = "$SITE_PROFILE" ] && is_ready; } || python3 tests/cluster.py up >&2

staged=$(mktemp -d)
remote=cases-$$
trap 'rm -rf "$staged"; as_alice rm -rf "$remote" </dev/null || true' EXIT
for case in "$@"; do
  case $case in /*) ;; *) case=$here/$case ;; esac
  files=("$case")
  [ ! -d "$case" ] || files=("$case"/*.yaml)
  for file in "${files[@]}"; do
    [ ! -e "$staged/${file##*/}" ] || { echo "cases: two files have the name ${file##*/}: run one at a time" >&2; exit 2; }
    cp "$file" "$staged/"
  done
done
cp "$runner" "$staged/run"
tar -c -C "$staged" . | as_alice sh -c "mkdir -p $remote && tar -x -C $remote"
# Its own kubectl comes first in a case's PATH: this one must not be looked for there.
there=$(as_alice sh -c "command -v ${kubectl[0]}" </dev/null)
printf '#!/bin/sh\nexec %s "$@"\n' "$there ${kubectl[*]:1}" | as_alice sh -c "cat >$remote/kubectl && chmod +x $remote/kubectl"
as_alice python3 "$remote/run" --kubectl "/home/alice/$remote/kubectl" --have "$HAVE" --jobs "${JOBS:-$jobs}" "$remote" </dev/null
