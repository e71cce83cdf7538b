# shellcheck shell=bash disable=SC2016  # texts with a $ that is meant
# Sourced by the entrypoints of the Slurm images (bash, set -euo pipefail is theirs).

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# split_words ARRAY NAME TEXT: TEXT (the value of variable NAME) as words. Quotes group as in a shell; nothing is
# expanded, so that a `$` or a `*` in an option stays what it is.
split_words() {
  local -n _into=$1
  xargs -r printf '' <<<"$3" 2>/dev/null || die "$2 has an unmatched quote: $3"
  # shellcheck disable=SC2034  # the caller's array
  mapfile -d '' -t _into < <(xargs -r printf '%s\0' <<<"$3")
}

# plain_arguments ARRAY ARG...: ARGs as a daemon wants them. The Slinky operator writes arguments for a shell to take
# apart ('Features=a Topology='"$SLINKY_TOPOLOGY"''); such a one starts with a quote, or has one right after `--name=`.
# Everything else is passed on as it is, so a plain argument may hold blanks and quotes (--extra {"a": 1}).
plain_arguments() {
  local -n _args=$1
  shift
  _args=()
  local arg value=${SLINKY_TOPOLOGY:-${POD_TOPOLOGY:-}} words
  local shell_style='^(--[a-z-]+=)?['\''"]'
  for arg; do
    if [[ $arg =~ $shell_style ]]; then
      arg=${arg//'${SLINKY_TOPOLOGY}'/"$value"}
      arg=${arg//'$SLINKY_TOPOLOGY'/"$value"}
      split_words words "the argument" "$arg"
      _args+=("${words[@]}")
    else
      _args+=("$arg")
    fi
  done
}

# option_value NAME ARG...: prints the value of the last `--NAME value` or `--NAME=value`, nothing when there is none.
option_value() {
  local name=--$1 found=""
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      "$name") found=${2:-} ;;
      "$name"=*) found=${1#*=} ;;
    esac
    shift
  done
  printf '%s' "$found"
}

# wait_for_controller ARG...: waits until a controller of `--conf-server host[:port],...` accepts a connection.
# slurmd and sackd themselves would try again only every 10 to 20 seconds. It waits without an end: how long is too
# long is the startup probe's question.
wait_for_controller() {
  local servers waited=0 server host port
  servers=$(option_value conf-server "$@")
  [ -n "$servers" ] || return 0
  while :; do
    for server in ${servers//,/ }; do
      host=${server%:*} port=6817
      [ "$host" = "$server" ] || port=${server##*:}
      if timeout 2 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "$port" 2>/dev/null; then
        [ "$waited" -eq 0 ] || say "the controller at $host:$port answers"
        return 0
      fi
    done
    # A line at once and then about every half minute.
    [ $((waited % 120)) -ne 0 ] || say "waiting for the controller at $servers (nothing accepts a connection there yet)"
    waited=$((waited + 1))
    sleep 0.25
  done
}

# writable DIR...: makes what is missing; a read-only root filesystem needs a volume there.
writable() {
  local dir
  for dir; do
    mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] && continue
    die "$dir cannot be written by $(id -un) ($(id -u)): mount a volume (an emptyDir) there"
  done
}
