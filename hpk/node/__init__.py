"""The one node that stands for the whole cluster: its object, its lease, and the kubelet's HTTPS API."""
