# Sourced by the scripts: stages with a name, an estimate and a log that is shown only when it matters.
# shellcheck shell=bash

progress_logs=${progress_logs:-$(mktemp -d)}
# Logs stay where a stage has failed, for the reader of its end.
trap '[ $? != 0 ] || rm -rf "$progress_logs"; rmdir "$progress_logs" 2>/dev/null || true' EXIT
progress_now=0
progress_all=${progress_all:-0}

# stage SECONDS "What happens" COMMAND...: runs it, with its output in a log; on failure shows the log's end.
# HPK_VERBOSE=1 shows everything as it comes.
stage() {
  local estimate=$1 what=$2 log started code=0
  shift 2
  progress_now=$((progress_now + 1))
  log=$progress_logs/$progress_now.log
  started=$SECONDS
  printf '[%d/%d] %s (about %s) ...\n' "$progress_now" "$progress_all" "$what" "$(duration "$estimate")" >&2
  # In the background: on the left of || a function would go on after what fails in it, whatever `set -e` says.
  if [ -n "${HPK_VERBOSE:-}" ]; then
    interruptible "$@" >&2 </dev/null &
    wait $! || code=$?
  else
    interruptible "$@" >"$log" 2>&1 </dev/null &
    watch_over $! "$log" "$estimate" || code=$?
  fi
  if [ "$code" != 0 ]; then
    printf '[%d/%d] failed after %s\n' "$progress_now" "$progress_all" "$(duration $((SECONDS - started)))" >&2
    [ -n "${HPK_VERBOSE:-}" ] || { tail -n 40 "$log" | sed 's/^/    /'; echo "    (all of it: $log)"; } >&2
    return "$code"
  fi
  printf '[%d/%d] done in %s\n' "$progress_now" "$progress_all" "$(duration $((SECONDS - started)))" >&2
}

# In the background bash lets no program hear the terminal's Ctrl-C; this one does.
interruptible() {
  trap - INT QUIT
  "$@"
}

# Wait for the process; on a terminal with a line that moves, elsewhere with a line a minute.
watch_over() { # pid log estimate
  local pid=$1 log=$2 estimate=$3 started=$SECONDS elapsed said=0 last
  while kill -0 "$pid" 2>/dev/null; do
    elapsed=$((SECONDS - started))
    if [ -t 2 ]; then
      last=$(tail -n 1 "$log" 2>/dev/null | tr -cd '[:print:]' | cut -c1-60)
      printf '\r\033[K      %s of about %s  %s' "$(duration $elapsed)" "$(duration "$estimate")" "$last" >&2
    elif [ $((elapsed / 60)) -gt "$said" ]; then
      said=$((elapsed / 60))
      printf '      %s of about %s: %s\n' "$(duration $elapsed)" "$(duration "$estimate")" "$(tail -n 1 "$log")" >&2
    fi
    # `wait` cannot be limited in time; a second's delay is nothing to stages this long.
    sleep_until_gone "$pid"
  done
  [ -t 2 ] && printf '\r\033[K' >&2
  wait "$pid"
}

# Up to a second, less if the process ends earlier.  In our own process group: Ctrl-C ends it, and us with it.
sleep_until_gone() { timeout --foreground 1 tail --pid="$1" -s 0.1 -f /dev/null || true; }

duration() { # seconds
  if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi
}

# need_packages NAME...: install those Debian packages that this machine lacks; needs root only then.
need_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  echo "installing ${missing[*]}"
  apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "${missing[@]}"
}
