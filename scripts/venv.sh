#!/usr/bin/env bash
# Print the path of a virtual environment that holds the locked development dependencies.
#
# It is made once for each requirements-dev.txt and Python, under $HPK_CACHE, so that a second run
# costs nothing.  The program itself is not installed in it: the tree is put on PYTHONPATH.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}
key=$( (cat "$root/requirements-dev.txt"; python3 --version) | sha256sum | cut -c1-16)
venv=$cache/venv-$key
if [ ! -x "$venv/bin/.complete" ]; then
  mkdir -p "$cache"
  exec {lock}>"$venv.lock"
  flock "$lock" # two that start together in a fresh machine would remove each other's half
fi
if [ ! -x "$venv/bin/.complete" ]; then
  echo "venv: installing the locked development dependencies (under a minute) ..." >&2
  rm -rf "$venv"
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q --require-hashes --no-deps -r "$root/requirements-dev.txt" >&2
  install -m 755 /dev/null "$venv/bin/.complete"
fi
echo "$venv"
