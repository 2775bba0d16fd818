#!/usr/bin/env bash
# Build hpk.sif, as apptainer/hpk.def says, and print where it is.
#
#   scripts/build-image.sh            build/hpk.sif, with its list of contents in build/hpk.sif.txt
#   scripts/build-image.sh --fresh    the same, with the Debian packages of today
#   scripts/build-image.sh --stage    only build/image/, for `apptainer build build/hpk.sif apptainer/hpk.def`
#
# Needs root, Go, Python and Debian's package mirrors; no container registry and no Apptainer: the one
# inside the image builds it.  Each layer is cached under $HPK_CACHE/image (Debian packages by their list,
# Python dependencies by requirements.txt, binaries by their modules, the image by all its content), so
# that a change of hpk/ alone costs some 12 s.
#
# To try changes without building at all, bind the tree over the image's copy:
#
#   APPTAINER_BIND=$PWD/hpk:/opt/hpk/lib/hpk apptainer exec build/hpk.sif hpk …
#
# and let pods' jobs do the same with HPK_PRELUDE='export APPTAINER_BIND=…' (docs/development.md).
set -euo pipefail
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}/image
components=(etcd kube-apiserver kube-controller-manager kubectl coredns)
tools=(mmdebstrap python3-venv debian-archive-keyring) # of the build machine
python=3.13

# Squashfs: zstd is read as fast as lz4 within what can be measured, in two thirds of its size; level 3 packs
# 8 times faster than gzip into the same size.
squash=(-comp zstd -Xcompression-level 3 -all-root -no-progress -action-file /mnt/uncompressed.txt)

# ---- layers: each function fills a directory that did not exist -------------------------------------------

debian_layer() { # directory
  local work
  work=$(mktemp -d)
  sh "$root/apptainer/debian.sh" preferences >"$work/preferences"
  { "$root/scripts/debian-sources.py" trixie; "$root/scripts/debian-sources.py" sid; } >"$work/sources.list"
  { apt-config dump | grep -E '^Acquire::(Check-|https?::|Retries)' || true; } >"$work/apt.conf" # this machine's way out
  echo 'APT::Install-Recommends "false";' >>"$work/apt.conf"
  mmdebstrap --mode=root --variant=essential --include="$(sh "$root/apptainer/debian.sh" names | tr ' ' ,)" \
    --aptopt="$work/apt.conf" --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\" && cp '$work/preferences' \"\$1/etc/apt/preferences.d/hpk\"" \
    trixie "$1" "$work/sources.list"
  mkdir -p "$1/opt/hpk/build"
  cp "$root/apptainer/debian.sh" "$root/apptainer/packages.txt" "$1/opt/hpk/build/"
  chroot "$1" sh /opt/hpk/build/debian.sh prune
  rm -rf "$1/opt/hpk/build" "${1:?}"/dev/* "$work"
}

python_layer() { # directory
  local venv platform
  venv=$("$root/scripts/venv.sh")
  local pip=("$venv/bin/pip" install --no-deps --require-hashes --no-compile --upgrade
    --disable-pip-version-check --root-user-action=ignore --target "$1/opt/hpk/lib")
  local elsewhere=(--only-binary=:all: --python-version "$python" --implementation cp --abi "cp${python/./}" --abi abi3 --abi none)
  for platform in 2_17 2_28 2_34; do elsewhere+=(--platform "manylinux_${platform}_$(uname -m)"); done
  elsewhere+=(--platform "manylinux2014_$(uname -m)")
  # pip installs for another Python only if every package has a wheel.
  "${pip[@]}" "${elsewhere[@]}" -r "$root/requirements.txt"
  rm -rf "$1"/opt/hpk/lib/{bin,share}
  find "$1/opt/hpk/lib" -type d -name tests -prune -exec rm -rf {} +
}

program_layer() { # directory
  local file
  mkdir -p "$1"/opt/hpk/{bin,lib,share}
  (cd "$root" && find hpk -type f ! -name '*.pyc' -print0 | tar -c --null -T - --owner=0 --group=0) | tar -x -C "$1/opt/hpk/lib"
  install -m 755 "$root/apptainer/hpk" "$1/opt/hpk/bin/hpk"
  for file in scripts/hpk scripts/hpk.sbatch; do # what `hpk install` writes into a home
    [ ! -e "$root/$file" ] || install -m 755 "$root/$file" "$1/opt/hpk/share/"
  done
}

# ---- work inside the Debian layer, in a mount namespace of its own that leaves nothing behind -----------------

in_namespace() { unshare --mount --propagation private bash "$root/scripts/build-image.sh" --in-namespace "$@"; }

# A throw-away copy of the Debian layer at $new, with /proc and /dev.
mount_debian() { # base
  new=$cache/root # the same each time: it is still there when the namespace is gone
  mkdir -p "$new"
  mount -t tmpfs -o mode=755 tmpfs "$new"
  mkdir "$new"/{upper,work,root}
  mount -t overlay -o "lowerdir=$1,upperdir=$new/upper,workdir=$new/work" overlay "$new/root"
  new=$new/root
  mount -t proc proc "$new/proc"
  mount --rbind /dev "$new/dev"
}

compile_in_namespace() { # base directory-with-opt/hpk/lib
  mount_debian "$1"
  mount --bind "$2/opt/hpk/lib" "$new/opt/hpk/lib"
  chroot "$new" python$python -B -m compileall -f -q -j 2 --invalidation-mode unchecked-hash /opt/hpk/lib
}

# Into the program's part: one file with all modules of a pod's start (hpk/agent/modules.py), one with the programs
# that run on hosts.
pack_in_namespace() { # base dependencies program empty-directory
  mount_debian "$1"
  mount -t overlay -o "lowerdir=$2/opt/hpk/lib,upperdir=$3/opt/hpk/lib,workdir=$4" overlay "$new/opt/hpk/lib"
  chroot "$new" python$python -B -I -S /opt/hpk/lib/hpk/agent/pack.py
  chroot "$new" python$python -B -I -S /opt/hpk/lib/hpk/host/pack.py /opt/hpk/lib/host.pyz
}

# Apptainer, being real root in a strange root file system, must see that as the root of all mounts: pivot_root.
sif_in_namespace() { # base lower-directories output
  mount_debian "$1"
  mkdir -p "$new"/mnt/{tree,out,old}
  mount -t overlay -o "lowerdir=$2" overlay "$new/mnt/tree"
  mount --bind "$(dirname "$3")" "$new/mnt/out"
  # What %files and %post would do is in the tree already.
  awk '/^%/ { skip = $1 == "%files" || $1 == "%post" } !skip' "$root/apptainer/hpk.def" >"$new/mnt/hpk.def"
  cp "$root/apptainer/uncompressed.txt" "$new/mnt/"
  cd "$new"
  pivot_root . mnt/old
  cd /
  exec env -i PATH=/usr/sbin:/usr/bin HOME=/root APPTAINER_TMPDIR=/mnt/out apptainer build --force \
    --build-arg bootstrap=localimage --build-arg from=/mnt/tree \
    --mksquashfs-args "${squash[*]}" "/mnt/out/$(basename "$3")" /mnt/hpk.def
}

# ---- the whole -------------------------------------------------------------------------------------------------

key_of() { sha256sum | cut -c1-16; }

# cached SECONDS WHAT DIRECTORY FUNCTION ARGUMENTS...: runs FUNCTION on DIRECTORY.new unless DIRECTORY is there.
cached() {
  local seconds=$1 what=$2 directory=$3
  shift 3
  if [ -d "$directory" ]; then
    stage 0 "$what: from the cache" true
    return
  fi
  rm -rf "$directory.new"
  stage "$seconds" "$what" make_layer "$directory" "$@"
}

make_layer() { # directory function arguments...
  local directory=$1
  shift
  "$1" "$directory.new" "${@:2}"
  mv "$directory.new" "$directory"
}

python_layer_compiled() { # directory base
  python_layer "$1"
  in_namespace compile_in_namespace "$2" "$1"
}

keep_newest() { # how-many files...
  local many=$1
  shift
  # shellcheck disable=SC2012  # our own names, without spaces
  ls -td -- "$@" 2>/dev/null | tail -n "+$((many + 1))" | xargs -r rm -rf --
}

contents_list() { # base deps image
  echo "# Contents of hpk.sif, $(du -m --apparent-size "$3" | cut -f1) MiB"
  echo "# Debian packages"
  cat "$1/opt/hpk/debian.txt"
  echo "# Python packages"
  find "$2/opt/hpk/lib" -maxdepth 1 -name '*.dist-info' -printf '%f\n' | sed 's/\.dist-info$//; s/-/ /' | sort
  echo "# Upstream binaries"
  local name
  for name in "${components[@]}"; do
    echo "$name $(binary_version "$binaries/opt/hpk/bin/$name")"
  done
}

binary_version() { # file
  case $1 in
    */etcd | */kube*) "$1" --version 2>/dev/null || "$1" version --client ;;
    *) "$1" --version ;;
  esac 2>&1 | grep -oE 'v?[0-9]+\.[0-9]+\.[0-9]+' | head -1
}

main() {
  # shellcheck source=scripts/progress.sh
  . "$root/scripts/progress.sh"
  progress_all=5
  mkdir -p "$cache" "$root/build"
  exec 9>"$cache/lock"
  flock -n 9 || { echo "build-image: waiting for another build" >&2; flock 9; }

  local base deps binaries image
  stage 5 "Tools of the build machine" need_packages "${tools[@]}"
  base=$cache/debian-$(cat "$root"/apptainer/{debian.sh,packages.txt} | key_of)
  [ "${1:-}" != --fresh ] || rm -rf "$base"
  cached 90 "Debian packages" "$base" debian_layer
  deps=$cache/python-$(cat "$root/requirements.txt" <(basename "$base") | key_of)
  cached 45 "Python dependencies" "$deps" python_layer_compiled "$base"
  binaries=$cache/binaries
  stage "$(binaries_estimate)" "Upstream binaries" "$root/controlplane/build.sh" "$binaries/opt/hpk/bin" "${components[@]}"

  if [ "${1:-}" = --stage ]; then
    rm -rf "$root/build/image"
    mkdir -p "$root/build/image"
    program_layer "$root/build/image"
    cp -r "$deps/." "$binaries/." "$root/build/image/"
    echo "$root/build/image"
    return
  fi

  image=$cache/hpk-$({
    basename -a "$base" "$deps"
    cat "$base/opt/hpk/debian.txt" # --fresh makes the same directory of other packages
    cat "$root"/controlplane/*/go.{mod,sum} "$root"/controlplane/build.sh "$root"/scripts/{build-image.sh,hpk,hpk.sbatch} 2>/dev/null
    go env GOVERSION GOARCH # as controlplane/build.sh has them in the binaries' own keys
    cd "$root" && find hpk apptainer -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum
  } | key_of).sif
  if [ -e "$image" ]; then
    stage 0 "Image: from the cache" true
  else
    stage 20 "Image" build_sif "$base" "$deps" "$binaries" "$image"
  fi
  touch "$image" "$image.txt"
  keep_newest 3 "$cache"/hpk-*.sif
  keep_newest 3 "$cache"/hpk-*.sif.txt
  ln -f "$image" "$root/build/hpk.sif" 2>/dev/null || cp -f "$image" "$root/build/hpk.sif"
  cp -f "$image.txt" "$root/build/hpk.sif.txt"
  echo "build-image: $(du -m --apparent-size "$image" | cut -f1) MiB, contents in build/hpk.sif.txt" >&2
  echo "$root/build/hpk.sif"
}

build_sif() { # base deps binaries image
  local work=$cache/work.$$
  rm -rf "$cache"/work.*
  mkdir -p "$work/program"
  program_layer "$work/program"
  in_namespace compile_in_namespace "$1" "$work/program"
  mkdir "$work/overlay"
  in_namespace pack_in_namespace "$1" "$2" "$work/program" "$work/overlay"
  in_namespace sif_in_namespace "$1" "$work/program:$3:$2:$1" "$work/hpk.sif"
  contents_list "$1" "$2" "$work/hpk.sif" >"$4.txt" # first: a build that ends between the two is begun anew
  mv "$work/hpk.sif" "$4"
  rm -rf "$work"
}

binaries_estimate() { # seconds
  local name lacking=0
  for name in "${components[@]}"; do
    compgen -G "$cache/../go/$name-*" >/dev/null || lacking=$((lacking + 1))
  done
  echo $((lacking * 280))
}

if [ "${1:-}" = --in-namespace ]; then
  "${@:2}"
else
  main "$@"
fi
