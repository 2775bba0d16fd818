#!/bin/bash
#SBATCH --job-name=lab/demo
#SBATCH --comment=0b4e
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=1120M
#SBATCH --gres=gpu:2
#SBATCH --signal=B:50@45
#SBATCH --chdir=/home/alice/.hpk/pods/0b4e
#SBATCH --output=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --error=/home/alice/.hpk/pods/0b4e/job.out
#SBATCH --no-requeue
#SBATCH --open-mode=append
# A Kubernetes pod, run by HPK. spec.json in this job's working directory describes it.
echo "stages script=$EPOCHREALTIME"
# The address from which this host sends.
HPK_HOST_IP=$(ip -4 -o route get 192.0.2.1 2>/dev/null) HPK_HOST_IP=${HPK_HOST_IP##* src } HPK_HOST_IP=${HPK_HOST_IP%% *}
HPK_SCRATCH="${TMPDIR:-/tmp}/hpk-0b4e"
umask 077
# Signals are meant for the pod (scancel(1), --batch); none may end this shell. The agent gets some, and decides when
# the pod is over. The others are ignored, because bash's `wait` loses some of several that come at once.
agent= ending=
# Before the agent's claim a signal would end Apptainer, or be lost: resend it to this shell each second until then.
pass() {
  if [ -e claim ]; then
    kill -"$1" $agent 2>/dev/null
  else
    [ ! "$ending" ] || kill $agent 2>/dev/null
    ({ sleep 1; kill -"$1" $$ 2>/dev/null; } &) # in a subshell, to keep $!
  fi
}
trap '' HUP QUIT ABRT ALRM USR1 USR2 STKFLT VTALRM PROF XCPU IO PWR {34..64}
trap 'ending=yes; pass TERM' TERM INT
trap 'pass 50' 50
trap 'pass 51' 51
# The name ends in random letters, because others could own a directory that they made under a name they guessed. Nodes
# may share scratch, so it also names the node of process $$.
[ -d "${HPK_SCRATCH%/*}" ] || mkdir -p "${HPK_SCRATCH%/*}" || exit 1
HPK_SCRATCH=$(mktemp -d "$HPK_SCRATCH.$SLURMD_NODENAME.$$.XXXXXX") || exit 1
exec {lock}<"$HPK_SCRATCH"
# Only subordinate ids can remove their own files; the agent does so unless it was killed.
remove() {
  rmdir "$HPK_SCRATCH" 2>/dev/null || { apptainer exec --fakeroot /home/alice/.hpk/hpk.sif rm -rf "$HPK_SCRATCH"; rm -rf "$HPK_SCRATCH"; } 2>/dev/null
}
# Remove what killed jobs left on this node: their shells are gone, and nobody holds the lock.
sweep() {
  local owner name
  for HPK_SCRATCH in "${HPK_SCRATCH%/*}"/hpk-*."$SLURMD_NODENAME".*.??????; do
    owner=${HPK_SCRATCH%.*} owner=${owner##*.} name=${HPK_SCRATCH##*/}
    [ "${name#*.}" = "$SLURMD_NODENAME.$owner.${name##*.}" ] || continue # another node's, such as rack1.this
    [ -O "$HPK_SCRATCH" ] && ! kill -0 "$owner" 2>/dev/null && flock -xn "$HPK_SCRATCH" true 2>/dev/null && remove
  done
}
# Apptainer fails (255) if a busy node does not make its network in time. The agent's first act is the claim.
tries=8
for ((attempt = 1; attempt <= tries; attempt++)); do
  # Copies of Python beside hpk.sif stay in this node's cache between pods; a copy has the mtime of its hpk.sif.
  stamp=/home/alice/.hpk/warm/17/cygrpc.so image=/home/alice/.hpk/hpk.sif warm=()
  [ "$stamp" -nt "$image" ] || [ "$stamp" -ot "$image" ] || warm=(--mount type=bind,source=/home/alice/.hpk/warm/17/python3.13,destination=/usr/bin/python3.13,ro)
  apptainer exec --bind "$HPK_SCRATCH:/run/hpk/scratch" "${warm[@]}" /home/alice/.hpk/hpk.sif agent </dev/null &
  agent=$!
  if [ $attempt = 1 ]; then
    # This shell and its children hold the lock, so that other jobs leave the directory alone while any of them lives.
    flock -sn $lock 2>/dev/null
    sweep </dev/null >/dev/null 2>&1 &
  fi
  # A trapped signal ends `wait` early.
  while kill -0 $agent 2>/dev/null; do
    wait $agent
  done
  wait $agent # bash remembers its exit code, whatever ended the last `wait`
  code=$?
  [ $code != -1 ] || code=255 # but may forget it if a signal comes at that moment
  if [ $code != 255 ] || [ -e claim ] || [ "$ending" ] || [ $attempt = $tries ]; then break; fi
  agent=
  # Other pods may keep it busy with their own tries: wait a random time, up to 2, 4, 8, 16, then 32 s.
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
