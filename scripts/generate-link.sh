#!/usr/bin/env bash
# Generate hpk/link/link_pb2.py and link_pb2_grpc.py from link.proto; run it after each change of the proto.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/venv.sh)/bin/python
"$python" -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. hpk/link/link.proto
