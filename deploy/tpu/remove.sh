#!/usr/bin/env bash
# Removes a TPU VM: deploy/tpu/remove.sh NAME. ZONE changes the zone.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: remove.sh NAME" >&2; exit 1; }
gcloud compute tpus tpu-vm delete "$1" --zone "${ZONE:-europe-west4-a}" --quiet
