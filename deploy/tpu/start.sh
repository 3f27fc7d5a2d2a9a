#!/usr/bin/env bash
# Runs on a TPU VM: makes the environment ~/pecan with TensorFlow and the wheel, and checks that the service answers.
# create.sh copies it there and calls it: start.sh SERVICE WHEEL PYTHON TENSORFLOW. It may be repeated.
set -euo pipefail

service=$1 wheel=$2 python=$3 tensorflow=$4

fail() {
  echo "start.sh: $*" >&2
  exit 1
}

command -v "$python" >/dev/null || fail "this VM has no $python: build the wheel with one of $(compgen -c python3. | sort -u | tr '\n' ' ')"
"$python" -m venv ~/pecan || fail "$python makes no environments: sudo apt-get install ${python}-venv, and repeat create.sh"
# tensorflow-tpu is TensorFlow with the TPU's driver. Its releases have the numbers of TensorFlow.
~/pecan/bin/pip install --quiet --upgrade "./$wheel" "tensorflow-tpu==$tensorflow" \
  --find-links https://storage.googleapis.com/libtpu-tf-releases/index.html

# Both names of the address must lead to it: the dispatcher here, and later each worker.
timeout 30 ~/pecan/bin/pecanctl status --dispatcher "$service" ||
  fail "the service at $service does not answer from here: see 'The VM does not reach the service' in deploy/tpu/README.md"
~/pecan/bin/python - <<'PYTHON'
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
print(len(tf.config.list_logical_devices("TPU")), "TPU cores")
PYTHON
