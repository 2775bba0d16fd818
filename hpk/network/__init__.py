"""The network modes of pods, in the kubelet: what the site supports, the addresses, the command of a sandbox."""
