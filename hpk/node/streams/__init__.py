"""Exec, attach and port-forward: client protocols on one side, sessions into pods on the other."""
