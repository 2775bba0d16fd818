"""Serves the kubelet over the link: reports, exec, attach and port-forward."""
