"""Where the cluster keeps what. Names are fixed, so that any checkout finds the one that runs."""
# Imported by the quick path of `site run`, which cannot afford pathlib.
# ruff: noqa: PTH111, PTH118, PTH120

import os

RUN = "/run/hpk-site"  # pids and fingerprint of the running cluster
DATA = "/var/lib/hpk-site"  # on real disk: the hosts' own files and the shared /home
HOME = f"{DATA}/home"
HOSTS = f"{DATA}/hosts"
PROGRAMS = f"{DATA}/programs"  # a layer of every host's root
LOCK = "/run/hpk-site.lock"  # not below RUN, which comes and goes
FINGERPRINT = f"{RUN}/fingerprint"
IMAGES = f"{RUN}/images"  # the index of what the registry shall serve

NETNS = "hpk-site"  # the switch; a host's is hpk-site-NAME
NETNS_FOLDER = "/run/netns"

MARKER = "etc/hpk-site-host"  # in every host's root: how its processes are known, whoever started them
APART = os.environ.get("SITE_APART", "")  # the name of a cluster that `apart` keeps from the machine's one
# In the machine's cgroups, which all clusters share; see `apart`, which names it too.
CGROUP = f"hpk-site-apart-{APART}" if APART else "hpk-site"

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))


def cache() -> str:
    """Return the folder outside the tree that keeps what was built, by version."""
    base = os.environ.get("HPK_CACHE")
    return base or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hpk")


def netns(host: str) -> str:
    """Return the name of a host's network namespace."""
    return f"{NETNS}-{host}"


def netns_file(name: str) -> str:
    """Return the file by which a network namespace is entered."""
    return f"{NETNS_FOLDER}/{name}"


def pid_file(host: str) -> str:
    """Return the file that holds `PID START-TIME` of a host's first process."""
    return f"{RUN}/{host}.pid"
