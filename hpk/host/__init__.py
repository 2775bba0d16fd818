"""The programs that run on the host's own Python: 3.6 or newer, standard library only, and nothing else of HPK.

They reach hosts as one file, ``host.pyz`` (`hpk.host.pack`). The gateway runs beside a command on a login node, or
beside the control plane in its job; the tunnel on a login host; the relay and the probe in a job.
"""
