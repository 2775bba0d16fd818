"""What the agent does for the kubelet over the link: reports to it, and serves exec, attach and port-forward."""
