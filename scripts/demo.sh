#!/usr/bin/env bash
# From nothing to Kubernetes pods as Slurm jobs, on a Slurm cluster that is simulated on this machine.
#
# The first run builds everything (about 45 minutes on two cores, most of it upstream's Go); later ones reuse
# it and are done within a minute.  HPK_VERBOSE=1 shows what each stage prints.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1
. scripts/progress.sh
progress_all=8

as_alice() { tests/site/site run --user alice ctl -- "$@"; }
cluster() { python3 -c "from tests import cluster; $1"; }
title() { printf '\n--- %s\n' "$*"; }
typed() { printf '[alice@ctl ~]$ %s\n' "$*"; }

# An estimate: the first if the named thing is there already, else the second.
either() { if compgen -G "$1" >/dev/null; then echo "$2"; else echo "$3"; fi; }
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}

# ---- what a user does, told as commands on the login node -------------------------------------------------------

install_hpk() { # as `apptainer run hpk.sif install`, unless this very image is installed
  cluster '
digest = cluster.fingerprint()
if cluster.shell("cat ~/.hpk/installed 2>/dev/null; true").strip() != digest:
    if cluster.run("test", "-x", cluster.HPK, code=None).returncode == 0:
        cluster.run(cluster.HPK, "down", code=None, seconds=180)
    cluster.install(digest)
'
}

is_ready() { as_alice kubectl --request-timeout=3s get node hpk </dev/null 2>/dev/null | grep -qw Ready; }

submit() {
  if is_ready; then echo "runs already"; return; fi
  as_alice sbatch hpk.sbatch
}

wait_ready() {
  local until=$((SECONDS + 120))
  until is_ready; do
    [ "$SECONDS" -lt "$until" ] || {
      echo "the node is not Ready after two minutes"
      as_alice sh -c 'squeue; tail -n 20 hpk-*.log'
      return 1
    }
    sleep 0.2
  done
}

# The cluster's hosts do not see this checkout, and reach no registry but their own, while the examples say "busybox:1".
give_examples() {
  local file
  for file in examples/*.yaml; do
    {
      echo "# A copy of HPK's $file.  Its images are of this cluster's registry, ctl:5000."
      sed 's|image: |&ctl:5000/|' "$file"
    } | as_alice sh -c "mkdir -p examples; cat >$file"
  done
}

run_examples() {
  give_examples
  run_example hello pod/hello jsonpath={.status.phase}=Succeeded
  run_example parallel-job job/parallel condition=Complete
}

run_example() { # name object condition
  as_alice kubectl delete --ignore-not-found -f "examples/$1.yaml" </dev/null >/dev/null
  as_alice kubectl apply -f "examples/$1.yaml" </dev/null | tee "$progress_logs/applied-$1"
  as_alice kubectl wait "$2" "--for=$3" --timeout=180s </dev/null || {
    as_alice kubectl describe "$2" </dev/null
    return 1
  }
}

# Each pod with its Slurm job, as Slurm tells it.
pods_and_jobs() { # label selector or pod name
  local pod uid job
  printf '\n'
  printf '%-18s %-10s %-8s %-6s %s\n' POD PHASE "SLURM JOB" NODE STATE
  as_alice kubectl get pods "$@" --no-headers \
    -o custom-columns=N:.metadata.name,P:.status.phase,U:.metadata.uid </dev/null >"$progress_logs/pods"
  as_alice scontrol -o show job </dev/null >"$progress_logs/jobs"
  while read -r pod phase uid; do
    job=$(grep -F "$uid" "$progress_logs/jobs" | head -n 1)
    printf '%-18s %-10s %-9s %-6s %s\n' "$pod" "$phase" "$(field JobId "$job")" "$(field NodeList "$job")" \
      "$(field JobState "$job")"
  done <"$progress_logs/pods"
  printf '\n'
}

field() { grep -oE "(^| )$1=[^ ]*" <<<"$2" | cut -d= -f2; }

# ---- the whole ------------------------------------------------------------------------------------------------------

[ "$(id -u)" = 0 ] || { echo "demo: must run as root: the simulated cluster makes namespaces and mounts" >&2; exit 1; }
stage 30 "Packages of this machine" need_packages git make gcc pkg-config python3-venv mmdebstrap squashfs-tools \
  iproute2 nftables uidmap debian-archive-keyring
stage "$(either "$cache/go/kube-apiserver-*" 2 1560)" "Upstream's binaries" \
  controlplane/build.sh "$cache/image/binaries/opt/hpk/bin" etcd kube-apiserver kube-controller-manager kubectl coredns
stage "$(either "$cache/image/hpk-*.sif" 15 150)" "The image, build/hpk.sif" scripts/build-image.sh
stage "$(either "$cache/site/rootfs*" 15 780)" "The simulated Slurm cluster: ctl, c1, c2" tests/site/site up
stage 10 "alice installs HPK: apptainer run hpk.sif install" install_hpk
stage 1 "alice submits it: sbatch hpk.sbatch" submit
stage 10 "Kubernetes comes up: waiting for the node" wait_ready
stage 15 "Two examples: kubectl apply" run_examples

title "The whole Slurm cluster is one node"
typed kubectl get nodes -o wide
as_alice kubectl get nodes -o wide </dev/null
title "Two containers in one Slurm job"
typed kubectl apply -f examples/hello.yaml
cat "$progress_logs/applied-hello"
pods_and_jobs hello
typed kubectl logs hello --all-containers --prefix
as_alice kubectl logs hello --all-containers --prefix </dev/null
title "Ten pods, ten Slurm jobs, both compute nodes"
typed kubectl apply -f examples/parallel-job.yaml
cat "$progress_logs/applied-parallel-job"
pods_and_jobs -l job-name=parallel
typed kubectl logs -l job-name=parallel --prefix --max-log-requests=10
as_alice kubectl logs -l job-name=parallel --prefix --max-log-requests=10 </dev/null
title "What runs now"
typed squeue
as_alice squeue </dev/null
cat <<'TEXT'

alice's ~/examples are copies of those here, with ctl:5000/busybox:1 for busybox:1: this cluster reaches no other registry.

--- Go on by hand
  tests/site/site run --user alice ctl -- bash -l    a shell on the login node, as the user; there:
    kubectl get pods -A; squeue; sinfo                 Kubernetes' view and Slurm's
    kubectl run -it --rm sh --image=ctl:5000/busybox:1 -- sh
    kubectl create deployment web --image=ctl:5000/python:3 -- python3 -um http.server 8080
    kubectl logs deploy/web; kubectl exec -it deploy/web -- sh
    kubectl apply -f examples/hello.yaml               ctl:5000 has busybox:1, python:3 and agnhost:2
    hpk status; hpk down; hpk up
  tests/site/site down                               stop the simulated cluster
  make cases; make bench; make test                  what else there is
TEXT
