#!/usr/bin/env bash
# Runs a dispatcher, a worker and the example job from the images, each with its entrypoint and its user. run.sh calls it in
# namespaces of its own.
set -euo pipefail
ip link set lo up
logs=$(mktemp -d)
service=127.0.0.1:5050

fail() {
  echo "service.sh: $*" >&2
  tail -n 20 "$logs"/* >&2
  exit 1
}
run() { # run <container> <args...>: the entrypoint of its image
  local container=$1 entrypoint
  shift
  entrypoint=$(buildah inspect --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' "$container")
  # shellcheck disable=SC2086  # The entrypoint is a list of words.
  buildah run "$container" -- $entrypoint "$@"
}
until_true() { # until_true <what> <command...>
  local what=$1 end=$((SECONDS + 120))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "not within 120 s: $what"
    sleep 0.5
  done
}

dispatcher=$(buildah from --pull-never pecan-dispatcher:test)
worker=$(buildah from --pull-never pecan-worker:test)
client=$(buildah from --pull-never pecan-client:test)
run "$dispatcher" --listen "$service" --work-dir /tmp/state >"$logs/dispatcher" 2>&1 &
run "$worker" --dispatcher "$service" --listen 127.0.0.1:5051 >"$logs/worker" 2>&1 &
status() { buildah run "$dispatcher" -- pecanctl status --json --dispatcher "$service" 2>/dev/null; }
registered() { status | grep -q '"state": *"connected"'; }
until_true "the worker is registered" registered

started=$SECONDS
run "$client" --service "$service" --elements 320 >"$logs/client" 2>&1 || fail "the example job failed"
echo "the example job took $((SECONDS - started)) s: $(tail -n 1 "$logs/client")"

for program in pecan-worker pecan-dispatcher; do
  process=$(pidof "$program") || fail "$program has ended"
  user=$(stat -c %u "/proc/$process")
  [ "$user" = 10001 ] || fail "$program runs as user $user"
  kill -TERM "$process"
  gone() { ! kill -0 "$process" 2>/dev/null; }
  until_true "$program ends on SIGTERM" gone
done
echo "worker and dispatcher ran as user 10001 and ended on SIGTERM"
