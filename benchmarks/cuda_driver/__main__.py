"""Measures a GPU and its driver through the CUDA driver API. The results decide how GPU memory travels.

    python3 benchmarks/cuda_driver --json gpu.json

The program needs an NVIDIA GPU with its driver, and Python. It needs no CUDA toolkit, no package and no
build. The kernels are PTX for capability 3.5, which the driver compiles: those of the library and three that
`kernels.py` makes. Results are checked before they are timed. A failed part prints its error, and the other
parts still run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from card import behaviour, describe
from costs import calls, pinning, staging
from driver import Cuda, CudaError
from sums import reduction, shared_card
from waits import small_copies, waits

HERE = Path(__file__).resolve().parent

PARTS: dict[str, Callable[[Cuda, Any], Any]] = {
    "gpu": describe,
    "behaviour": behaviour,
    "calls, us": calls,
    "small copies, us": small_copies,
    "calls beside a running kernel, ms": waits,
    "pinning, ms": pinning,
    "staging, GB/s": staging,
    "reduction": reduction,
    "two processes on the card": shared_card,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--library", default="libcuda.so.1", help="the driver's library")
    parser.add_argument("--gpu", type=int, default=0, help="which GPU, as CUDA counts them")
    parser.add_argument("--ptx", default=str(HERE / "kernels.ptx"), help="the kernels")
    parser.add_argument("--only", default="", help="parts with this in their name")
    parser.add_argument("--shared-bytes", type=int, default=1_600_000_000, help="for two processes")
    options = parser.parse_args()
    try:
        cuda = Cuda(options.library, options.gpu, options.ptx)
    except (OSError, CudaError) as error:
        print(f"no GPU can be measured here: {error}", file=sys.stderr)
        return 1
    start = {
        "primary context": cuda.context_ms,
        "kernels loaded and compiled": cuda.module_load_ms["kernels"],
    }
    results: dict[str, Any] = {"ok": True, "start, ms": start}
    print("start, ms")
    _show(start, "  ")
    for name, part in PARTS.items():
        if options.only not in name:
            continue
        try:
            results[name] = part(cuda, options)
        except Exception as error:  # the error goes into the table, and the next part runs
            results[name] = f"failed: {type(error).__name__}: {error}"
            results["ok"] = False
        print(f"\n{name}")
        _show(results[name], "  ")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0 if results["ok"] else 1


def _show(value: Any, indent: str) -> None:
    if not isinstance(value, dict):
        print(f"{indent}{value}")
        return
    for key, one in value.items():
        if isinstance(one, dict):
            inner = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in one.items())
            print(f"{indent}{key}: {inner}")
        else:
            print(f"{indent}{key}: {one:.4g}" if isinstance(one, float) else f"{indent}{key}: {one}")


if __name__ == "__main__":
    sys.exit(main())
