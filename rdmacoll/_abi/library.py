"""The C ABI of librdmacoll.so (cpp/api/rdmacoll_c.h). No other Python module knows it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rdmacoll._abi import fast_calls, mirror
from rdmacoll._base.once import once
from rdmacoll.errors import ConfigError, RankFailedError, RdmacollError, error_from_json

DONE, TIMEOUT, FAILED, REFUSED, MOVED = 0, 1, 2, 3, 4
DIMS_MAX = 8

_VOID = ctypes.c_void_p
BUILD_AGAIN = 'Install the package again, or run "make native" in the clone.'


class Library:
    """The loaded library. Functions that run often are attributes without a wrapper."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ConfigError(
                f"{path} is missing: the engine has not been built. Build it with `make setup`, or "
                "install the package with `pip install .`."
            )
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be loaded: {error}.") from None
        get_api = self._dll.rc_get_api
        get_api.restype = ctypes.POINTER(mirror.Api)
        get_api.argtypes = [ctypes.c_uint32]
        table = get_api(mirror.ABI_VERSION)
        api = table.contents if table else None
        if api is None or api.abi_version != mirror.ABI_VERSION or api.header_hash != mirror.HEADER_HASH:
            raise ConfigError(f"{path} and the Python package come from different builds. {BUILD_AGAIN}")
        engine, operation, prepared, ps, tools = (
            pointer.contents for pointer in (api.engine, api.operation, api.prepared, api.ps, api.tools)
        )
        self.path = path
        self.table_address = ctypes.cast(table, _VOID).value or 0
        self.version: str = api.version.decode()
        self._text_free = api.text_free
        self._engine, self._operation, self._prepared = engine, operation, prepared
        self._ps, self._tools = ps, tools
        self.run = operation.run
        self.call = operation.call
        self.submit = operation.submit
        self.submit_group = operation.submit_group
        self.refuse = operation.refuse
        self.handle_wait = operation.wait
        self.handle_done = operation.is_done
        self.handle_free = operation.free
        self.handle_end = operation.end_of
        self.prepare = prepared.prepare
        self.prepared_run = prepared.run
        self.prepared_run_locked = prepared.run_locked
        # CPython's functions. The object that they pass on is opaque to the library.
        hooks = (ctypes.pythonapi.PyEval_SaveThread, ctypes.pythonapi.PyEval_RestoreThread)
        operation.set_lock_hooks(*(ctypes.cast(hook, _VOID) for hook in hooks))
        if not fast_calls.connect(self.table_address):
            raise ConfigError(f"fast_calls.abi3.so and {path} come from different builds. {BUILD_AGAIN}")
        self.prepared_free = prepared.free
        self.prepared_end = prepared.end_of
        self.result_free = prepared.result_free
        self.memory_allocate = engine.memory_allocate
        self.memory_free = engine.memory_free
        self.gpu_free = engine.gpu_free
        self.gpu_of = engine.gpu_of
        self.result_take = operation.result_take

    def take_text(self, address: int | None) -> str:
        """Takes a text that the library gave away, and frees the library's copy."""
        if not address:
            return ""
        text = ctypes.string_at(address).decode("utf-8", "replace")
        self._text_free(address)
        return text

    def error(self, slot: ctypes.c_void_p) -> RdmacollError:
        """The typed error in an error slot. Empties the slot."""
        text = self.take_text(slot.value)
        slot.value = None
        return error_of(text)

    def _check(self, code: int, slot: ctypes.c_void_p) -> None:
        if code != 0:
            raise self.error(slot)

    def settings(self, arguments: str = "") -> list[dict[str, Any]]:
        """The settings' table with effective values and sources. Raises ConfigError."""
        rows, wrong = self.readable_settings(arguments)
        if wrong is not None:
            raise wrong
        return rows

    def readable_settings(self, arguments: str = "") -> tuple[list[dict[str, Any]], RdmacollError | None]:
        """The settings' table, with defaults for unreadable values, and the first error."""
        text, error = _VOID(), _VOID()
        code = self._tools.settings(arguments.encode(), ctypes.byref(text), ctypes.byref(error))
        return json.loads(self.take_text(text.value)), self.error(error) if code != 0 else None

    def transports(self, arguments: str = "") -> list[dict[str, Any]]:
        """The transports in order of preference. Keys in rdmacoll_c.h."""
        rows: list[dict[str, Any]] = json.loads(self.take_text(self._tools.transports(arguments.encode())))
        return rows

    def algorithms(self) -> list[dict[str, Any]]:
        """The algorithms in the order of their table. Keys in rdmacoll_c.h."""
        rows: list[dict[str, Any]] = json.loads(self.take_text(self._tools.algorithms()))
        return rows

    def check_descriptors(self, needed: int) -> None:
        """Raises ConfigError if this process may not open so many more descriptors now."""
        error = _VOID()
        self._check(self._tools.check_descriptors(needed, ctypes.byref(error)), error)

    def engine_open(
        self, *, rank: int, size: int, job: str, secret: bytes, arguments: str
    ) -> tuple[int, str]:
        """Step 1 of the start: (engine, this rank's card)."""
        return self._open(self._engine.open, rank, size, job=job, secret=secret, arguments=arguments)

    def _open(self, call: Any, *identity: Any, job: str, secret: bytes, arguments: str) -> tuple[int, str]:
        opened, card, error = _VOID(), _VOID(), _VOID()
        code = call(
            *identity,
            job.encode(),
            secret,
            len(secret),
            arguments.encode(),
            ctypes.byref(opened),
            ctypes.byref(card),
            ctypes.byref(error),
        )
        self._check(code, error)
        return opened.value or 0, self.take_text(card.value)

    def engine_forward_rendezvous(self, engine: int) -> int:
        """Makes the engine listen at the rendezvous port. Call it before `engine_start`.

        Returns a socket. Callers that begin as at a rendezvous come out of it, as numbers of their
        descriptors. -1: no descriptor was left.
        """
        return int(self._engine.forward_rendezvous(engine))

    def engine_node(self, engine: int, addresses: Sequence[str]) -> int:
        """Step 3: the rank that leads this rank's node."""
        return self._node(self._engine.node, engine, addresses)

    def _node(self, call: Any, opened: int, cards: Sequence[str]) -> int:
        texts = (ctypes.c_char_p * len(cards))(*[card.encode() for card in cards])
        leader, error = ctypes.c_int32(-1), _VOID()
        self._check(call(opened, texts, ctypes.byref(leader), ctypes.byref(error)), error)
        return leader.value

    def engine_profile(self, engine: int) -> str:
        """After step 3: the profile of this rank's machine, if it leads a node of several ranks; else ""."""
        return self.take_text(self._engine.profile(engine))

    def engine_set_profiles(self, engine: int, profiles: Sequence[str]) -> None:
        """Before step 4: the profiles of all ranks, by rank."""
        self._engine.set_profiles(engine, (ctypes.c_char_p * len(profiles))(*[p.encode() for p in profiles]))

    def engine_start(self, engine: int, leaders: Sequence[int], timeout_ms: int) -> bool:
        """Step 4: connects the control tree and starts the engine's thread.

        False if `timeout_ms` passes first; then call it again. A call after True raises the error of a rank
        that was lost since.
        """
        error = _VOID()
        array = (ctypes.c_int32 * len(leaders))(*leaders)
        code = self._engine.start(engine, array, timeout_ms, ctypes.byref(error))
        if code == TIMEOUT:
            return False
        self._check(code, error)
        return True

    def engine_serve(self, engine: int, timeout_ms: int) -> dict[str, str] | None:
        """Serves as a parameter server until all workers have left.

        Returns the cause of each worker's end by rank; "" is a clean end. None if `timeout_ms` passes first.
        Raises the error that has ended the world.
        """
        text, error = _VOID(), _VOID()
        code = self._engine.serve(engine, timeout_ms, ctypes.byref(text), ctypes.byref(error))
        if code == TIMEOUT:
            return None
        self._check(code, error)
        causes: dict[str, str] = json.loads(self.take_text(text.value))
        return causes

    def engine_close(self, engine: int, cause: str | None) -> None:
        """Leaves the world, and fails pending operations. Bounded in time, idempotent."""
        self._engine.close(engine, None if cause is None else cause.encode(errors="backslashreplace"))

    def engine_blame(self, engine: int, error: RankFailedError) -> bool:
        """Makes the world fail by the rank that `error` names, and tells all ranks.

        Another connection of this process has lost that rank. Returns whether this is now the world's
        failure; False if the world has failed earlier.
        """
        encoded = str(error).encode(errors="backslashreplace"), error.cause.encode(errors="backslashreplace")
        return bool(self._engine.blame(engine, error.rank, *encoded))

    def engine_free(self, engine: int) -> None:
        """Frees the engine. No other call about it may follow."""
        self._engine.free(engine)

    def engine_topology(self, engine: int) -> tuple[int, int, int, int, int, int]:
        """rank, size, local_rank, local_size, cross_rank, cross_size. They count workers."""
        out = (ctypes.c_int32 * 6)()
        self._engine.topology(engine, out)
        return out[0], out[1], out[2], out[3], out[4], out[5]

    def engine_metrics(self, engine: int) -> dict[str, int | float]:
        """Totals since the start."""
        fields: dict[str, int | float] = json.loads(self.take_text(self._engine.metrics(engine)))
        return fields

    def engine_describe(self, engine: int) -> dict[str, Any]:
        """transport, determinism, servers, is_server, summary, nodes (of the workers, by rank)."""
        fields: dict[str, Any] = json.loads(self.take_text(self._engine.describe(engine)))
        return fields

    def engine_state(self, engine: int) -> str:
        """The pending operations, for a person."""
        return self.take_text(self._engine.state(engine))

    def engine_timeline(self, engine: int, path: bytes) -> None:
        """Writes this rank's operations with their times to a file from now on; b"" ends that.

        Raises ConfigError if the file cannot be written.
        """
        error = _VOID()
        self._check(self._engine.timeline(engine, path, ctypes.byref(error)), error)

    def set_add(self, engine: int, ranks: Sequence[int]) -> int:
        """This rank's part of adding a process set. Returns the set's number. Raises ConfigError."""
        number, error = ctypes.c_int32(0), _VOID()
        array = (ctypes.c_int32 * len(ranks))(*ranks)
        code = self._engine.set_add(engine, array, len(ranks), ctypes.byref(number), ctypes.byref(error))
        self._check(code, error)
        return number.value

    def set_remove(self, engine: int, number: int, timeout_ms: int) -> bool:
        """This rank's part of removing a process set.

        False if `timeout_ms` passes before the others finish.
        """
        error = _VOID()
        code = self._engine.set_remove(engine, number, timeout_ms, ctypes.byref(error))
        if code == TIMEOUT:
            return False
        self._check(code, error)
        return True

    def set_in_flight(self, engine: int, number: int) -> int:
        """The number of this rank's operations in the set that have not ended."""
        count, error = ctypes.c_int32(0), _VOID()
        code = self._engine.set_in_flight(engine, number, ctypes.byref(count), ctypes.byref(error))
        self._check(code, error)
        return count.value

    def gpu_allocate(self, engine: int, gpu: int, size: int) -> tuple[int, int]:
        """Memory of the GPU with this number of CUDA: (result, address). `gpu_free` frees the result.

        Raises RdmacollError.
        """
        result, memory, error = _VOID(), _VOID(), _VOID()
        outputs = ctypes.byref(result), ctypes.byref(memory), ctypes.byref(error)
        self._check(self._engine.gpu_allocate(engine, gpu, size, *outputs), error)
        return result.value or 0, memory.value or 0

    def gpu_follow(self, engine: int, gpu: int, stream: int, follower: int) -> None:
        """Makes the stream `follower` wait for the present work of `stream`. Raises RdmacollError."""
        error = _VOID()
        self._check(self._engine.gpu_follow(engine, gpu, stream, follower, ctypes.byref(error)), error)

    def gpu_copy(
        self, engine: int, gpu: int, stream: int, blocks: Sequence[tuple[int, int, int]], *, to_host: bool
    ) -> None:
        """Copies blocks (address on the GPU, address on the host, bytes) after the present work of `stream`.

        Returns when they are copied. Raises RdmacollError.
        """
        count, error = len(blocks), _VOID()
        on_gpu, on_host, sizes = zip(*blocks)
        code = self._engine.gpu_copy(
            engine,
            gpu,
            stream,
            to_host,
            count,
            (_VOID * count)(*on_gpu),
            (_VOID * count)(*on_host),
            (ctypes.c_uint64 * count)(*sizes),
            ctypes.byref(error),
        )
        self._check(code, error)

    def handle_result_at(self, handle: int, index: int) -> tuple[int, tuple[int, ...]]:
        """(address, dims) of one result that the engine made. The operation has succeeded."""
        ndim, dims = ctypes.c_int32(0), (ctypes.c_int64 * DIMS_MAX)()
        address = self._operation.result_at(handle, index, ctypes.byref(ndim), dims)
        return address or 0, tuple(dims[: ndim.value])

    def prepared_result_at(self, prepared: int, index: int) -> tuple[int, int, tuple[int, ...]]:
        """(result, address, dims) of one result that a prepared operation made.

        The address is valid until `result_free(result)`.
        """
        memory, ndim, dims = _VOID(), ctypes.c_int32(0), (ctypes.c_int64 * DIMS_MAX)()
        result = self._prepared.result_at(prepared, index, ctypes.byref(memory), ctypes.byref(ndim), dims)
        return result or 0, memory.value or 0, tuple(dims[: ndim.value])

    def verify_schedules(self, first: int, last: int) -> tuple[int, dict[str, Any]]:
        """(0 or 1, the command's JSON keys) for worlds of `first` to `last` ranks, inclusive."""
        text = _VOID()
        code = self._tools.verify_schedules(first, last, ctypes.byref(text))
        return code, json.loads(self.take_text(text.value))

    def sim_faults(self, begin: int, end: int, *, verbose: bool) -> tuple[int, dict[str, Any]]:
        """(0 or 1, the command's JSON keys) for the seeds from `begin` up to `end`, exclusive."""
        text = _VOID()
        code = self._tools.sim_faults(begin, end, int(verbose), ctypes.byref(text))
        return code, json.loads(self.take_text(text.value))

    def _answer(self, function: Callable[..., int], *inputs: Any) -> dict[str, Any]:
        """The JSON result of a function with `char** json, char** error`."""
        text, error = _VOID(), _VOID()
        self._check(function(*inputs, ctypes.byref(text), ctypes.byref(error)), error)
        found: dict[str, Any] = json.loads(self.take_text(text.value))
        return found

    def explain(self, query: ctypes.Structure, arguments: str = "") -> dict[str, Any]:
        """The algorithm that would run, and why (`rdmacoll._abi.plan_query`). Keys in rdmacoll_c.h.

        Raises ConfigError.
        """
        return self._answer(self._tools.explain, ctypes.byref(query), arguments.encode())

    def sim_scale(self, query: ctypes.Structure) -> dict[str, Any]:
        """The duration of a step (`rdmacoll._abi.scale`). Keys in rdmacoll_c.h. Raises ConfigError."""
        return self._answer(self._tools.sim_scale, ctypes.byref(query))

    def devices(self, arguments: str = "") -> dict[str, Any]:
        """RDMA devices and the choice among them. Keys in rdmacoll_c.h. Raises ConfigError."""
        return self._answer(self._tools.devices, arguments.encode())

    def gpus(self, arguments: str = "", *, sys: str = "/sys", proc: str = "/proc") -> dict[str, Any]:
        """GPUs, NICs and the way between each two. Keys in rdmacoll_c.h. Raises ConfigError."""
        return self._answer(self._tools.gpus, sys.encode(), proc.encode(), arguments.encode())

    def machine_profile(self, arguments: str = "", *, measure: bool = False) -> dict[str, Any]:
        """The profile of this machine; `measure`: measured for up to 20 s and kept. Keys in rdmacoll_c.h.

        Raises ConfigError.
        """
        return self._answer(self._tools.machine_profile, arguments.encode(), int(measure))

    def pair_open(
        self, *, side: int, numbers: Sequence[int], job: str, secret: bytes, arguments: str
    ) -> tuple[int, str]:
        """Opens one end of a path between two ranks, `numbers` in the job. Returns (pair, its card).

        Side 0 leads.
        """
        both = (ctypes.c_int32 * 2)(*numbers)
        return self._open(self._tools.pair_open, side, both, job=job, secret=secret, arguments=arguments)

    def pair_node(self, pair: int, cards: Sequence[str]) -> int:
        """The side that leads this end's node, from both cards."""
        return self._node(self._tools.pair_node, pair, cards)

    def pair_run(
        self,
        pair: int,
        leaders: Sequence[int],
        *,
        measures: int,
        sizes: Sequence[int],
        repeats: int,
        burst_s: float,
        progress_timeout_s: float,
        limit_s: float,
    ) -> dict[str, Any]:
        """Connects and measures. Keys in rdmacoll_c.h. Blocks for at most twice `limit_s`."""
        plan = mirror.PairPlan(
            measures,
            (ctypes.c_uint64 * len(sizes))(*sizes),
            len(sizes),
            repeats,
            burst_s,
            progress_timeout_s,
            limit_s,
        )
        text, error = _VOID(), _VOID()
        pointers = (ctypes.c_int32 * 2)(*leaders)
        code = self._tools.pair_run(
            pair, pointers, ctypes.byref(plan), ctypes.byref(text), ctypes.byref(error)
        )
        self._check(code, error)
        found: dict[str, Any] = json.loads(self.take_text(text.value))
        return found

    def pair_free(self, pair: int) -> None:
        """Frees an opened pair."""
        self._tools.pair_free(pair)

    def ps_rule_slots(self, rule: str) -> tuple[list[str], float]:
        """The slots of a parameter server for each variable: (names, initial value). Raises ConfigError."""
        found = self._answer(self._ps.rule_slots, rule.encode())
        return found["slots"], found["initial_value"]

    def ps_update(
        self,
        rule: str,
        *,
        dtype: int,
        step: int,
        decays: bool,
        count: int,
        values: int,
        slots: Sequence[int],
        gradient: int,
        rate: float | None,
    ) -> None:
        """Makes one update as a parameter server does, on arrays at these addresses.

        rate: the learning rate of a push, or None: the rule's. Raises ConfigError.
        """
        pointers = (ctypes.c_void_p * len(slots))(*slots)
        update = mirror.Update(
            dtype,
            rule.encode(),
            step,
            _rate(rate),
            decays,
            len(slots),
            count,
            values,
            pointers,
            gradient,
        )
        error = _VOID()
        self._check(self._ps.update(ctypes.byref(update), ctypes.byref(error)), error)

    def ps_open(
        self,
        engine: int,
        *,
        rank: int,
        size: int,
        servers: int,
        staleness: int,
        job: str,
        secret: bytes,
        arguments: str,
    ) -> tuple[int, str]:
        """Opens a rank of an asynchronous parameter server: (address, its card).

        Other ranks connect to it at the engine's listener. staleness -1: no bound.
        """
        identity = (engine, rank, size, servers, staleness)
        return self._open(self._ps.open, *identity, job=job, secret=secret, arguments=arguments)

    def ps_node(self, ps: int, cards: Sequence[str]) -> int:
        """The rank that leads this rank's node."""
        return self._node(self._ps.node, ps, cards)

    def ps_start(self, ps: int, leaders: Sequence[int], timeout_ms: int) -> bool:
        """Connects workers and servers. False if `timeout_ms` passes first."""
        error = _VOID()
        array = (ctypes.c_int32 * len(leaders))(*leaders)
        code = self._ps.start(ps, array, timeout_ms, ctypes.byref(error))
        if code != TIMEOUT:
            self._check(code, error)
        return bool(code != TIMEOUT)

    def ps_serve(self, ps: int, timeout_ms: int) -> bool:
        """Serves. False if `timeout_ms` passes before all workers have left."""
        error = _VOID()
        code = self._ps.serve(ps, timeout_ms, ctypes.byref(error))
        if code != TIMEOUT:
            self._check(code, error)
        return bool(code != TIMEOUT)

    def ps_free(self, ps: int) -> None:
        """Frees this rank of the servers. No other call about it may follow."""
        self._ps.free(ps)

    def _ps_call(self, function: Any, *inputs: Any) -> int:
        call, error = _VOID(), _VOID()
        self._check(function(*inputs, ctypes.byref(call), ctypes.byref(error)), error)
        return call.value or 0

    def ps_declare(self, ps: int, variables: Sequence[mirror.Variable], rule: str) -> int:
        """Begins a call. Variables get the next numbers."""
        array = (mirror.Variable * len(variables))(*variables)
        return self._ps_call(self._ps.declare, ps, array, len(variables), rule.encode())

    def ps_transfer(
        self, ps: int, transfer: int, variables: Sequence[int], addresses: Sequence[int], rate: float | None
    ) -> int:
        """Begins a call: PS_INIT, PS_PUSH or PS_PULL of whole variables.

        rate: the learning rate of a push. None takes that of the rule. The functions below have it, too.
        """
        numbers, pointers = _int32s(variables), _addresses(addresses)
        return self._ps_call(self._ps.transfer, ps, transfer, len(variables), numbers, pointers, _rate(rate))

    def ps_exchange(
        self,
        ps: int,
        variables: Sequence[int],
        gradients: Sequence[int],
        values: Sequence[int],
        rate: float | None,
    ) -> int:
        """Begins a call that pushes gradients of whole variables and pulls their fresh values, at these
        addresses."""
        numbers, gradient_addresses, value_addresses = (
            _int32s(variables),
            _addresses(gradients),
            _addresses(values),
        )
        return self._ps_call(
            self._ps.exchange, ps, len(variables), numbers, gradient_addresses, value_addresses, _rate(rate)
        )

    def ps_transfer_slot(
        self,
        ps: int,
        transfer: int,
        slot: int,
        updates: int,
        variables: Sequence[int],
        addresses: Sequence[int],
    ) -> int:
        """Begins a call: PS_INIT or PS_PULL of a slot, from 1 on, or of the values (0).

        updates: the number of updates that the values have had.
        """
        numbers, pointers = _int32s(variables), _addresses(addresses)
        fields = (transfer, slot, updates, len(variables))
        return self._ps_call(self._ps.transfer_slot, ps, *fields, numbers, pointers)

    def ps_updates(self, ps: int, variables: Sequence[int]) -> int:
        """Begins a call. The largest number among the answers is the number of updates of these variables."""
        return self._ps_call(self._ps.updates, ps, len(variables), _int32s(variables))

    def ps_end(self, ps: int) -> None:
        """Ends open and later calls with ShutdownError."""
        self._ps.end(ps)

    def ps_stats(self, ps: int) -> dict[str, Any]:
        """This server's counters, and the number of waiting workers."""
        fields: dict[str, Any] = json.loads(self.take_text(self._ps.stats(ps)))
        return fields

    def ps_losses(self, ps: int) -> list[str]:
        """On a server: sentences about workers that were lost since the last call."""
        sentences: list[str] = json.loads(self.take_text(self._ps.losses(ps)))
        return sentences

    def ps_failure(self, ps: int) -> RdmacollError | None:
        """On a worker: the error that has ended it, or None."""
        error = _VOID()
        return self.error(error) if self._ps.failure(ps, ctypes.byref(error)) else None

    def ps_leave(self, ps: int, cause: str) -> None:
        """On a server that ends before its workers: tells them the cause. `ps_free` comes next."""
        self._ps.leave(ps, cause.encode(errors="backslashreplace"))

    def ps_transfer_rows(
        self, ps: int, transfer: int, variable: int, rows: int, count: int, data: int, rate: float | None
    ) -> int:
        """Begins a call: PS_PUSH or PS_PULL of `count` rows, at these addresses."""
        return self._ps_call(self._ps.transfer_rows, ps, transfer, variable, rows, count, data, _rate(rate))

    def ps_query(self, ps: int, query: int) -> int:
        """Begins a call: PS_STATS or PS_LEAVE."""
        return self._ps_call(self._ps.query, ps, query)

    def ps_checkpoint(self, ps: int, path: str, action: int) -> int:
        """Begins a call on each server's file, whose name begins with `path`.

        action: PS_SAVE, PS_RESTORE, or PS_SAVED for the number of the save in the file.
        """
        return self._ps_call(self._ps.checkpoint, ps, os.fsencode(path), action)

    def ps_wait(self, ps: int, call: int, timeout_ms: int) -> list[str] | None:
        """The servers' answers. None if `timeout_ms` passes first. Raises the call's error."""
        texts, error = _VOID(), _VOID()
        code = self._ps.wait(ps, call, timeout_ms, ctypes.byref(texts), ctypes.byref(error))
        if code == TIMEOUT:
            return None
        self._check(code, error)
        answers: list[str] = json.loads(self.take_text(texts.value))
        return answers

    def ps_call_free(self, call: int) -> None:
        """Frees a call that has ended. No other use of it may follow."""
        self._ps.call_free(call)

    def ps_sharding(self, ps: int) -> str:
        """The variables of each server, for a person."""
        return self.take_text(self._ps.sharding(ps))


def error_of(text: str) -> RdmacollError:
    """The typed error in the engine's JSON."""
    return error_from_json(text) if text else RdmacollError("the engine gave no reason.")


def _rate(rate: float | None) -> Any:
    return None if rate is None else ctypes.pointer(ctypes.c_double(rate))


def _int32s(values: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(values))(*values)


def _addresses(values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)


def library_path() -> Path:
    """The path of the library, in a wheel and in a development install alike."""
    return Path(__file__).resolve().parent.parent / "lib" / "librdmacoll.so"


@once
def load() -> Library:
    """The library, loaded once per process."""
    return Library(library_path())
