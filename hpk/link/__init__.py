"""The gRPC link of kubelet and agent; ``link.proto`` is the contract, ``scripts/generate-link.sh`` makes the code."""
