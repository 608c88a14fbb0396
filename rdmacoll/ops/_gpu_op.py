"""The library that gives ops on a GPU their CUDA stream (gpu_stream.cc). It is built for the installed
TensorFlow, kept in a cache, and loaded only if it is for this TensorFlow and this rdmacoll."""

from __future__ import annotations

import ctypes
import hashlib
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import tensorflow as tf

from rdmacoll._base.log import Log
from rdmacoll._base.programs import OutOfTimeError, run_program
from rdmacoll._start.bootstrap import cache_folder
from rdmacoll.errors import ConfigError
from rdmacoll.version import __version__

_SOURCE = Path(__file__).with_name("gpu_stream.cc")
_OLDEST, _NEWEST = (2, 15), (2, 21)
_COMPILERS = ("g++", "c++", "clang++")
_BUILD_LIMIT_S = 600
_MEANWHILE = "Until then TensorFlow copies gradients of a GPU through host memory."

# The loaded libraries, which TensorFlow calls: a library must stay loaded.
_loaded: list[Any] = []


def key() -> str:
    """Names this TensorFlow and this rdmacoll. Equal names mean that a library fits."""
    digest = hashlib.sha256(_SOURCE.read_bytes())
    for part in (__version__, tf.version.GIT_VERSION, tf.version.COMPILER_VERSION, *_options(), *_facts()):
        digest.update(f"\0{part}".encode())
    return f"rdmacoll-{__version__}-tensorflow-{tf.__version__}-{digest.hexdigest()[:16]}"


def find() -> Path | None:
    """The newest library of the cache that is built for this TensorFlow and this rdmacoll, or None."""
    built = sorted(_folder().glob(f"{key()}-*.so"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


def build(compiler: str | None = None) -> tuple[Path, bool]:
    """Builds the library if the cache has none of this compiler. Returns its path, and whether it was built.
    compiler: its command; None: the first one that is there. Raises ConfigError if it cannot be built."""
    _check_tensorflow()
    command = _find_compiler() if compiler is None else _words_of(compiler)
    version = _version_of(command)
    path = _folder() / f"{key()}-{hashlib.sha256(version.encode()).hexdigest()[:8]}.so"
    if path.exists():
        path.touch()  # find() takes the newest
        return path, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{secrets.token_hex(4)}.part")
        try:
            _compile(command, draft)
            draft.replace(path)  # other ranks see all of it or none
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be written: {error.strerror}. Name another folder in RDMACOLL_CACHE."
        ) from None
    return path, True


def register(shared: Any) -> bool:
    """Registers the kernels for GPUs in the op library `shared`, if the cache has a library that fits.
    Returns whether it has. Call it before an op runs."""
    path = find()
    if path is None:
        return False
    cure = "Remove it, and run `rdmacoll build-gpu-op`."
    try:
        library = ctypes.CDLL(str(path))
        library.rc_gpu_stream_key.restype = ctypes.c_char_p
        built_for = library.rc_gpu_stream_key().decode()
        stream_of = library.rc_gpu_stream_of
    except (OSError, AttributeError) as error:
        Log().warning(f"{path} cannot be loaded: {error}. {cure} {_MEANWHILE}")
        return False
    if built_for != key():
        Log().warning(f"{path} is for {built_for}, not for {key()}. {cure} {_MEANWHILE}")
        return False
    shared.rc_tf_register_gpu_kernels.restype = ctypes.c_char_p
    shared.rc_tf_register_gpu_kernels.argtypes = [ctypes.c_void_p]
    _loaded.append(library)
    problem = shared.rc_tf_register_gpu_kernels(ctypes.cast(stream_of, ctypes.c_void_p))
    if problem is not None:
        raise ConfigError(f"TensorFlow {tf.__version__} refused kernels for GPUs: {problem.decode()}.")
    return True


def _folder() -> Path:
    return cache_folder() / "gpu-op"


def _options() -> list[str]:
    """The compiler's options, without the folder of TensorFlow, which may move."""
    return [option for option in tf.sysconfig.get_compile_flags() if not option.startswith("-I")]


def _facts() -> list[str]:
    return [f"{name}={value}" for name, value in sorted(tf.sysconfig.get_build_info().items())]


def _check_tensorflow() -> None:
    major, minor = (int(number) for number in tf.__version__.split(".")[:2])
    if not _OLDEST <= (major, minor) <= _NEWEST:
        known = " to ".join(".".join(map(str, version)) for version in (_OLDEST, _NEWEST))
        raise ConfigError(
            f"TensorFlow {tf.__version__} is unknown to this rdmacoll: install TensorFlow {known}, or a "
            f"newer rdmacoll. {_MEANWHILE}"
        )
    if tf.sysconfig.get_build_info().get("is_rocm_build"):
        raise ConfigError(f"This TensorFlow is for ROCm, not for CUDA: install one for CUDA. {_MEANWHILE}")
    header = Path(tf.sysconfig.get_include()) / "tensorflow/core/framework/op_kernel.h"
    if not header.exists():
        raise ConfigError(
            f"{header} is missing: install TensorFlow's wheel, which has its headers. {_MEANWHILE}"
        )


def _find_compiler() -> list[str]:
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise ConfigError(
        "There is no C++ compiler: install g++ (apt-get install g++), or name one by --compiler. "
        f"{_MEANWHILE}"
    )


def _words_of(compiler: str) -> list[str]:
    try:
        return shlex.split(compiler)
    except ValueError as error:
        raise ConfigError(f"--compiler {compiler} is no command ({error}): name a C++ compiler.") from None


def _version_of(compiler: list[str]) -> str:
    try:
        done = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"The C++ compiler {shlex.join(compiler)!r} does not run ({error}): name another by --compiler. "
            f"{_MEANWHILE}"
        ) from None
    return done.stdout.partition("\n")[0]


def _compile(compiler: list[str], target: Path) -> None:
    whole = target.with_suffix(".o")
    compile_only = [
        *_options(),
        "-O1",
        "-w",  # the headers are TensorFlow's
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        f'-DRC_KEY="{key()}"',
        "-isystem",
        tf.sysconfig.get_include(),
        "-c",
        str(_SOURCE),
    ]
    link = [
        "-shared",
        str(whole),
        f"-L{tf.sysconfig.get_lib()}",
        "-l:libtensorflow_framework.so.2",
        "-Wl,-z,defs",  # a function that this TensorFlow lacks is an error here, not later
    ]
    try:
        _run([*compiler, *compile_only, "-o", str(whole)], compiler)  # apart, so that ccache helps
        _run([*compiler, *link, "-o", str(target)], compiler)
    finally:
        whole.unlink(missing_ok=True)


def _run(command: list[str], compiler: list[str]) -> None:
    try:
        done = run_program(command, _BUILD_LIMIT_S)
    except OutOfTimeError:
        raise ConfigError(
            f"{shlex.join(compiler)} has not ended after {_BUILD_LIMIT_S} s: run it again on a machine with "
            f"less load. {_MEANWHILE}"
        ) from None
    if done.returncode == 0:
        return
    lines = [line for line in done.stdout.splitlines() if "error" in line or "undefined" in line]
    reason = lines[0].strip() if lines else "it printed no error"
    raise ConfigError(
        f"{shlex.join(compiler)} cannot compile against TensorFlow {tf.__version__} ({reason}): name "
        f"another compiler with C++17 by --compiler. {_MEANWHILE}"
    )
