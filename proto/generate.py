#!/usr/bin/env python3
"""Writes the generated Go under proto/ from the .proto files and from the descriptors of the installed TensorFlow.

Needs tensorflow, grpcio-tools and the Go tools of go.mod (protoc-gen-go, protoc-gen-go-grpc). `make generate` runs it.
With the name of a directory it writes there; a test compares those files with the committed ones.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tensorflow.core.framework import dataset_metadata_pb2, dataset_options_pb2, graph_pb2, model_pb2, op_def_pb2

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULE = "github.com/pecan-ml/pecan"
TENSORFLOW_FILES = (graph_pb2, op_def_pb2, model_pb2, dataset_options_pb2, dataset_metadata_pb2)


def tensorflow_descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Returns the descriptors of TensorFlow's graph messages, dependencies first."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(file) -> None:
        if file.name in found:
            return
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        found[file.name] = proto

    for module in TENSORFLOW_FILES:
        add(module.DESCRIPTOR)
    return descriptor_pb2.FileDescriptorSet(file=found.values())


def go_tool(name: str) -> str:
    return subprocess.run(["go", "tool", "-n", name], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def run_protoc(args: list[str]) -> None:
    plugins = [f"--plugin={name}={go_tool(name)}" for name in ("protoc-gen-go", "protoc-gen-go-grpc")]
    if protoc.main(["protoc", *plugins, *args]) != 0:
        sys.exit(f"protoc failed: {' '.join(args)}")


def main(root: pathlib.Path) -> None:
    descriptors = tensorflow_descriptors()
    names = [file.name for file in descriptors.file]
    package = f"{MODULE}/proto/tensorflow"
    with tempfile.TemporaryDirectory() as scratch:
        descriptor_file = pathlib.Path(scratch, "tensorflow.desc")
        descriptor_file.write_bytes(descriptors.SerializeToString())
        mapping = [f"--go_opt=M{name}={package};tensorflow" for name in names]
        run_protoc([f"--descriptor_set_in={descriptor_file}", f"--go_out={root}", f"--go_opt=module={MODULE}", *mapping, *names])
    ours = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto/pecan/v1").glob("*.proto"))
    package = f"{MODULE}/proto/pecan/v1"
    mapping = [f"--{kind}_opt=M{name}={package};pecanv1" for name in ours for kind in ("go", "go-grpc")]
    run_protoc([
        f"-I{ROOT / 'proto'}", f"--go_out={root}", f"--go_opt=module={MODULE}", f"--go-grpc_out={root}",
        f"--go-grpc_opt=module={MODULE}", *mapping, *ours,
    ])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
