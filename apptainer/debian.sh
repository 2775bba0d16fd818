#!/bin/sh
# Make the Debian part of hpk.sif; runs as root inside the image's root file system.
#
#   debian.sh install   add the packages of packages.txt to a plain Debian 13
#   debian.sh prune     take away what a running hpk.sif never reads, and settle what Apptainer needs
#   debian.sh compile DIRECTORY...   byte code beside every Python file
#
# scripts/build-image.sh installs from outside (mmdebstrap) and only prunes by this script.
set -eu
here=$(dirname "$0")

install_packages() {
  # sid's source is Debian 13's own with another suite; only what says so comes from there.
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$file" ] && sed -n 's/ trixie / sid /p' "$file"
  done >/etc/apt/sources.list.d/hpk-sid.list
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -f "$file" ] && sed '/^$/,$d; s/^Suites:.*/Suites: sid/' "$file" >/etc/apt/sources.list.d/hpk-sid.sources && break
  done
  sh "$here/debian.sh" preferences >/etc/apt/preferences.d/hpk
  apt-get -q update
  # shellcheck disable=SC2046  # a list of words is wanted
  DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends $(names)
}

names() { sed 's/#.*//; s|/sid||' "$here/packages.txt" | xargs; }

preferences() {
  printf 'Package: *\nPin: release n=sid\nPin-Priority: 1\n'
  for name in $(sed -n 's|/sid.*||p' "$here/packages.txt"); do
    printf '\nPackage: %s\nPin: release n=sid\nPin-Priority: 990\n' "$name"
  done
}

# Files of whole packages that others demand but nothing here uses; the list of packages stays true.
drop_packages() {
  for name in "$@"; do
    for list in /var/lib/dpkg/info/"$name".list /var/lib/dpkg/info/"$name":*.list; do
      [ -f "$list" ] || continue
      while read -r path; do
        if [ -f "$path" ] || [ -L "$path" ]; then rm -f "$path"; fi
      done <"$list"
      printf '%s\n' "$name" >>/opt/hpk/dropped
    done
  done
}

prune() {
  umask 022
  [ "$here" = /opt/hpk/build ] || { echo "debian.sh: prune empties the system it runs in: only inside an image" >&2; exit 2; }
  mkdir -p /opt/hpk/bin /opt/hpk/lib
  : >/opt/hpk/dropped
  # shellcheck disable=SC2016  # dpkg-query's own variables
  dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' | sed -n 's/^ii *//p' >/opt/hpk/debian.txt

  # Nothing is installed into a finished image, so what installs goes, last of all dpkg itself.
  drop_packages adduser apt containernetworking-plugins debconf debian-archive-keyring init-system-helpers \
    iptables libapt-pkg7.0 libdb5.3t64 libip4tc2 libip6tc2 libnetfilter-conntrack3 libnfnetlink0 \
    libpam-modules libpam-modules-bin libpam-runtime libhogweed6t64 libnettle8t64 mount netbase passwd \
    perl-base sqv sysvinit-utils login openssl-provider-legacy tar bzip2 dpkg
  awk 'NR == FNR { gone[$1] = 1; next } !($1 in gone)' /opt/hpk/dropped /opt/hpk/debian.txt >/opt/hpk/debian.kept
  mv /opt/hpk/debian.kept /opt/hpk/debian.txt
  # shellcheck disable=SC2114  # system directories are meant
  rm -rf /opt/hpk/dropped /var/lib/dpkg /var/lib/apt /var/cache /var/log /var/backups /etc/apt /etc/dpkg \
    /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian /usr/share/bug \
    /usr/share/bash-completion /usr/share/zsh /usr/share/fish /usr/share/perl5 /usr/lib/apt /usr/lib/dpkg \
    /usr/share/common-licenses /usr/share/gcc /usr/share/gdb /usr/share/menu /usr/share/debconf \
    /usr/share/polkit-1 /usr/share/pixmaps /usr/share/applications /usr/share/zoneinfo /usr/lib/systemd \
    /usr/lib/init /usr/share/initramfs-tools /etc/cron.daily /etc/init.d /etc/rc?.d /etc/systemd /usr/games \
    /usr/local/games /usr/share/games /usr/include /usr/src /usr/lib/*-linux-gnu/gconv /boot /media /srv
  find / -xdev \( -name '*.a' -o -name '*.la' \) -type f -delete

  # Python without what only developers and desktops use.
  cd /usr/lib/python3.13
  rm -rf test idlelib tkinter turtledemo ensurepip lib2to3 pydoc_data turtle.py venv config-3.13-* \
    __phello__ distutils sqlite3 curses dbm xmlrpc
  find / -xdev -name __pycache__ -prune -exec rm -rf {} +
  [ -e /usr/bin/python3 ] || ln -s python3.13 /usr/bin/python3
  compile /usr/lib/python3.13

  # No program of this image is meant to run with another's rights.
  find / -xdev -type f -perm /6000 -exec chmod a-s {} +

  # Apptainer binds onto these; a place that is missing would cost it an overlay at every start.
  mkdir -p /proc /sys /dev /tmp /var/tmp /home /root /var/cache /var/log /opt/hpk/bin \
    /run/hpk/pod /run/hpk/images /run/hpk/endpoint /run/hpk/scratch /run/hpk/host /run/hpk/gateway
  chmod 1777 /tmp /var/tmp
  for file in /etc/localtime /etc/hosts /etc/resolv.conf /etc/hostname; do
    if rm -f "$file" 2>/dev/null; then : >"$file"; fi # while Apptainer builds, some are its own mounts
  done
}

# Byte code that is believed without a look at the source, whatever a copy did to the files' times; -B, for the compiler
# would leave its own modules in the ordinary way, and -f, for it would take them for done.
compile() { python3.13 -B -m compileall -f -q -j 2 --invalidation-mode unchecked-hash "$@"; }

case ${1:-} in
  install) install_packages ;;
  names) names ;;
  preferences) preferences ;;
  prune) prune ;;
  compile) shift; compile "$@" ;;
  *) echo "usage: debian.sh install | names | preferences | prune | compile DIRECTORY..." >&2; exit 2 ;;
esac
