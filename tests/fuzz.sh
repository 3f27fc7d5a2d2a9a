#!/usr/bin/env bash
# Fuzzes one target on one core for FUZZTIME, and prints the end of its output: fuzz.sh DIRECTORY TARGET.
# `make fuzz` runs two at a time.
set -uo pipefail
said=$(go test -vet=off -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -parallel 1 "./$1" 2>&1) || case "$said" in
  *"Failing input"*) printf '%s %s\n%s\n' "$1" "$2" "$said"; exit 1 ;;
  *"context deadline exceeded"*) said="$said (Go's fuzzer ended late and found nothing)" ;;
  *) printf '%s %s\n%s\n' "$1" "$2" "$said"; exit 1 ;;
esac
printf '%s %s\n%s\n' "$1" "$2" "$(tail -n 2 <<<"$said")"
