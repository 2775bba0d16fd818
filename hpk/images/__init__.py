"""Images: from the reference in a pod to a squashfs file and its config; in the kubelet, and in ``hpk pull``."""
