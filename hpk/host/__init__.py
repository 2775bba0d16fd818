"""The programs that run on the host's own Python: 3.6 or newer, standard library only, and nothing else of ours.

They go to hosts as one file, ``host.pyz`` (`hpk.host.pack`): the gateway beside a command or the control plane, the
tunnel on a login host, the relay and the probe in a job.
"""
