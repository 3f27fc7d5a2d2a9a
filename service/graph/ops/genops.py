"""Writes the op registry that service/graph/ops embeds, from the installed TensorFlow.

`make generate` runs it. It writes two reproducible files next to itself, or into the directory that is given:

* ``ops.pb.gz``: the OpList of every registered op, without documentation.
* ``ops.txt``: the TensorFlow version, its graph version, and the ops that have no CPU kernel.
"""

import gzip
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels

# TensorFlow replaces these ops before a graph runs, so it registers no kernel for them.
WITHOUT_KERNELS_BY_DESIGN = {"PartitionedCall", "StatefulPartitionedCall", "AccumulateNV2"}


def op_list() -> op_def_pb2.OpList:
    """Returns all registered ops, sorted by name and without documentation."""
    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    for op in ops.op:
        op.ClearField("summary")
        op.ClearField("description")
        for part in (*op.input_arg, *op.output_arg, *op.attr):
            part.ClearField("description")
    ordered = sorted(ops.op, key=lambda op: op.name)
    return op_def_pb2.OpList(op=ordered)


def main(here: pathlib.Path) -> None:
    """Writes both files into a directory."""
    ops = op_list()
    with open(here / "ops.pb.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(ops.SerializeToString(deterministic=True))
    on_cpu = {k.op for k in kernels.get_all_registered_kernels().kernel if k.device_type in ("CPU", "DEFAULT")}
    lines = [f"tensorflow {tf.__version__}", f"graph_version {tf.version.GRAPH_DEF_VERSION}"]
    lines += [f"no_cpu {op.name}" for op in ops.op if op.name not in on_cpu | WITHOUT_KERNELS_BY_DESIGN]
    (here / "ops.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent)
