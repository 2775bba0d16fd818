"""Kubernetes' own tests on the simulated cluster, and what became of each."""
