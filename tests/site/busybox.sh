#!/usr/bin/env bash
# busybox.sh OUT: build busybox as its authors release it, with their default settings and static (2 minutes).
#
# Kubernetes' tests rely on a shell that passes on variables whose names are no identifiers; Debian's patched one
# drops them. The source is upstream's tarball out of Debian's source package, from wherever this machine gets Debian.
set -euo pipefail
out=${1:?usage: busybox.sh OUT}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{lists,cache,source}
"$here/../../scripts/debian-sources.py" trixie --source >"$work/sources.list"
apt=("-oDir::Etc::sourcelist=$work/sources.list" "-oDir::Etc::sourceparts=-" "-oDir::State::lists=$work/lists"
  "-oDir::Cache=$work/cache" "-oAPT::Sandbox::User=root")
apt-get -q "${apt[@]}" update
cd "$work/source"
apt-get -q "${apt[@]}" source --download-only busybox
tar -xf busybox_*.orig.tar.* --strip-components=1
make -s defconfig
# Newer kernel headers no longer have what the applet tc needs.
sed -i 's/^# CONFIG_STATIC is not set/CONFIG_STATIC=y/; s/^CONFIG_TC=y/# CONFIG_TC is not set/' .config
make -s oldconfig </dev/null
make -s -j"$(nproc)" busybox
[ "$(env -i 1-odd=x ./busybox sh -c './busybox env' | grep odd)" = 1-odd=x ]
install -D busybox "$out"
