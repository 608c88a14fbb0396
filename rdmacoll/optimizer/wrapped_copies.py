"""Copies and pickles of a wrapped optimizer, and other instances of its class, are wrapped too. Otherwise
each rank would train alone with such an optimizer, without a message.

Each wrapped optimizer has a class of its own, which holds its state: no two share a name, buckets or sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from rdmacoll.errors import ConfigError
from rdmacoll.optimizer import wrapped

if TYPE_CHECKING:
    from rdmacoll.optimizer.reduce import GradientReducer

COPY_OF = "copy_of_"  # the names of copies begin so
_OWN = "_rdmacoll_"  # attributes that begin so are not copied with an instance


class WrappedCopies:
    """The first base class of wrapped optimizers. A copy is made as the plain optimizer's copy, and
    wrapped with the same options."""

    _rdmacoll_reduce: GradientReducer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Wraps instances that `from_config` creates, or a program that calls the class."""
        super().__init__(*args, **kwargs)
        made_by = type(self)
        if "_rdmacoll_reduce" not in vars(made_by):
            raise ConfigError(
                f"class {made_by.__name__} is derived from the class of one wrapped optimizer, which holds "
                "that optimizer's state: derive it from the plain class, and wrap each instance."
            )
        object.__setattr__(self, "__class__", made_by.__bases__[1])
        _wrapped_as(made_by._rdmacoll_reduce.options(), self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _plain(self):
            make, arguments, *state = self.__reduce_ex__(protocol)
        if state and isinstance(state[0], dict):
            state[0] = {name: one for name, one in state[0].items() if not name.startswith(_OWN)}
        return (_made_and_wrapped, (make, arguments, self._rdmacoll_reduce.options()), *state)


def copy_methods(plain: type) -> dict[str, Any]:
    """The copy methods of a subclass of `plain`, for those that `plain` has. Without them, copies of Keras
    2's legacy optimizers would share the class."""
    return {name: _method(name) for name in ("__copy__", "__deepcopy__") if hasattr(plain, name)}


def _method(name: str) -> Callable[..., Any]:
    def copied(self: Any, *args: Any) -> Any:
        with _plain(self):
            made = getattr(self, name)(*args)
        for attribute in [one for one in vars(made) if one.startswith(_OWN)]:
            delattr(made, attribute)
        return _wrapped_as(self._rdmacoll_reduce.options(), made)

    return copied


@contextlib.contextmanager
def _plain(optimizer: Any) -> Iterator[None]:
    """Gives the optimizer its plain class meanwhile. The dynamic class cannot be found by its name, and
    Keras may save the name."""
    distributed = type(optimizer)
    object.__setattr__(optimizer, "__class__", distributed.__bases__[1])
    try:
        yield
    finally:
        object.__setattr__(optimizer, "__class__", distributed)


def _made_and_wrapped(make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return _wrapped_as(options, make(*arguments))


def _wrapped_as(options: dict[str, Any], optimizer: Any) -> Any:
    return wrapped(optimizer, f"{COPY_OF}{options.pop('name')}", **options)
