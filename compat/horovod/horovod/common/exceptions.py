"""The errors of Horovod's elastic worlds."""

from rdmacoll._horovod.elastic import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
