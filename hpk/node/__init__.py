"""The Node that represents the whole cluster: its object, its lease, and the kubelet's HTTPS API."""
