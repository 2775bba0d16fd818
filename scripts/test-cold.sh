#!/usr/bin/env bash
# make test on a machine that has nothing: in a fresh Debian root, from a fresh clone, with empty caches; an hour.
#
#   scripts/test-cold.sh [FOLDER]     by default a new one in /var/tmp, which stays
#
# What the machine says of its network (certificates, package sources, pip, Go) holds in there too; its Go is lent.
# The cluster in there is apart from the machine's own.  The folder's root/.cache/hpk is what was built.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$(mktemp -d /var/tmp/hpk-cold.XXXXXX)}
[ -z "$(ls -A "$root" 2>/dev/null)" ] || { echo "test-cold: $root is not empty" >&2; exit 2; }
packages=ca-certificates,curl,gcc,git,iproute2,libc6-dev,make,mount,procps,python3,python3-venv,util-linux
go=$(go env GOROOT)

# shellcheck source=scripts/progress.sh
. "$tree/scripts/progress.sh"
need_packages mmdebstrap
"$tree/scripts/debian-sources.py" bookworm >"$root.list"
mmdebstrap --quiet --variant=apt --include="$packages" bookworm "$root" - <"$root.list"
rm "$root.list"
rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
for file in /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/apt/apt.conf.d \
  /etc/apt/sources.list.d "$HOME/.config/pip" "$HOME/.config/go"; do
  [ ! -e "$file" ] || { mkdir -p "$root/${file%/*}" && cp -a -T "$file" "$root/$file"; }
done
mkdir -p "$root/srv" "$root$go" "$root/old"
git clone --quiet "$tree" "$root/srv/main"
[ ! -d "$tree/../shared" ] || cp -a "$tree/../shared" "$root/srv/shared"

inside='
set -e
root=$1 go=$2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$go" "$root$go"
cd "$root"
pivot_root . old
umount -l /old
cd /srv/main
exec env -i HOME=/root SITE_APART=cold PATH="$go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
  bash -c "time .ci/run"'
unshare --mount --pid --fork --kill-child --propagation private bash -c "$inside" cold "$root" "$go"
