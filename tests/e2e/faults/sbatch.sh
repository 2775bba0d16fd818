#!/bin/sh
# An sbatch in trouble, for the tests: it stands before the real one on the PATH of the gateway.  What goes wrong is
# said by the job's name, once for each pod; all other jobs are submitted as ever.
for word; do
  case $word in --chdir=*/pods/*) pod=${word##*/} ;; esac
done
[ -n "$pod" ] || exec /usr/bin/sbatch "$@"
script=$(mktemp) mark=/tmp/sbatch-fault-$pod
cat >"$script"
how=$(sed -n 's/^#SBATCH --job-name=fault-//p' "$script")
[ -n "$how" ] && [ ! -e "$mark" ] || exec /usr/bin/sbatch "$@" <"$script"
echo "$how" >"$mark"
case $how in
hangs) exec sleep 600 ;;
late) # it submits, and its answer never comes
  /usr/bin/sbatch "$@" <"$script" >/dev/null
  exec sleep 600
  ;;
mumbles) # it submits, and nobody can read its answer
  /usr/bin/sbatch "$@" <"$script" >/dev/null
  echo 'slurm_load: @#!'
  ;;
lies) echo 'all is well' ;; # it does not submit, and says that it did
busy)
  echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
  exit 1
  ;;
esac
