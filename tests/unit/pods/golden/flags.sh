#!/bin/bash
#SBATCH --job-name="my \"job\""
#SBATCH --comment="a b"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --account=physics
#SBATCH --partition=gpu
#SBATCH --time=1
#SBATCH --hold
#SBATCH --signal=B:50@20
#SBATCH --chdir=/home/alice/.hpk/pods/0b4e
#SBATCH --output=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --error=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --no-requeue
#SBATCH --open-mode=append
# A pod of Kubernetes, run by HPK.  Everything about it is in spec.json in this job's working directory.
# The warning of a short time limit may come while this runs: it is sent anew until it can be handed on.
trap '({ sleep 1; kill -50 $$ 2>/dev/null; } &)' 50
module load apptainer
echo "stages script=$EPOCHREALTIME"
# The address that this host speaks from.
HPK_HOST_IP=$(ip -4 -o route get 192.0.2.1 2>/dev/null) HPK_HOST_IP=${HPK_HOST_IP##* src } HPK_HOST_IP=${HPK_HOST_IP%% *}
HPK_SCRATCH="${TMPDIR:-/tmp}/hpk-0b4e"
umask 077
# Whoever sends a signal means the pod (scancel(1), --batch): none must end this shell.  The agent is told of some, and
# decides when the pod is over.  The others are ignored: of several that come at once bash's `wait` loses some.
agent= ending=
# A signal before the agent's claim would end Apptainer, or be lost: this shell gets it anew each second until then.
pass() {
  if [ -e claim ]; then
    kill -"$1" $agent 2>/dev/null
  else
    [ ! "$ending" ] || kill $agent 2>/dev/null
    ({ sleep 1; kill -"$1" $$ 2>/dev/null; } &) # in a shell of its own, so that $! stays what it was
  fi
}
trap '' HUP QUIT ABRT ALRM USR1 USR2 STKFLT VTALRM PROF XCPU IO PWR {34..64}
trap 'ending=yes; pass TERM' TERM INT
trap 'pass 50' 50
trap 'pass 51' 51
# A directory that others could have made beforehand would be theirs: the last letters are for nobody to guess.  Scratch
# may be shared by nodes, so the name tells whose process $$ is.
[ -d "${HPK_SCRATCH%/*}" ] || mkdir -p "${HPK_SCRATCH%/*}" || exit 1
HPK_SCRATCH=$(mktemp -d "$HPK_SCRATCH.$SLURMD_NODENAME.$$.XXXXXX") || exit 1
exec {lock}<"$HPK_SCRATCH"
# Files of subordinate ids can be removed only by the same ids; the agent does it unless it was killed.
remove() {
  rmdir "$HPK_SCRATCH" 2>/dev/null || { apptainer exec --fakeroot /home/alice/.hpk/hpk.sif rm -rf "$HPK_SCRATCH"; rm -rf "$HPK_SCRATCH"; } 2>/dev/null
}
# What jobs of this node that were killed outright have left: their shells are gone, and nobody holds the lock.
sweep() {
  local owner name
  for HPK_SCRATCH in "${HPK_SCRATCH%/*}"/hpk-*."$SLURMD_NODENAME".*.??????; do
    owner=${HPK_SCRATCH%.*} owner=${owner##*.} name=${HPK_SCRATCH##*/}
    [ "${name#*.}" = "$SLURMD_NODENAME.$owner.${name##*.}" ] || continue # else of a node such as rack1.this
    [ -O "$HPK_SCRATCH" ] && ! kill -0 "$owner" 2>/dev/null && flock -xn "$HPK_SCRATCH" true 2>/dev/null && remove
  done
}
# Apptainer gives up (255) where a busy node does not make its network in time; the agent's first act is the claim.
tries=8
for ((attempt = 1; attempt <= tries; attempt++)); do
  # Python is copied beside hpk.sif, where this node keeps it from pod to pod; a copy is as old as the hpk.sif it is of.
  stamp=/home/alice/.hpk/warm/17/cygrpc.so image=/home/alice/.hpk/hpk.sif warm=()
  [ "$stamp" -nt "$image" ] || [ "$stamp" -ot "$image" ] || warm=(--mount type=bind,source=/home/alice/.hpk/warm/17/python3.13,destination=/usr/bin/python3.13,ro)
  apptainer exec --bind "$HPK_SCRATCH:/run/hpk/scratch" "${warm[@]}" /home/alice/.hpk/hpk.sif agent </dev/null &
  agent=$!
  if [ $attempt = 1 ]; then
    # Held by this shell and by what it has started, as long as any of it lives: others then leave the directory alone.
    flock -sn $lock 2>/dev/null
    sweep </dev/null >/dev/null 2>&1 &
  fi
  # A trapped signal ends `wait` early.
  while kill -0 $agent 2>/dev/null; do
    wait $agent
  done
  wait $agent # bash remembers how it ended, whatever ended the last `wait`
  code=$?
  [ $code != -1 ] || code=255 # but sometimes forgets it, if a signal came in that moment
  if [ $code != 255 ] || [ -e claim ] || [ "$ending" ] || [ $attempt = $tries ]; then break; fi
  agent=
  # What made it busy may be other pods that try: each waits for a time of its own, up to 2, 4, 8, 16, then 32 s.
  pause=$((RANDOM % (1 << (attempt < 5 ? attempt : 5)) + 1))
  echo "The sandbox could not be made (try $attempt of $tries); trying again in $pause s"
  sleep $pause &
  sleeper=$!
  while [ ! "$ending" ] && kill -0 $sleeper 2>/dev/null; do
    wait $sleeper
  done
  kill $sleeper 2>/dev/null
  [ ! "$ending" ] || break
done
trap : TERM INT
remove
exit $code
