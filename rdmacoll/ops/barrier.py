"""barrier: no rank goes on before all ranks have come."""

from __future__ import annotations

from typing import Any

from rdmacoll.ops._library import not_converted, op_scope, ops
from rdmacoll.ops._names import op_name
from rdmacoll.ops._process_set_argument import takes_process_set
from rdmacoll.ops._process_sets import set_number
from rdmacoll.ops._typed_errors import typed_errors


@not_converted
@takes_process_set
def barrier(name: str | None = None) -> Any:
    """Waits for all ranks. In a graph it is an op with side effects, which TensorFlow keeps in program order.

    Errors as for `allreduce`.
    """
    functions = ops()
    with op_scope(), typed_errors():
        return functions.rdmacoll_barrier(tensor_name=op_name(name), process_set=set_number())
