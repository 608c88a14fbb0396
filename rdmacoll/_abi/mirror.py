"""The C interface of librdmacoll.so in ctypes.

cpp/api/mirror.py writes this file from rdmacoll_c.h: edit the header, and run that."""

from __future__ import annotations

import ctypes
import struct

_ADDRESS = ctypes.c_void_p
_ADDRESSES = ctypes.POINTER(ctypes.c_void_p)

ABI_VERSION = 1
HEADER_HASH = 0xC1FCC079DE149AE2

ALLREDUCE = 0
BROADCAST = 1
ALLGATHER = 2
BARRIER = 3
REDUCESCATTER = 4
ALLTOALL = 5
REDUCE = 6
GATHER = 7
SCATTER = 8
JOIN = 9
LATENCY = 1
EXCHANGE = 2
BANDWIDTH = 4
PS_INIT = 0
PS_PUSH = 1
PS_PULL = 2
PS_PUSH_PULL = 3
PS_STATS = 0
PS_LEAVE = 1
PS_SAVE = 0
PS_SAVED = 1
PS_RESTORE = 2

# The kinds by their names in Python.
KINDS = {
    "allreduce": ALLREDUCE,
    "broadcast": BROADCAST,
    "allgather": ALLGATHER,
    "barrier": BARRIER,
    "reducescatter": REDUCESCATTER,
    "alltoall": ALLTOALL,
    "reduce": REDUCE,
    "gather": GATHER,
    "scatter": SCATTER,
    "join": JOIN,
}

# rc_request:
#   kind dtype op root prescale postscale name iteration n_tensors tensors allocate done context
#   manifest splits n_splits process_set shared_result group stream gpu_result
REQUEST = struct.Struct("@iiiiddPqiPPPPPPiiPPQP")

# rc_tensor: input output ndim dims label
TENSOR = struct.Struct("@PPi8qP")


class PairPlan(ctypes.Structure):
    """rc_pair_plan."""

    _fields_ = [
        ("measures", ctypes.c_int32),
        ("bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("n_bytes", ctypes.c_int32),
        ("repeats", ctypes.c_int32),
        ("burst_s", ctypes.c_double),
        ("timeout_s", ctypes.c_double),
        ("limit_s", ctypes.c_double),
    ]


class Update(ctypes.Structure):
    """rc_update."""

    _fields_ = [
        ("dtype", ctypes.c_int32),
        ("rule", ctypes.c_char_p),
        ("step", ctypes.c_int64),
        ("learning_rate", ctypes.POINTER(ctypes.c_double)),
        ("decays", ctypes.c_int32),
        ("n_slots", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("values", _ADDRESS),
        ("slots", _ADDRESSES),
        ("gradient", _ADDRESS),
    ]


class Variable(ctypes.Structure):
    """rc_variable."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("by_rows", ctypes.c_int32),
        ("decays", ctypes.c_int32),
    ]


class PlanQuery(ctypes.Structure):
    """rc_plan_query."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("nodes", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("algorithm", ctypes.c_char_p),
        ("via_nic", ctypes.c_int32),
        ("latency_us", ctypes.c_double),
        ("gbit_per_s", ctypes.c_double),
        ("servers", ctypes.c_int32),
        ("dtype", ctypes.c_char_p),
    ]


class Link(ctypes.Structure):
    """rc_link."""

    _fields_ = [
        ("latency_us", ctypes.c_double),
        ("overhead_us", ctypes.c_double),
        ("gap_us", ctypes.c_double),
        ("bytes_per_us", ctypes.c_double),
    ]


class ScaleQuery(ctypes.Structure):
    """rc_scale_query."""

    _fields_ = [
        ("ranks", ctypes.c_int32),
        ("node_ranks", ctypes.c_int32),
        ("rack_nodes", ctypes.c_int32),
        ("node", Link),
        ("network", Link),
        ("uplink_bytes_per_us", ctypes.c_double),
        ("via_nic", ctypes.c_int32),
        ("step_us", ctypes.c_double),
        ("copy_bytes_per_us", ctypes.c_double),
        ("reduce_bytes_per_us", ctypes.c_double),
        ("algorithm", ctypes.c_char_p),
        ("operations", ctypes.c_int32),
        ("bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("ready_us", ctypes.POINTER(ctypes.c_double)),
        ("transfers_max", ctypes.c_uint64),
    ]


class EngineApi(ctypes.Structure):
    """rc_engine_api."""

    _fields_ = [
        (
            "open",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_int32,
                ctypes.c_int32,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_int32,
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "node",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_char_p),
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
            ),
        ),
        (
            "start",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.c_int64,
                _ADDRESSES,
            ),
        ),
        ("close", ctypes.CFUNCTYPE(None, _ADDRESS, ctypes.c_char_p)),
        ("free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("forward_rendezvous", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS)),
        ("topology", ctypes.CFUNCTYPE(None, _ADDRESS, ctypes.POINTER(ctypes.c_int32))),
        ("metrics", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("describe", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("state", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("serve", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int64, _ADDRESSES, _ADDRESSES)),
        ("blame", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p)),
        ("memory_allocate", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS, ctypes.c_uint64)),
        ("memory_free", ctypes.CFUNCTYPE(None, _ADDRESS, _ADDRESS)),
        ("memory_lend", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS, ctypes.c_uint64, _ADDRESS, _ADDRESS)),
        (
            "set_add",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
            ),
        ),
        ("set_remove", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int32, ctypes.c_int64, _ADDRESSES)),
        (
            "set_in_flight",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
            ),
        ),
        ("timeline", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_char_p, _ADDRESSES)),
        ("gpu_of", ctypes.CFUNCTYPE(ctypes.c_int32, _ADDRESS, _ADDRESS)),
        (
            "gpu_allocate",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_uint64,
                _ADDRESSES,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        ("gpu_free", ctypes.CFUNCTYPE(None, _ADDRESS, _ADDRESS, ctypes.c_uint64)),
        ("profile", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("set_profiles", ctypes.CFUNCTYPE(None, _ADDRESS, ctypes.POINTER(ctypes.c_char_p))),
        (
            "gpu_follow",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_uint64,
                ctypes.c_uint64,
                _ADDRESSES,
            ),
        ),
        (
            "gpu_copy",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_uint64,
                ctypes.c_int32,
                ctypes.c_int32,
                _ADDRESSES,
                _ADDRESSES,
                ctypes.POINTER(ctypes.c_uint64),
                _ADDRESSES,
            ),
        ),
    ]


class OperationApi(ctypes.Structure):
    """rc_operation_api."""

    _fields_ = [
        ("submit", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)),
        ("submit_and_drive", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, _ADDRESS)),
        (
            "submit_group",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                _ADDRESS,
                ctypes.c_int32,
                _ADDRESS,
                _ADDRESS,
            ),
        ),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, ctypes.c_int64, _ADDRESS, _ADDRESS)),
        (
            "call",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                _ADDRESS,
                ctypes.c_int64,
                ctypes.c_int32,
                _ADDRESS,
                _ADDRESS,
            ),
        ),
        ("set_lock_hooks", ctypes.CFUNCTYPE(None, _ADDRESS, _ADDRESS)),
        ("refuse", ctypes.CFUNCTYPE(None, _ADDRESS, _ADDRESS, ctypes.c_char_p)),
        ("wait", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int64, _ADDRESS)),
        ("is_done", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS)),
        (
            "result_at",
            ctypes.CFUNCTYPE(
                _ADDRESS,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.POINTER(ctypes.c_int64),
            ),
        ),
        ("free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("result_take", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS, ctypes.c_int32)),
        (
            "call_for_result",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                _ADDRESS,
                ctypes.c_int64,
                ctypes.c_int32,
                _ADDRESS,
                _ADDRESS,
            ),
        ),
        ("end_of", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
    ]


class PreparedApi(ctypes.Structure):
    """rc_prepared_api."""

    _fields_ = [
        ("prepare", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, ctypes.c_int64, _ADDRESS, _ADDRESS)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("run_locked", ctypes.PYFUNCTYPE(ctypes.c_int)),
        (
            "result_at",
            ctypes.CFUNCTYPE(
                _ADDRESS,
                _ADDRESS,
                ctypes.c_int32,
                _ADDRESSES,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.POINTER(ctypes.c_int64),
            ),
        ),
        ("result_free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("end_of", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
    ]


class PsApi(ctypes.Structure):
    """rc_ps_api."""

    _fields_ = [
        ("rule_slots", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, _ADDRESSES, _ADDRESSES)),
        ("update", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Update), _ADDRESSES)),
        (
            "open",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_int32,
                ctypes.c_int32,
                ctypes.c_int64,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_int32,
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "node",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_char_p),
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
            ),
        ),
        (
            "start",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.c_int64,
                _ADDRESSES,
            ),
        ),
        ("free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("serve", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int64, _ADDRESSES)),
        ("stats", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("losses", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("leave", ctypes.CFUNCTYPE(None, _ADDRESS, ctypes.c_char_p)),
        (
            "declare",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(Variable),
                ctypes.c_int32,
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "transfer",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
                ctypes.POINTER(ctypes.c_double),
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "exchange",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
                _ADDRESSES,
                ctypes.POINTER(ctypes.c_double),
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "transfer_rows",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_int32,
                _ADDRESS,
                ctypes.c_int64,
                _ADDRESS,
                _ADDRESS,
                _ADDRESS,
                _ADDRESS,
            ),
        ),
        (
            "transfer_slot",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.c_int32,
                ctypes.c_uint64,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "updates",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        ("query", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, ctypes.c_int32, _ADDRESSES, _ADDRESSES)),
        (
            "checkpoint",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.c_char_p,
                ctypes.c_int32,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        ("wait", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, ctypes.c_int64, _ADDRESSES, _ADDRESSES)),
        ("call_free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("submit", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESS, _ADDRESSES)),
        ("sharding", ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS)),
        ("failure", ctypes.CFUNCTYPE(ctypes.c_int, _ADDRESS, _ADDRESSES)),
        ("end", ctypes.CFUNCTYPE(None, _ADDRESS)),
    ]


class ToolsApi(ctypes.Structure):
    """rc_tools_api."""

    _fields_ = [
        ("settings", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, _ADDRESSES, _ADDRESSES)),
        ("check_descriptors", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, _ADDRESSES)),
        ("devices", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, _ADDRESSES, _ADDRESSES)),
        ("transports", ctypes.CFUNCTYPE(_ADDRESS, ctypes.c_char_p)),
        ("algorithms", ctypes.CFUNCTYPE(_ADDRESS)),
        (
            "explain",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(PlanQuery),
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        ("verify_schedules", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, _ADDRESSES)),
        (
            "sim_faults",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_int32,
                _ADDRESSES,
            ),
        ),
        ("sim_scale", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ScaleQuery), _ADDRESSES, _ADDRESSES)),
        (
            "pair_open",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_int32,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_int32,
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "pair_node",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_char_p),
                ctypes.POINTER(ctypes.c_int32),
                _ADDRESSES,
            ),
        ),
        (
            "pair_run",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                _ADDRESS,
                ctypes.POINTER(ctypes.c_int32),
                ctypes.POINTER(PairPlan),
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        ("pair_free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        (
            "gpus",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_char_p,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
        (
            "machine_profile",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_int32,
                _ADDRESSES,
                _ADDRESSES,
            ),
        ),
    ]


class Api(ctypes.Structure):
    """rc_api."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("header_hash", ctypes.c_uint64),
        ("version", ctypes.c_char_p),
        ("text_free", ctypes.CFUNCTYPE(None, _ADDRESS)),
        ("engine", ctypes.POINTER(EngineApi)),
        ("operation", ctypes.POINTER(OperationApi)),
        ("prepared", ctypes.POINTER(PreparedApi)),
        ("ps", ctypes.POINTER(PsApi)),
        ("tools", ctypes.POINTER(ToolsApi)),
    ]
