#!/usr/bin/env bash
# Generate the Python of our .proto files; run it after each change of one.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/venv.sh)/bin/python
"$python" -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. hpk/link/link.proto
"$python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. hpk/controlplane/etcd_api.proto
