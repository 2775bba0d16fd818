"""Network modes: which one a site can have, and how a pod's sandbox is started in it."""
