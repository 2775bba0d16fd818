"""Network modes: the site's choices, and starting a pod's sandbox in one."""
