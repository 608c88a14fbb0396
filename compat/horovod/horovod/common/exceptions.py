"""The errors of Horovod's elastic worlds."""


class HorovodInternalError(RuntimeError):
    """A collective has failed. The errors of failed ranks are of rdmacoll's classes and TensorFlow's."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """The hosts of an elastic world have changed. skip_sync: whether the state stays as it is."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
