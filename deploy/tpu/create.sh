#!/usr/bin/env bash
# Creates a TPU VM, installs the wheel on it, and connects it to a service:
#
#   deploy/tpu/create.sh NAME SERVICE WHEEL
#   deploy/tpu/create.sh trainer-1 10.164.0.9:5050 dist/pecan-0.1.0-cp312-cp312-linux_x86_64.whl
#
# ZONE, TYPE, IMAGE, NETWORK, SUBNETWORK, PYTHON and TENSORFLOW change the defaults below. SPOT=1 buys a spot machine.
# The command may be repeated: it continues with a VM that exists. README.md has what to do when it does not work.
set -euo pipefail

zone=${ZONE:-europe-west4-a}
type=${TYPE:-v3-8}
image=${IMAGE:-tpu-ubuntu2204-base}
network=${NETWORK:-default}

fail() {
  echo "create.sh: $*" >&2
  exit 1
}

[ $# -eq 3 ] || fail "usage: create.sh NAME SERVICE WHEEL (see the head of this file)"
name=$1 service=$2 wheel=$3
[[ $service == ?*:?* ]] || fail "the service is $service: give HOST:PORT, as the VM reaches it"
[ -f "$wheel" ] || fail "there is no wheel at $wheel: run make wheel with the Python version of the VM"
[[ $wheel =~ -cp3([0-9]+)- ]] || fail "$wheel is for no version of CPython: use a wheel of make wheel"
python=${PYTHON:-python3.${BASH_REMATCH[1]}}
command -v gcloud >/dev/null || fail "there is no gcloud: install the Google Cloud CLI and run gcloud auth login"

here=$(cd "$(dirname "$0")" && pwd)
vm=(gcloud compute tpus tpu-vm)

if ! state=$("${vm[@]}" describe "$name" --zone "$zone" --format 'value(state)' 2>/dev/null); then
  options=(--zone "$zone" --accelerator-type "$type" --version "$image" --network "$network")
  [ -z "${SUBNETWORK:-}" ] || options+=(--subnetwork "$SUBNETWORK")
  [ -z "${SPOT:-}" ] || options+=(--spot)
  "${vm[@]}" create "$name" "${options[@]}"
elif [ "$state" != READY ]; then
  fail "the VM $name exists and is $state: wait until it is READY, or remove it with deploy/tpu/remove.sh $name"
fi

"${vm[@]}" scp "$wheel" "$here/start.sh" "$here/../examples/train.py" "$name:" --zone "$zone" --worker all
"${vm[@]}" ssh "$name" --zone "$zone" --worker all --command \
  "bash start.sh $(printf '%q ' "$service" "$(basename "$wheel")" "$python" "${TENSORFLOW:-2.21.0}")"
echo "$name is ready. Train on it with:"
echo "  gcloud compute tpus tpu-vm ssh $name --zone $zone --command '~/pecan/bin/python train.py --service $service'"
