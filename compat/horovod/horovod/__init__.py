"""The names of Horovod 0.28.1 over rdmacoll: programs that import `horovod` run unchanged."""

from importlib import metadata
from pathlib import Path

from rdmacoll import run as run

__version__ = "0.28.1"  # programs read it as numbers between dots


def _refuse_horovod() -> None:
    """Raises ImportError if the distribution `horovod` is in this folder, too: its files and these would mix.

    `rdmacoll run --horovod` shows these files from a folder of their own, so there nothing mixes.
    """
    try:
        other = Path(str(metadata.distribution("horovod").locate_file("horovod")))
    except metadata.PackageNotFoundError:
        return
    if other.resolve() != Path(__file__).resolve().parent:
        return
    raise ImportError(
        "the distributions horovod and rdmacoll-horovod are both installed, and provide one package: "
        "pip uninstall horovod rdmacoll-horovod, and install the one that you want."
    )


_refuse_horovod()
