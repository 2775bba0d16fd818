#!/bin/bash
#SBATCH --job-name=lab/demo
#SBATCH --comment=0b4e
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@45
#SBATCH --chdir=/home/alice/.hpk/pods/0b4e
#SBATCH --output=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --error=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --no-requeue
#SBATCH --open-mode=append
# A pod of Kubernetes, run by HPK.  Everything about it is in spec.json in this job's working directory.
echo "stages script=$EPOCHREALTIME"
# The address that this host speaks from.
HPK_HOST_IP=$(ip -4 -o route get 192.0.2.1 2>/dev/null) HPK_HOST_IP=${HPK_HOST_IP##* src } HPK_HOST_IP=${HPK_HOST_IP%% *}
HPK_SCRATCH="${TMPDIR:-/tmp}/hpk-0b4e"
umask 077
# A directory that others could have made beforehand would be theirs: the last letters are for nobody to guess.
[ -d "${HPK_SCRATCH%/*}" ] || mkdir -p "${HPK_SCRATCH%/*}" || exit 1
HPK_SCRATCH=$(mktemp -d "$HPK_SCRATCH.$$.XXXXXX") || exit 1
exec {lock}<"$HPK_SCRATCH"
# Files of subordinate ids can be removed only by the same ids; the agent does it unless it was killed.
remove() {
  rmdir "$HPK_SCRATCH" 2>/dev/null || { apptainer exec --fakeroot /home/alice/.hpk/hpk.sif rm -rf "$HPK_SCRATCH"; rm -rf "$HPK_SCRATCH"; } 2>/dev/null
}
# What jobs that were killed outright have left here: their shells are gone, and nobody holds the lock.
sweep() {
  local owner
  for HPK_SCRATCH in "${HPK_SCRATCH%/*}"/hpk-*.*.??????; do
    owner=${HPK_SCRATCH%.*} owner=${owner##*.}
    [ -O "$HPK_SCRATCH" ] && ! kill -0 "$owner" 2>/dev/null && flock -xn "$HPK_SCRATCH" true 2>/dev/null && remove
  done
}
apptainer exec --bind "$HPK_SCRATCH:/run/hpk/scratch" /home/alice/.hpk/hpk.sif agent </dev/null &
agent=$!
# Held by this shell and by what it has started, as long as any of it lives: others then leave the directory alone.
flock -sn $lock 2>/dev/null
sweep </dev/null >/dev/null 2>&1 &
trap 'kill -TERM $agent 2>/dev/null' TERM INT
trap 'kill -USR1 $agent 2>/dev/null' USR1
# A trapped signal ends `wait` early; the agent decides when the pod is over.
while kill -0 $agent 2>/dev/null; do
  wait $agent
  code=$?
done
remove
exit $code
