"""Exec, attach and port-forward: what clients speak on one side, sessions into pods on the other."""
