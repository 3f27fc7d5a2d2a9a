#!/usr/bin/env bash
# Builds the three images of deploy/containers on a Debian machine without a container engine, and runs a service of them:
#
#   tests/images/run.sh
#
# buildah runs the steps of the container file in chroots. The base images get the names that the file has, and are made with
# debootstrap: no registry of images is asked. They have Debian's Python and the Go of this machine, so the versions of the official
# base images are not tested. It needs root, and the packages buildah, debootstrap and iproute2. Images and base images are kept in
# ~/.cache/pecan-images (PECAN_IMAGES_CACHE); remove the directory to begin again. STORAGE_DRIVER=vfs is for file systems on which the
# kernel has no overlays.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "run.sh: $*" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || fail "chroots need root"
for program in buildah debootstrap ip; do
  command -v "$program" >/dev/null || fail "there is no $program: apt-get install buildah debootstrap iproute2"
done

cache=${PECAN_IMAGES_CACHE:-$HOME/.cache/pecan-images}
mkdir -p "$cache"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
buildah() { command buildah --root "$cache/$STORAGE_DRIVER" --runroot "$cache/run" "$@"; }
base() { buildah images --quiet "$1" >/dev/null 2>&1; }
commit() { # commit <container> <name...>
  local container=$1 name
  shift
  for name; do buildah commit --quiet "$container" "$name" >/dev/null; done
  buildah rm "$container" >/dev/null
}

release=bookworm
go=$(go env GOVERSION | cut -d. -f1,2)
python=3.11
if ! base "debian:$release-slim"; then
  debootstrap --variant=minbase --include=ca-certificates "$release" "$cache/root"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$cache/root" / >/dev/null
  # The certificates that this machine trusts, for go and pip.
  buildah add --quiet "$container" "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" /etc/ssl/certs/ca-certificates.crt >/dev/null
  buildah config --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$container"
  commit "$container" "debian:$release-slim"
  rm -rf "$cache/root"
fi
if ! base "golang:${go#go}-$release"; then
  container=$(buildah from --pull-never "debian:$release-slim")
  buildah add --quiet "$container" "$(go env GOROOT)" /usr/local/go >/dev/null
  buildah config --env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  commit "$container" "golang:${go#go}-$release"
fi
if ! base "python:$python-slim-$release"; then
  container=$(buildah from --pull-never "debian:$release-slim")
  # Debian's pip refuses to install for the whole system without the last command.
  buildah run "$container" -- sh -c "apt-get update -q && apt-get install -q -y --no-install-recommends python3 python3-pip python3-venv &&
    ln -s python3 /usr/bin/python && rm /usr/lib/python$python/EXTERNALLY-MANAGED"
  commit "$container" "python:$python-slim-$release"
fi
if ! base "python:$python-$release"; then
  container=$(buildah from --pull-never "python:$python-slim-$release")
  buildah run "$container" -- apt-get install -q -y --no-install-recommends python3-dev
  commit "$container" "python:$python-$release"
fi

# If a file changed between two images, the wheel would be built twice.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git ls-files -z | tar --null --files-from - --create | tar --extract --directory "$tree"
for target in dispatcher worker client; do
  started=$SECONDS
  buildah bud --quiet --pull-never --layers --build-arg "PYTHON=$python" -f "$tree/deploy/containers/Containerfile" \
    --ignorefile "$tree/deploy/containers/Containerfile.dockerignore" --target "$target" -t "pecan-$target:test" "$tree" >/dev/null
  echo "built pecan-$target in $((SECONDS - started)) s: $(buildah images --format '{{.Size}}' "pecan-$target:test")"
done

rm -rf "$tree"
export -f buildah
export cache
# The programs see no network and no processes but their own.
exec unshare --net --pid --mount-proc --kill-child --fork tests/images/service.sh
