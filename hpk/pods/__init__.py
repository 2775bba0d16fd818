"""The path of a pod in the kubelet, in the control plane's job; nothing of it runs in a pod's own job.

Read ``worker.py`` first: its ``sync`` observes, decides (``life.py``), acts and tells, once for each round.
"""
