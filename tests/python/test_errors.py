"""Typed errors from the library's JSON and from the text of a TensorFlow exception."""

from __future__ import annotations

import json
import pickle

import pytest

import rdmacoll
from rdmacoll.errors import UNNAMED, error_from_json, error_to_fields

KINDS = [
    "RdmacollError",
    "NotInitializedError",
    "ConfigError",
    "MismatchError",
    "DuplicateNameError",
    "RankFailedError",
    "StalledError",
    "ShutdownError",
]


@pytest.mark.parametrize("kind", KINDS)
def test_json_becomes_the_class_itself(kind):
    error = error_from_json(json.dumps({"kind": kind, "message": "what: happened"}))
    assert type(error) is getattr(rdmacoll, kind)
    assert str(error) == "what: happened"
    assert isinstance(error, rdmacoll.RdmacollError)
    assert isinstance(error, RuntimeError)


def test_config_errors_are_value_errors():
    assert issubclass(rdmacoll.ConfigError, ValueError)


def test_attributes_survive_the_way_to_other_ranks():
    fields = {
        "kind": "RankFailedError",
        "message": "rank 3 (node7, pid 4711) left",
        "rank": 3,
        "host": "node7",
        "cause": "connection reset",
    }
    again = error_from_json(json.dumps(error_to_fields(error_from_json(json.dumps(fields)))))
    assert (again.rank, again.host, again.cause) == (3, "node7", "connection reset")
    stalled = rdmacoll.StalledError("x", tensor="conv1", missing_ranks=[1, 4])
    again = error_from_json(json.dumps(error_to_fields(stalled)))
    assert (again.tensor, again.missing_ranks) == ("conv1", (1, 4))
    foreign = error_from_json(json.dumps(error_to_fields(KeyError("x"))))
    assert "KeyError" in str(foreign)


@pytest.mark.parametrize("text", ["", "not json", "[]", "3", '{"kind": "Nonsense"}'])
def test_broken_json_is_still_an_error(text):
    assert isinstance(error_from_json(text), rdmacoll.RdmacollError)


def test_a_stall_of_a_model_without_a_name_has_the_cure():
    fields = {"kind": "StalledError", "message": "for 9 s not by rank 1.", "ranks": [1]}
    named, unnamed = (
        error_from_json(json.dumps({**fields, "tensor": tensor}))
        for tensor in ("actor/step_0/bucket_0", f"Optimizer {UNNAMED} of 0a1b2c3d/step_0/bucket_0")
    )
    assert "name" not in str(named)
    assert str(unnamed).endswith('its optimizer or tape: DistributedOptimizer(optimizer, name="actor").')
    again = error_from_json(json.dumps(error_to_fields(unnamed)))
    assert str(again) == str(unnamed)


def test_the_graphs_text_becomes_the_typed_error_with_details():
    details = {"kind": "RankFailedError", "rank": 3, "host": "node7", "cause": "reset: [errno 104]"}
    text = (
        "{{function_node __inference_step_42}} {{node RdmacollAllreduce}} "
        f"RankFailedError: rank 3 (node7, pid 4711) stopped. [rdmacoll {json.dumps(details)}]\n"
        "\t [[{{node StatefulPartitionedCall}}]] [Op:__inference_step_42]"
    )
    error = rdmacoll.error_from(RuntimeError(text))
    assert type(error) is rdmacoll.RankFailedError
    assert (error.rank, error.host, error.cause) == (3, "node7", "reset: [errno 104]")
    assert str(error) == "rank 3 (node7, pid 4711) stopped."


@pytest.mark.parametrize("message", [{}, {"message": "rank 3 stopped: }] x."}])
def test_the_sentence_is_what_stands_before_the_details(message):
    details = {"kind": "StalledError", **message, "tensor": "a }] b", "ranks": [1, 2]}
    sentence = f"StalledError: rank 3 stopped: }}] x. [rdmacoll {json.dumps(details)}]"
    text = f"2 root errors\n (0) ABORTED: {sentence}\n (1)"
    error = rdmacoll.error_from(RuntimeError(text))
    assert str(error) == "rank 3 stopped: }] x."
    assert (error.tensor, error.missing_ranks) == ("a }] b", (1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "traitlets: ConfigError: bad",
        "RankFailedError: rank 12 (gpu-3, pid 1) left",
        "[rdmacoll] ConfigError: x",
    ],
)
def test_another_packages_error_is_not_ours(text):
    assert rdmacoll.error_from(RuntimeError(text)) is None


def test_causes_are_searched_and_contexts_are_not():
    wrapped = KeyError("wrapped")
    wrapped.__cause__ = rdmacoll.StalledError("x", tensor="t", missing_ranks=[1])
    assert rdmacoll.error_from(wrapped).tensor == "t"
    during = KeyError("a mistake in an except block")
    during.__context__ = rdmacoll.StalledError("x")
    assert rdmacoll.error_from(during) is None
    looped = RuntimeError("nothing")
    looped.__cause__ = looped
    assert rdmacoll.error_from(looped) is None
    assert rdmacoll.error_from(None) is None


def test_errors_can_be_pickled_by_those_who_must():
    error = pickle.loads(pickle.dumps(rdmacoll.RankFailedError("m", rank=2, host="h", cause="c")))
    assert (str(error), error.rank, error.host, error.cause) == ("m", 2, "h", "c")
