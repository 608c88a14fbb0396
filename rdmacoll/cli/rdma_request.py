"""The settings' decision on RDMA: turned off, used if all ranks have it, or demanded. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rdmacoll.cli.doctor_facts import Settings


@dataclass(frozen=True)
class RdmaRequest:
    """The decision on RDMA. If both fields are empty, RDMA is used where all ranks have it. The texts are
    the user's words: "TF_RDMA_DEV_NAME=mlx5_0"."""

    off: str = ""  # the setting that turns RDMA off
    demands: tuple[str, ...] = ()  # settings that make unusable RDMA an error at the start

    @property
    def demanded(self) -> str:
        """The subject and verb of a sentence; empty if no setting demands RDMA.

        >>> RdmaRequest(demands=("A=1",)).demanded, RdmaRequest(demands=("A=1", "B=2")).demanded
        ('A=1 demands', 'A=1 and B=2 demand')
        """
        verb = "" if not self.demands else " demands" if len(self.demands) == 1 else " demand"
        return " and ".join(self.demands) + verb

    @property
    def cure(self) -> str:
        """The advice that ends the demand; empty if no setting demands RDMA.

        >>> RdmaRequest(demands=("A=1", "B=2")).cure
        'unset A and B'
        """
        names = [text.partition("=")[0] for text in self.demands]
        return f"unset {' and '.join(names)}" if names else ""


def rdma_request(settings: Settings) -> RdmaRequest:
    """The rule of cpp/transport/rdma/settings.cc: a setting that turns RDMA off overrides all that ask for
    it. The engine refuses RDMACOLL_TRANSPORT with rdma together with RDMACOLL_RDMA=false, so that pair
    cannot occur."""
    if settings.set_value("RDMACOLL_RDMA") == "false":
        return RdmaRequest(off=settings.set_text("RDMACOLL_RDMA"))
    transports = settings.set_value("RDMACOLL_TRANSPORT")
    if transports and "rdma" not in transports.split(","):
        return RdmaRequest(off=settings.set_text("RDMACOLL_TRANSPORT"))
    requesting = ("RDMACOLL_DEVICE", "RDMACOLL_TRANSPORT", "RDMACOLL_RDMA")
    return RdmaRequest(
        demands=tuple(settings.set_text(name) for name in requesting if settings.set_value(name))
    )
