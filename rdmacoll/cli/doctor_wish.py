"""What the settings say of RDMA: it is turned off, welcome where all ranks have it, or demanded. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rdmacoll.cli.doctor_facts import Settings


@dataclass(frozen=True)
class RdmaWish:
    """Neither of the two: RDMA is welcome. The texts are what the user wrote: "TF_RDMA_DEV_NAME=mlx5_0"."""

    off: str = ""  # what turns it off
    demands: tuple[str, ...] = ()  # what makes RDMA that cannot be used an error at the start

    @property
    def demanded(self) -> str:
        """For sentences, up to the verb; empty where nothing demands it.

        >>> RdmaWish(demands=("A=1",)).demanded, RdmaWish(demands=("A=1", "B=2")).demanded
        ('A=1 demands', 'A=1 and B=2 demand')
        """
        verb = "" if not self.demands else " demands" if len(self.demands) == 1 else " demand"
        return " and ".join(self.demands) + verb

    @property
    def cure(self) -> str:
        """How to demand it no more; empty where nothing demands it.

        >>> RdmaWish(demands=("A=1", "B=2")).cure
        'unset A and B'
        """
        names = [text.partition("=")[0] for text in self.demands]
        return f"unset {' and '.join(names)}" if names else ""


def rdma_wish(settings: Settings) -> RdmaWish:
    """The rule of cpp/base/config_relations.cc: what turns RDMA off is above all that asks for it. (That
    RDMACOLL_TRANSPORT names it and RDMACOLL_RDMA forbids it is refused before.)"""
    if settings.given("RDMACOLL_RDMA") == "false":
        return RdmaWish(off=settings.told("RDMACOLL_RDMA"))
    transports = settings.given("RDMACOLL_TRANSPORT")
    if transports and "rdma" not in transports.split(","):
        return RdmaWish(off=settings.told("RDMACOLL_TRANSPORT"))
    asking = ("RDMACOLL_DEVICE", "RDMACOLL_TRANSPORT", "RDMACOLL_RDMA")
    return RdmaWish(demands=tuple(settings.told(name) for name in asking if settings.given(name)))
