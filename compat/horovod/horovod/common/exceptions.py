"""The errors of Horovod's elastic worlds."""

from rdmacoll._horovod.elastic import HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """The hosts of an elastic world have changed. skip_sync: whether the state stays as it is."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
