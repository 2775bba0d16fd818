"""A pod's volumes: the objects they need and the files they contain; nothing is written here."""
