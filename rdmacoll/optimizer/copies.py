"""Copies and pickles of a wrapped optimizer are wrapped too: each rank would otherwise train with such a
copy for itself, and nobody would say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer


class Copied:
    """Mixed in first: a copy is made as the plain optimizer's is, with the same settings around it."""

    _rdmacoll_reduce: GradientReducer

    def __reduce_ex__(self, protocol: Any) -> Any:
        distributed = type(self)
        # Nobody finds the dynamic class by its name; Keras may write it down as well.
        object.__setattr__(self, "__class__", distributed.__bases__[1])
        try:
            make, arguments, *state = self.__reduce_ex__(protocol)
        finally:
            object.__setattr__(self, "__class__", distributed)
        return (_made_and_wrapped, (make, arguments, self._rdmacoll_reduce.options()), *state)


def _made_and_wrapped(make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    from rdmacoll.optimizer import wrapped

    return wrapped(make(*arguments), f"copy_of_{options.pop('name')}", **options)
