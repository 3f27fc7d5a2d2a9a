#!/usr/bin/env bash
# Builds a Kubernetes control plane and helm from their Go modules, and runs the tests of this directory on it:
#
#   tests/k8s/run.sh [flags of go test]
#
# Programs are kept in ~/.cache/pecan-k8s (PECAN_K8S_CACHE). The first build takes long, later runs none. The tests need
# root, because they make namespaces and mounts, and the programs of `make build`.
set -euo pipefail
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || { echo "run.sh: the tests make namespaces and mounts, so run them as root" >&2; exit 1; }
command -v ip >/dev/null || { echo "run.sh: there is no ip: apt-get install iproute2" >&2; exit 1; }

root=$(cd ../.. && pwd)
[ -x "$root/python/pecan/_bin/pecan-worker" ] || { echo "run.sh: run make build first" >&2; exit 1; }
version() { (cd programs && go list -m -f '{{.Version}}' "$1"); }
kubernetes=$(version k8s.io/kubernetes) etcd=$(version go.etcd.io/etcd/server/v3) helm=$(version helm.sh/helm/v3)
bin=${PECAN_K8S_CACHE:-$HOME/.cache/pecan-k8s}/$kubernetes-$etcd-$helm
mkdir -p "$bin"

build() { # build <package> <program>
  [ -x "$bin/$2" ] && return
  local started=$SECONDS package=k8s.io/component-base/version minor=${kubernetes#v1.}
  # One package at a time: some need more than 1 GB to compile.
  (cd programs && CGO_ENABLED=0 go build -p 1 -trimpath -o "$bin/.$2" -ldflags \
    "-s -w -X $package.gitVersion=$kubernetes -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}" "$1")
  mv "$bin/.$2" "$bin/$2"
  echo "built $2 in $((SECONDS - started)) s"
}
build go.etcd.io/etcd/server/v3 etcd
build k8s.io/kubernetes/cmd/kube-apiserver kube-apiserver
build k8s.io/kubernetes/cmd/kube-controller-manager kube-controller-manager
build k8s.io/kubernetes/cmd/kube-scheduler kube-scheduler
build helm.sh/helm/v3/cmd/helm helm
started=$SECONDS
CGO_ENABLED=0 go test -c -trimpath -o "$bin/tests" .
echo "built the tests in $((SECONDS - started)) s"

export PECAN_K8S_PROGRAMS=$bin PECAN_ROOT=$root
# shellcheck disable=SC2016  # The inner shell expands them.
exec unshare --net --mount --propagation private --kill-child --fork bash -c \
  'ip link set lo up && ip address add 10.77.0.1/16 dev lo && exec "$0" -test.v -test.timeout 40m "$@"' "$bin/tests" "$@"
