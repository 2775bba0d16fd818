"""The text of every configuration file on the hosts. Pure: facts in, {path: (content, mode)} out."""

import json

from . import layout

MUNGE_KEY = "hpk simulated site: a key that protects nothing, the same on every host\n" * 4
CLUSTER = "site"
PROGRAMS = "/opt/site/bin"  # on a host: what the site runs, not for users
EXPORT = "srv/home"  # on a host: where the homes are, if /home is a poor view of them
DATABASE_PASSWORD = "site"  # for a database that listens on a socket of an isolated host

SLURMD_PORT = 6818
FLANNEL_KEY = "/coreos.com/network/config"  # in etcd

Files = dict[str, tuple[str, int]]

# Run as root on a node after each job there.  A container that was killed outright never gives its
# pod address back (host-local keeps a file that names the container's process), and a node has 253.
EPILOG = r"""#!/bin/sh
cni=/var/lib/cni
for file in "$cni"/networks/fakeroot/*.*.*.*; do
  [ -e "$file" ] || continue
  IFS=$(printf '\r') read -r pid rest <"$file"
  [ -d "/proc/$pid" ] || rm -f "$file" "$cni/results/fakeroot-$pid"-*
done
"""
# Without cgroups a container's FUSE servers outlive it.
EPILOG_WITHOUT_CGROUPS = """\
pkill -KILL -P 1 -U "$SLURM_JOB_UID" -x 'squashfuse_ll|fuse-overlayfs'
"""
CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainDevices=yes
"""

# From any host to any other with the key that is in everybody's home, as on most clusters.  The hosts' own keys are
# as old as the cluster, so they are not remembered.
SSHD = """\
HostKey /run/sshd/host_key
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin no
UseDNS no
"""
SSH = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"

EXTENDED = {"etc/passwd": 0o644, "etc/group": 0o644, "etc/shadow": 0o640}  # the root file system's own, and modes
# What belongs to another user than root, in the hosts' roots.  Folders that are missing are made.
OWNERS = {
    "etc/munge": "munge", "etc/munge/munge.key": "munge", "var/log/munge": "munge", "run/munge": "munge",
    "etc/slurm/slurmdbd.conf": "slurm", "var/spool/slurm/ctld": "slurm", "run/slurm": "slurm",
    "run/mysqld": "mysql", "var/lib/docker-registry": "docker-registry",
}  # fmt: skip
# What slurmdbd would enforce (there is none here), with the same errors.  Numbers: slurm_errno.h and slurm.h.
POLICY = """\
local INVALID_ACCOUNT, ACCOUNTING_POLICY = 2045, 2050
local LIMITS = {%(limits)s}
local JOB_STATE_BASE, JOB_SUSPENDED = 256, 2
-- slurm.jobs is renewed once a second at most: what was accepted meanwhile, until it is seen there.
local unseen, newest = {}, 0

local function jobs_of(user)
  local count, last = 0, 0
  for id, job in pairs(slurm.jobs) do
    last = math.max(last, tonumber(id))
    if job.user_id == user and job.job_state %% JOB_STATE_BASE <= JOB_SUSPENDED then count = count + 1 end
  end
  if last ~= newest then unseen, newest = {}, last end
  for _, accepted in ipairs(unseen) do
    if accepted.user == user and os.time() - accepted.time < 3 then count = count + 1 end
  end
  return count
end

function slurm_job_submit(wish, partitions, user)
  if user == 0 then return slurm.SUCCESS end
  if wish.account ~= "%(account)s" then return INVALID_ACCOUNT end
  if wish.time_limit == slurm.NO_VAL then
    slurm.log_user("Time limit specification required, but not provided")
    return slurm.ERROR
  end
  if LIMITS[user] then
    if jobs_of(user) >= LIMITS[user] then
      slurm.log_user("AssocMaxSubmitJobLimit")
      return ACCOUNTING_POLICY
    end
    table.insert(unseen, {user = user, time = os.time()})
  end
  return slurm.SUCCESS
end

function slurm_job_modify() return slurm.SUCCESS end

return slurm.SUCCESS
"""

# A time zone file (RFC 8536) of UTC.  setuid Apptainer starts nothing where there is no /etc/localtime to bind.
UTC = "TZif" + "\0" * 32 + "\0\0\0\1" + "\0\0\0\4" + "\0" * 6 + "UTC\0"
SETUID_PART = ("usr/libexec/apptainer/bin/starter-suid",)
CNI_PART = ("usr/libexec/apptainer/cni", "etc/apptainer/network")


def files(profile: layout.Profile, host: layout.Host, *, base: dict[str, str]) -> Files:
    """Return the files that make a plain root file system this host.

    `base` holds the root file system's own /etc/passwd, group and shadow, which are extended.
    """
    out: Files = {
        "etc/hostname": (f"{host.name}\n", 0o644),
        "etc/hosts": (hosts_file(), 0o644),
        # Nothing listens there, and says so at once: names outside fail fast instead of timing out.
        "etc/resolv.conf": (f"nameserver {layout.GATEWAY}\noptions timeout:1 attempts:1\n", 0o644),
        "etc/nsswitch.conf": ("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n", 0o644),
        "etc/munge/munge.key": (MUNGE_KEY, 0o400),
        "etc/ssh/sshd_config": (SSHD, 0o644),
        "etc/ssh/ssh_config": (SSH, 0o644),
        "etc/slurm/slurm.conf": (slurm(profile), 0o644),
        "etc/slurm/cgroup.conf": (cgroup(profile), 0o644),
        "etc/slurm/gres.conf": (gres(), 0o644),
        "etc/slurm/epilog.sh": (epilog(profile), 0o755),
        **accounts(profile, base=base),
    }
    if profile.suite == "bookworm":  # its tzdata is no part of a small system
        out["etc/localtime"] = (UTC, 0o644)
    if profile.strict:
        limits = f"[{layout.USERS[0].uid}] = {profile.submit_limit}" if profile.submit_limit else ""
        out["etc/slurm/job_submit.lua"] = (POLICY % {"account": layout.ACCOUNT, "limits": limits}, 0o644)
    if host == layout.CONTROLLER:
        out["etc/docker/registry/config.yml"] = (registry(), 0o644)
        if profile.accounting:
            out["etc/slurm/slurmdbd.conf"] = (slurmdbd(), 0o600)
            out["etc/mysql/mariadb.conf.d/90-site.cnf"] = (mariadb(), 0o644)
    return out


def owners(profile: layout.Profile) -> dict[str, str]:
    """Return who owns what in the hosts' roots."""
    database = ("etc/slurm/slurmdbd.conf", "run/mysqld")
    return {path: owner for path, owner in OWNERS.items() if profile.accounting or path not in database}


def absent(profile: layout.Profile) -> tuple[str, ...]:
    """Return what the layers hold and the profile's hosts do not have.

    Apptainer is packaged in two parts; without the second, its setuid starter is missing. CNI is what the site adds.
    """
    return (
        *(() if profile.setuid_apptainer else SETUID_PART),
        *(() if profile.flannel else CNI_PART),
        *(() if profile.kubectl else ("usr/local/bin/kubectl",)),
    )


def hosts_file() -> str:
    """Return /etc/hosts: the cluster has no name server."""
    lines = [f"{host.address} {host.name}" for host in layout.HOSTS]
    return "\n".join(["127.0.0.1 localhost", *lines, f"{layout.GATEWAY} gateway", ""])


def accounts(profile: layout.Profile, *, base: dict[str, str]) -> Files:
    """Return passwd, group, shadow and, where the profile has them, the subordinate ids."""
    text = dict(base)
    subordinate = ""
    for user in layout.USERS:
        text["etc/passwd"] += f"{user.name}:x:{user.uid}:{user.uid}::/home/{user.name}:/bin/bash\n"
        text["etc/group"] += f"{user.name}:x:{user.uid}:\n"
        text["etc/shadow"] += f"{user.name}:*:20000:0:99999:7:::\n"
        subordinate += f"{user.name}:{user.subid}:{layout.SUBIDS}\n"
    out = {name: (text[name], mode) for name, mode in EXTENDED.items()}
    for name in ("etc/subuid", "etc/subgid"):
        out[name] = (subordinate if profile.subordinate_ids else "", 0o644)
    return out


def cgroup(profile: layout.Profile) -> str:
    """Return cgroup.conf. Where nothing asks for cgroups Slurm loads its plugin for them, and 22.05 must have one."""
    if profile.cgroups:
        return CGROUPS
    return "CgroupPlugin=cgroup/v1\n" if profile.suite == "bookworm" else "CgroupPlugin=disabled\n"


def epilog(profile: layout.Profile) -> str:
    """Return what root runs on a node after each job there."""
    return EPILOG + ("" if profile.cgroups else EPILOG_WITHOUT_CGROUPS) + "exit 0\n"


def slurm(profile: layout.Profile) -> str:
    """Return slurm.conf. Without cgroups memory is enforced by accounting, and only a job's own tree is killed."""
    lines = [
        f"ClusterName={CLUSTER}",
        "SlurmctldHost=ctl",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "LogTimeFormat=iso8601_ms,format_stderr",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "StateSaveLocation=/var/spool/slurm/ctld",
        "SlurmdSpoolDir=/var/spool/slurm/d",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",  # else a job without --mem takes all of a node's
        "SlurmdParameters=config_overrides",  # nodes are larger than the machine
        # slurmctld looks for work each whole second, its backfill a second after its last look
        "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=5,bf_interval=1",
        "ReturnToService=2",
        "SlurmdTimeout=20",  # a node that is gone fails its jobs within half a minute
        "MessageTimeout=30",  # two cores carry three hosts
        "MinJobAge=1200",  # longer than a test: what has run is counted at its end
        "Epilog=/etc/slurm/epilog.sh",
        "JobCompType=jobcomp/none",
        "GresTypes=gpu",
    ]
    if profile.cgroups:
        lines += ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup", "JobAcctGatherType=jobacct_gather/cgroup"]
    else:
        lines += [
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=task=2",
            "JobAcctGatherParams=OverMemoryKill",
        ]
    if profile.kill_wait:
        lines.append(f"KillWait={profile.kill_wait}")
    if profile.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=ctl",
            "AccountingStorageTRES=gres/gpu",
        ]
    if profile.strict:
        lines += ["JobSubmitPlugins=lua", "SlurmctldParameters=rl_enable"]
    for host in layout.HOSTS:
        generic = f" Gres=gpu:{host.gpus}" if host.gpus else ""
        lines.append(f"NodeName={host.name} CPUs={host.cpus} RealMemory={host.memory_mb}{generic} State=UNKNOWN")
    compute = [host.name for host in layout.HOSTS if host != layout.CONTROLLER]
    gpus = [host.name for host in layout.HOSTS if host.gpus]
    lines += [
        f"PartitionName=main Nodes={','.join(compute)} Default=YES MaxTime=INFINITE State=UP",
        f"PartitionName=gpu Nodes={','.join(gpus)} MaxTime=INFINITE State=UP",
        f"PartitionName=service Nodes={layout.CONTROLLER.name} MaxTime=INFINITE State=UP",
    ]
    if profile.strict:
        lines.append(f"PartitionName=whole Nodes={','.join(compute)} OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def firewall(host: layout.Host) -> str:
    """Return nft's rules of a host. On compute nodes what comes from the login node vanishes, as firewalls do it."""
    compute = ", ".join(other.address for other in layout.HOSTS if other != layout.CONTROLLER)
    new = "tcp flags & (fin|syn|rst|ack) == syn"
    if host == layout.CONTROLLER:
        rule = f"ip saddr {{ {compute} }} tcp dport {layout.REGISTRY_PORT} {new} reject with icmp type net-unreachable"
    else:
        rule = f"ip saddr {layout.CONTROLLER.address} tcp dport != {{ 22, {SLURMD_PORT} }} {new} drop"
    return f"table inet site {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}\n"


def gres() -> str:
    """Return gres.conf: the GPUs are device nodes, made with the hosts' /dev."""
    lines = ["AutoDetect=off"]
    lines += [
        f"NodeName={host.name} Name=gpu File=/dev/nvidia[0-{host.gpus - 1}]" for host in layout.HOSTS if host.gpus
    ]
    return "\n".join(lines) + "\n"


def slurmdbd() -> str:
    """Return slurmdbd.conf."""
    lines = [
        "AuthType=auth/munge",
        "DbdHost=ctl",
        "SlurmUser=slurm",
        "PidFile=/run/slurm/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        f"StoragePass={DATABASE_PASSWORD}",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join(lines) + "\n"


def mariadb() -> str:
    """Return MariaDB's settings: small, and without the care for power cuts that costs seconds here."""
    lines = [
        "[mariadbd]",
        "skip-networking",
        "innodb_buffer_pool_size=64M",
        "innodb_flush_log_at_trx_commit=0",
        "innodb_flush_method=nosync",
        "innodb_doublewrite=0",
        "innodb_lock_wait_timeout=900",  # slurmdbd asks for it
        "performance_schema=off",
        "skip-log-bin",
    ]
    return "\n".join(lines) + "\n"


def registry() -> str:
    """Return the OCI registry's configuration: plain http, no login, its own disk."""
    document = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": "/var/lib/docker-registry"}, "delete": {"enabled": True}},
        "http": {"addr": f":{layout.REGISTRY_PORT}"},
    }
    return json.dumps(document, indent=1) + "\n"  # JSON is YAML


def flannel_network() -> str:
    """Return the value of flannel's key in etcd."""
    return json.dumps({"Network": layout.POD_NETWORK, "Backend": {"Type": "vxlan"}})


def conflist(subnet_env: str) -> str:
    """Return the CNI network `fakeroot`, the only one open to unprivileged users, from flannel's subnet.env.

    Flannel's own CNI plugin would read subnet.env itself; with the plain bridge plugin the host's
    share of the network is written down here.
    """
    values = dict(line.split("=", 1) for line in subnet_env.splitlines() if "=" in line)
    address, _, length = values["FLANNEL_SUBNET"].partition("/")
    subnet = f"{address.rpartition('.')[0]}.0/{length}"
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "mtu": int(values["FLANNEL_MTU"]),
        "ipam": {"type": "host-local", "subnet": subnet, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "fakeroot", "plugins": [bridge]}, indent=1) + "\n"
