"""`rdmacoll build-gpu-op`: kernels for gradients on a GPU, for the installed TensorFlow."""

from __future__ import annotations

import time

import click

from rdmacoll.cli.report import Findings, command, print_line, print_prose
from rdmacoll.errors import ConfigError


@click.command()
@click.option("--compiler", metavar="COMMAND", help="The C++ compiler. By default g++, c++ or clang++.")
@command("build-gpu-op")
def build_gpu_op(*, compiler: str | None) -> Findings:
    """Compiles kernels for gradients in memory of a GPU.

    They are a small library for the installed TensorFlow. With it, allreduces and broadcasts take tensors in
    memory of a GPU.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ConfigError(f"TensorFlow cannot be imported ({error}): install it first.") from None
    from rdmacoll.ops import _gpu_op

    begin = time.monotonic()
    path, is_new = _gpu_op.build(compiler)
    duration_s = time.monotonic() - begin
    state = f"built in {duration_s:.0f} s" if is_new else "built before"
    has_gpu_support = tf.test.is_built_with_cuda()
    use = ", and loaded from now on" if has_gpu_support else ""
    print_line(f"TensorFlow {tf.__version__}: {state}{use}:")
    print_line(str(path))
    if not has_gpu_support:
        print_prose("note: this TensorFlow is built without CUDA, so it will not load the library.")
    return {
        "ok": True,
        "tensorflow": tf.__version__,
        "library": str(path),
        "built": is_new,
        "duration_s": round(duration_s, 3),
        "tensorflow_has_cuda": has_gpu_support,
    }
