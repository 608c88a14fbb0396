"""The include law of cpp/, the import law of rdmacoll/, and the headers of other systems."""

from __future__ import annotations

_BASE = {"base"}
_BELOW = {"base", "memory"}
_AGREEMENT = {"base", "collectives", "operation"}
_EXECUTION = _BELOW | {"transport", "compute", "collectives", "operation", "agreement"}
_ENGINE = _EXECUTION | {"bootstrap", "execution"}
# The include law: the other folders that each folder of cpp/ may include.
MAY_INCLUDE = {
    "base": set(),
    "memory": _BASE,
    "transport": _BELOW,
    "compute": _BELOW,
    "cuda": _BELOW | {"compute"},
    "collectives": _BASE,
    "bootstrap": _BELOW | {"transport"},
    "settings": _BELOW | {"transport", "bootstrap", "collectives"},
    "probe": _BELOW | {"transport", "compute", "bootstrap"},
    "ps": _BELOW | {"transport"},
    "operation": _BELOW | {"collectives"},
    "agreement": _AGREEMENT,
    "execution": _EXECUTION,
    "engine": _ENGINE,
    "sim": _ENGINE | {"engine"},
    "api": _ENGINE | {"engine", "sim", "settings", "probe", "ps", "cuda"},
    "tensorflow": {"api"},
    "python": {"api"},
}

# The rooms of rdmacoll/, which are folders and modules, from the lowest to the highest. Each may import the
# rooms before it.
ROOMS = (
    ("errors", "version"),
    ("_base",),
    ("operators", "process_set"),
    ("_abi",),
    ("_start",),
    ("_launch",),
    ("_ps",),
    ("_world",),
    ("_calls",),
    ("engine",),
    ("ps",),
    ("ops",),
    ("optimizer",),
    ("hooks", "pushing", "weights_check"),
    ("_horovod",),
    ("keras",),
    ("tensorflow",),
    ("rdmacoll",),
    ("benchmarks",),
    ("cli",),
)
# Headers of other systems, and the files that may include them. Other files may not.
SYSTEM_HEADERS_OF: dict[str, set[str]] = {
    "ucontext.h": set(),
    # Only its types are used: librdmacoll.so loads without libibverbs.
    "infiniband/verbs.h": {"cpp/transport/rdma/libibverbs.h"},
    "cuda.h": set(),
    "mpi.h": set(),
    "Python.h": {"cpp/python/python.h"},
    "structmember.h": {"cpp/python/python.h"},
    # Headers of one processor family. Each of these files has a branch for others.
    "cpuid.h": {"cpp/compute/processor.cc"},
    "emmintrin.h": {"cpp/memory/streaming.cc"},
    "immintrin.h": {"cpp/compute/float_mode.h", "cpp/compute/reduce_loops.h"},
    "x86intrin.h": {"cpp/base/processor_hints.h"},
}
# Our own headers that include such a system header, and the only files that may include them.
PRIVATE_HEADERS = {"transport/rdma/libibverbs.h": "cpp/transport/rdma/libibverbs"}
