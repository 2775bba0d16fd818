#!/usr/bin/env bash
# Build upstream's binaries from the pinned modules beside this file.  Nothing here is Go of our own but one file
# that Argo's module lacks, in argo/source.
#
#   controlplane/build.sh OUT [NAME ...]      names as in the table below; all of them if none is given
#
# OUT receives one static binary a name.  Each is cached under $HPK_CACHE/go/ by the checksum of its
# folder and build line, so that only the first build of a version costs time (about 32 minutes for
# all on two cores); later ones are links.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${HPK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpk}/go
kubernetes=1.37.2
version=k8s.io/component-base/version
kube_flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=37 -X $version.gitTreeState=clean"

argo_flags="-s -w -X github.com/argoproj/argo-workflows/v4.version=v4.0.5"

# name | folder of its go.mod | package | CGO_ENABLED | linker flags | minutes on two cores
# A package that begins with test: is of tests, and becomes their program.  One that begins with ./ is one of the
# folder's only module, built in a copy of that module to which the files of the folder's source/ are added; the
# module's own go.sum pins the rest.
table="
etcd                    | etcd       | go.etcd.io/etcd/server/v3                         | 0 | -s -w       | 1.5
flanneld                | flannel    | github.com/flannel-io/flannel                     | 1 | -s -w       | 2.5
kube-apiserver          | kubernetes | k8s.io/kubernetes/cmd/kube-apiserver              | 0 | $kube_flags | 10
kube-controller-manager | kubernetes | k8s.io/kubernetes/cmd/kube-controller-manager     | 0 | $kube_flags | 4
kubectl                 | kubernetes | k8s.io/kubernetes/cmd/kubectl                     | 0 | $kube_flags | 3
agnhost                 | kubernetes | k8s.io/kubernetes/test/images/agnhost             | 0 | -s -w       | 1
nnp                     | kubernetes | k8s.io/kubernetes/test/images/nonewprivs          | 0 | -s -w       | 0.1
coredns                 | coredns    | github.com/coredns/coredns                        | 0 | -s -w       | 4
workflow-controller     | argo       | ./cmd/workflow-controller                         | 0 | $argo_flags | 5
argoexec                | argo       | ./cmd/argoexec                                    | 0 | $argo_flags | 2
e2e.test                | conformance | test:k8s.io/kubernetes/test/e2e                  | 0 | $kube_flags | 17
ginkgo                  | conformance | github.com/onsi/ginkgo/v2/ginkgo                 | 0 | -s -w       | 1
sample-apiserver        | sample-apiserver | k8s.io/sample-apiserver                     | 0 | -s -w       | 1
"

# Print the folder in which a package is built.
source_of() { # folder package
  case $2 in ./*) ;; *) echo "$here/$1"; return ;; esac
  local module copy=$cache/$1.source.$$
  module=$(cd "$here/$1" && GOFLAGS=-mod=readonly go mod download -json | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')
  rm -rf "$copy"
  cp -r "${module:?no module in $here/$1}" "$copy"
  chmod -R u+w "$copy" # Go's module folders are read-only
  cp -r "$here/$1/source/." "$copy"
  echo "$copy"
}

# Run go without a line for each module that it fetches: the last of them would stand for minutes while it compiles.
quietly() { # command...
  { "$@" 2>&1 >&3 | sed -u '/^go: downloading /d' >&2; } 3>&1
}

build() { # name folder package cgo flags minutes
  local name=$1 folder=$2 package=$3 cgo=$4 flags=$5 minutes=$6 key file source
  key=$(cat <(find "$here/$folder" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat) <(echo "$package $cgo $flags $(go env GOVERSION GOARCH)") | sha256sum | cut -c1-16)
  file=$cache/$name-$key
  if [ ! -x "$file" ]; then
    echo "build: $name, $turn of $turns (about $minutes minutes on two cores) ..." >&2
    mkdir -p "$cache"
    source=$(source_of "$folder" "$package")
    local how=(build -buildvcs=false)
    [ "$package" = "${package#test:}" ] || how=(test -c -vet=off)
    (cd "$source" && CGO_ENABLED=$cgo quietly go "${how[@]}" -mod=readonly -trimpath -ldflags "$flags" -o "$file.$$" "${package#test:}")
    mv "$file.$$" "$file"
    [ "$source" = "$here/$folder" ] || rm -rf "$source"
  fi
  ln -f "$file" "$out/$name" 2>/dev/null || cp -f "$file" "$out/$name"
}

out=${1:?usage: controlplane/build.sh OUT [NAME ...]}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
known=$(cut -d'|' -f1 <<<"$table")
wanted=${*:-$known}
for name in $wanted; do
  grep -qw -- "$name" <<<"$known" || { echo "build: no component '$name' (known:" $known")" >&2; exit 2; }
done
turn=0 turns=$(wc -w <<<"$wanted")
while IFS='|' read -r name folder package cgo flags minutes; do
  name=$(xargs <<<"$name")
  [ -n "$name" ] && grep -qw -- "$name" <<<"$wanted" || continue
  turn=$((turn + 1))
  build "$name" "$(xargs <<<"$folder")" "$(xargs <<<"$package")" "$(xargs <<<"$cgo")" "$(xargs <<<"$flags")" "$(xargs <<<"$minutes")"
done <<<"$table"
