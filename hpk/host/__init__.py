"""The programs that run on the host's own Python: 3.6 or newer, standard library only, and nothing else of ours.

The gateway, the tunnel and the probe run on a login host or beside the control plane, the relay and the probe in a job.
"""
