"""The errors of Horovod that rdmacoll has no class for."""

from __future__ import annotations

from rdmacoll.errors import ConfigError


class UnsupportedError(ConfigError, NotImplementedError):
    """A combination of arguments that Horovod does not implement either."""
