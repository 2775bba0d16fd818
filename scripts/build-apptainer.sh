#!/usr/bin/env bash
# Build a setuid Apptainer with its CNI plugins, as a site's administrator would install it.
#
#   scripts/build-apptainer.sh OUT      copies the finished tree (usr/, etc/, var/) into OUT; OUT may be /
#   scripts/build-apptainer.sh --path   only prints where the cached tree is, building it if need be
#   scripts/build-apptainer.sh --where  the same without building: it may not be there yet
#
# Debian packages Apptainer without setuid and without networks, and only in sid.  So this takes
# upstream's tarball out of Debian's source package (from wherever this machine gets Debian) and
# configures it anew: prefix /usr, sysconfdir /etc, setuid, no libsubid.  5 to 7 minutes on two
# cores, once: the tree is cached under $HPK_CACHE/apptainer/ by version and build options.
# Must run as root (the setuid starter belongs to root).
set -euo pipefail

wanted=1.4.5 # sid may have moved on: then its version is built instead, with a warning
configure=(--prefix=/usr --sysconfdir=/etc --localstatedir=/var/lib --with-suid --without-libsubid)

target=${1:?usage: scripts/build-apptainer.sh OUT | --path | --where}
here=$(cd "$(dirname "$0")" && pwd)
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}/apptainer
key=$(echo "$wanted ${configure[*]} $(go env GOVERSION GOARCH)" | sha256sum | cut -c1-12)
tree=$cache/$wanted-$key

if [ "$target" = --where ]; then
  echo "$tree"
  exit
fi

say() { echo "build-apptainer: $*" >&2; }

need_packages() {
  local missing=() package
  for package in gcc make pkg-config libseccomp-dev ca-certificates python3-minimal; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "${missing[@]}"; } >&2
}

# Fetch the source package with an apt of its own: the machine's lists and sources stay as they are.
fetch() { # work
  local work=$1 apt=("-oDir::Etc::sourcelist=$1/sources.list" "-oDir::Etc::sourceparts=-"
    "-oDir::State::lists=$1/lists" "-oDir::Cache=$1/cache" "-oAPT::Sandbox::User=root")
  mkdir -p "$work"/{lists,cache,source}
  "$here/debian-sources.py" sid --source >"$work/sources.list"
  apt-get -q "${apt[@]}" update >&2
  local version
  version=$(apt-cache "${apt[@]}" madison apptainer | awk -F'|' '{gsub(/ /, "", $2); print $2}' |
    sort -V | { grep "^$wanted" || true; } | tail -1)
  if [ -z "$version" ]; then
    version=$(apt-cache "${apt[@]}" madison apptainer | awk -F'|' '{gsub(/ /, "", $2); print $2}' | sort -V | tail -1)
    say "Debian no longer has $wanted; building ${version:?no apptainer source package to be had}"
  fi
  (cd "$work/source" && apt-get -q "${apt[@]}" source --download-only "apptainer=$version" >&2)
  mkdir "$work/upstream"
  tar -xf "$work"/source/apptainer_*.orig.tar.* -C "$work/upstream" --strip-components=1
  echo "${version%-*}" | sed 's/+.*//' >"$work/version"
}

build() {
  rm -rf "$cache/build" # an interrupted build's
  work=$cache/build
  trap 'chmod -R u+w "$cache/build"; rm -rf "$cache/build"' EXIT # Go's module folders are read-only
  fetch "$work"
  say "building $(cat "$work/version") (5 to 7 minutes on two cores)"
  (
    cd "$work/upstream"
    [ -e VERSION ] || cp "$work/version" VERSION
    # Its makefile runs 'go clean -cache', which would wipe a cache shared with others.
    export GOCACHE=$work/gocache GOFLAGS=-buildvcs=false
    ./mconfig "${configure[@]}"
    nice make -C builddir -j2
    make -C builddir install DESTDIR="$work/tree"
  ) >"$cache/build.log" 2>&1 || { tail -30 "$cache/build.log" >&2; say "cannot build; the whole log is $cache/build.log"; exit 1; }
  test -u "$work/tree/usr/libexec/apptainer/bin/starter-suid" # else there is no setuid, and no network
  mv "$work/tree" "$tree"
}

if [ ! -d "$tree" ]; then
  [ "$(id -u)" = 0 ] || { say "must run as root"; exit 1; }
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9 # two at once would only slow each other; the second finds the first one's tree
  if [ ! -d "$tree" ]; then
    need_packages
    build
  fi
  flock -u 9
  exec 9>&-
fi
if [ "$target" = --path ]; then
  echo "$tree"
else
  mkdir -p "$target"
  cp -a "$tree/." "$target/"
fi
