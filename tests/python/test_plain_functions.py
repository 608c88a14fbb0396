"""Collectives as programs see them, and extensions that do not fit."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
import typing
import weakref

from rdmacoll import engine


def test_collectives_look_like_python_functions() -> None:
    plain = [
        getattr(engine, name) for name in engine.__all__ if hasattr(getattr(engine, name), "__wrapped__")
    ]
    assert {each.__name__ for each in plain} == {
        *("allreduce", "broadcast", "barrier", "reduce", "reducescatter"),
        *("allgather", "alltoall", "gather", "scatter"),
    }
    for each in plain:
        function = each.__wrapped__
        assert inspect.isroutine(each)
        assert inspect.signature(each) == inspect.signature(function)
        assert typing.get_type_hints(each) == typing.get_type_hints(function)
        assert inspect.getdoc(each) == inspect.getdoc(function)
        assert (
            pydoc.render_doc(each).splitlines()[2].startswith(f"\b{each.__name__[0]}"[:0] + each.__name__[0])
        )
        assert repr(each) == repr(function)
        assert pickle.loads(pickle.dumps(each)) is copy.deepcopy(each) is each
        assert weakref.ref(each)() is each
    bound = type("Program", (), {"sum": engine.allreduce})().sum
    assert inspect.ismethod(bound)
    assert bound.__func__ is engine.allreduce.__wrapped__


def test_an_extension_of_another_build_is_refused_at_the_start() -> None:
    program = """
import sys, types
sys.modules["rdmacoll.lib.fast_calls"] = types.SimpleNamespace(connect=lambda table: True)
import rdmacoll
try:
    rdmacoll.init(rank=0, size=1, rendezvous="127.0.0.1:0")
except rdmacoll.ConfigError as error:
    print(error)
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"fast_calls.abi3.so and \S+ come from different builds. Install the package again, or run "
        r'"make native" in the clone.\n',
        outcome.stdout,
    ), outcome.stdout
