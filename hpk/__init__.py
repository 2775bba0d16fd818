"""Kubernetes for Slurm users, in one container."""

__version__ = "0.1.0"
