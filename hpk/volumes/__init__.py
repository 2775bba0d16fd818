"""A pod's volumes: the objects they need and the files they contain; in the kubelet. The agent writes them."""
