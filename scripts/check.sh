#!/usr/bin/env bash
# All that needs no cluster: format, lint, types, import contracts, unit tests.  Under a minute.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/progress.sh
need_packages squashfs-tools zstd python3-venv >&2 || exit # the image tests convert real images
venv=$(scripts/venv.sh) || exit
export PYTHONPATH=.
failed=()

check() { # name command...
  local name=$1 started=$SECONDS output
  shift
  if output=$("$@" 2>&1 </dev/null); then
    printf '%-8s ok in %d s%s\n' "$name" $((SECONDS - started)) "$(tail -n 1 <<<"$output" | sed 's/^/: /')"
  else
    printf '%s\n%-8s FAILED\n' "$output" "$name"
    failed+=("$name")
  fi
}

check format "$venv/bin/ruff" format --check .
check lint "$venv/bin/ruff" check .
check types "$venv/bin/mypy"
check imports "$venv/bin/lint-imports"
check oldest "$venv/bin/vermin" --target=3.6- --eval-annotations --violations --no-tips hpk/host scripts/hpk
check units "$venv/bin/python" -m pytest -q -n 2 -m 'not cluster' tests/unit
[ ${#failed[@]} = 0 ] || { echo "check: failed: ${failed[*]}" >&2; exit 1; }
