"""Images: from the reference in a pod to a local squashfs file and its config."""
