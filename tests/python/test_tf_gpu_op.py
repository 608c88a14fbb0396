"""`rdmacoll build-gpu-op` builds the library for ops on a GPU, for the installed TensorFlow, once.

It is loaded only if it fits. No GPU is needed to compile it, to load it, and to list its kernels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
import tensorflow as tf
from command_lines import command_line
from kernel_spy import library  # noqa: F401 (a fixture)
from ranks import ROOT
from test_tf_versions import old_python  # noqa: F401 (a fixture)

from rdmacoll.errors import ConfigError
from rdmacoll.ops import _gpu_op, _library, _sessions

DTYPES = ["bfloat16", "complex128", "complex64", "float16", "float32", "float64"]
OTHER = ROOT / "cpp" / "tensorflow" / "kernel.cc"  # a source with headers that are not TensorFlow's
KERNELS = """
from tensorflow.python.framework import kernels
found = {}
for op in ("RdmacollAllreduce", "RdmacollBroadcast", "RdmacollAllgather", "RdmacollReducescatter",
           "RdmacollAlltoall", "RdmacollGather", "RdmacollScatter", "RdmacollReduce", "RdmacollPsPush"):
    gpu = [one for one in kernels.get_registered_kernels_for_op(op).kernel if one.device_type == "GPU"]
    found[op] = sorted(tf.as_dtype(one.constraint[0].allowed_values.list.type[0]).name for one in gpu)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RDMACOLL_CACHE", str(tmp_path))
    return tmp_path / "gpu-op"


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The library, built once for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDMACOLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        path, is_new = _gpu_op.build("ccache g++" if shutil.which("ccache") else "g++")
        assert is_new
        assert (path, False) == _gpu_op.build()
        assert _gpu_op.find() == path
        assert list(path.parent.iterdir()) == [path], "drafts are left behind"
        return path


def kernels_on_gpus():
    names: dict[str, object] = {"tf": tf}
    exec(KERNELS, names)
    return names["found"]


def test_the_kernels_are_registered_in_a_tensorflow_without_a_gpu(built, library, monkeypatch):
    assert set(map(tuple, kernels_on_gpus().values())) == {()}, "without the library there are none"
    monkeypatch.setenv("RDMACOLL_CACHE", str(built.parent.parent))
    assert _gpu_op.register(library[1])
    found = kernels_on_gpus()
    assert found.pop("RdmacollReduce") == found.pop("RdmacollPsPush") == []  # TensorFlow copies for these
    assert len(found) == 7
    assert all(dtypes == DTYPES for dtypes in found.values()), found


def test_a_library_that_does_not_fit_is_not_loaded(built, cache, monkeypatch, capfd):
    monkeypatch.setattr(_gpu_op.tf.version, "GIT_VERSION", "another build")
    monkeypatch.setenv("RDMACOLL_CACHE", str(built.parent.parent))
    assert _gpu_op.find() is None
    assert not _gpu_op.register(None)

    monkeypatch.setenv("RDMACOLL_CACHE", str(cache.parent))
    cache.mkdir()
    shutil.copy(built, cache / f"{_gpu_op.key()}-renamed.so")
    assert not _gpu_op.register(None)
    assert "not for rdmacoll-" in capfd.readouterr().err

    (cache / f"{_gpu_op.key()}-renamed.so").unlink()  # it is mapped
    (cache / f"{_gpu_op.key()}-broken.so").write_bytes(b"broken")
    assert not _gpu_op.register(None)
    assert "cannot be loaded" in capfd.readouterr().err


# A job on the host alone shares the results of a node, which kernels for GPUs would exclude.
def test_only_a_tensorflow_with_cuda_that_sees_a_gpu_loads_it(library, monkeypatch):
    loads = []
    monkeypatch.setattr(_gpu_op, "register", loads.append)
    monkeypatch.setattr(_library.world, "on_change", lambda listener: None)
    monkeypatch.setattr(_sessions, "raise_typed_errors", lambda: None)
    for has_cuda, gpus, count in ((False, [], 0), (False, ["GPU:0"], 0), (True, [], 0), (True, ["GPU:0"], 1)):
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda answer=has_cuda: answer)
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind, answer=gpus: answer)
        _library._load.__wrapped__()
        assert len(loads) == count, (has_cuda, gpus)


def test_the_key_changes_with_tensorflow_and_rdmacoll(monkeypatch):
    keys = {_gpu_op.key()}
    for owner, name in ((_gpu_op, "__version__"), (tf.version, "COMPILER_VERSION"), (tf, "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, "2.99.9")
            keys.add(_gpu_op.key())
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda patch: patch.setattr(tf, "__version__", "2.14.1"), "install TensorFlow 2.15 to 2.21"),
        (lambda patch: patch.setattr(tf, "__version__", "2.22.0"), "install TensorFlow 2.15 to 2.21"),
        (
            lambda patch: patch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_rocm_build": True}),
            "install one for CUDA",
        ),
        (
            lambda patch: patch.setattr(tf.sysconfig, "get_include", lambda: "/nowhere"),
            "/nowhere/tensorflow/core/framework/op_kernel.h is missing",
        ),
        (
            lambda patch: patch.setenv("PATH", ""),
            "There is no C\\+\\+ compiler: install g",
        ),
        (
            lambda patch: patch.setattr(_gpu_op, "_COMPILERS", ("false",)),
            "'false' does not run .*: name another",
        ),
        (lambda patch: patch.setattr(_gpu_op, "_SOURCE", OTHER), "cannot compile against TensorFlow"),
    ],
)
def test_a_build_that_is_impossible_says_the_cure_and_leaves_nothing(cache, monkeypatch, change, sentence):
    change(monkeypatch)
    with pytest.raises(ConfigError, match=sentence) as caught:
        _gpu_op.build()
    assert str(caught.value).endswith("copies gradients of a GPU through host memory.")
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RDMACOLL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written: .* Name another folder in RDMACOLL_CACHE"):
        _gpu_op.build()


def test_the_command_prints_where_the_library_is(built, tmp_path):
    environ = {"RDMACOLL_CACHE": str(built.parent.parent)}
    code, found, output = command_line(tmp_path, "build-gpu-op", env=environ)
    assert code == 0
    assert (found["built"], found["library"]) == (False, str(built))
    assert str(built) in output.replace("\n", "")
    assert "built without CUDA" in output
    assert "loaded from now on" not in output


@pytest.mark.slow
def test_it_compiles_and_loads_in_tensorflow_2_15(old_python, tmp_path):
    text = f"""
import tensorflow as tf, ctypes, json
from rdmacoll.ops import _gpu_op, _library
path, is_new = _gpu_op.build()
assert is_new
_library.register()
shared = ctypes.CDLL(str(_library.library_path()))
assert _gpu_op.register(shared)
{KERNELS}
print(json.dumps(found))
"""
    environ = {**os.environ, "RDMACOLL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(old_python), "-c", text], env=environ, capture_output=True, text=True, timeout=900, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["RdmacollAllreduce"] == found["RdmacollBroadcast"] == DTYPES
