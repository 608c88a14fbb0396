"""A function on its way to the ranks, and the results on their way back: pickled, and sealed with the secret.

Only the launcher and the ranks of the job have the secret. Nothing is unpickled before its seal is checked.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
from types import CodeType
from typing import Any

from rdmacoll._base.sealed import key_of, opened, seal
from rdmacoll.errors import ConfigError

LAUNCHER = -1  # as the sender of a function
_NO_SET = -1
_NO_FILE = "<dynamic-code>"  # cloudpickle's name for the file of each function


def has_cloudpickle() -> bool:
    """Whether functions of notebooks and scripts can travel."""
    return importlib.util.find_spec("cloudpickle") is not None


def packed(value: object, secret: str, sender: int) -> bytes:
    """The value, pickled and sealed. Raises ConfigError if it cannot be pickled."""
    try:
        payload = _cloudpickled(value) if has_cloudpickle() else pickle.dumps(value)
    except Exception as error:  # pickle raises errors of many classes, and values have errors of their own
        raise ConfigError(f"{type(value).__name__} cannot be pickled: {error}") from error
    return seal(key_of(secret.encode()), payload, sender=sender, process_set=_NO_SET, name=None, number=0)


def _cloudpickled(value: object) -> bytes:
    """The pickle of cloudpickle, with the files of functions.

    Version 3.1 and newer leave them out. But AutoGraph of TensorFlow and tracebacks read the source there.
    """
    base: Any = importlib.import_module("cloudpickle").CloudPickler
    plain = base.dispatch_table[CodeType]

    def reduce_code(code: CodeType) -> Any:
        make, arguments = plain(code)
        return make, tuple(code.co_filename if one == _NO_FILE else one for one in arguments)

    table = {**base.dispatch_table, CodeType: reduce_code}
    stream = io.BytesIO()
    type("Pickler", (base,), {"dispatch_table": table})(stream).dump(value)
    return stream.getvalue()


def unpacked(data: bytes, secret: str, sender: int) -> Any:
    """The value that `sender` has packed. Raises ConfigError if it is from anyone else."""
    found = opened(key_of(secret.encode()), data, sender=sender, process_set=_NO_SET, name=None)
    if found is None:
        raise ConfigError(f"bytes that claim to be from rank {sender} are not sealed with the job's secret.")
    return pickle.loads(found[1])
