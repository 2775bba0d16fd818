#!/usr/bin/env bash
# Measure on the simulated cluster, starting what is needed; writes build/bench.json.
#
#   scripts/bench.sh [NAME]    all measurements, or those whose names begin so
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/venv.sh)
mkdir -p build
PYTHONPATH=. exec "$venv/bin/python" -m tests.bench --out build/bench.json ${1:+--name "$1"}
