"""Runs a pod from the event loop's start on: containers, logs, probes, restarts, and the report.

Imported while crun makes the first container. It knows the kubelet only by the pod's directory, not by the link.
"""
