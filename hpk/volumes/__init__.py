"""A pod's volumes: which objects they need, and the files that those become; nothing is written here."""
