"""Draws the results of `rdma_peers.py --json`: python benchmarks/rdma_plot.py FILE.json PICTURE.svg

Needs matplotlib: pip install 'rdmacoll[plot]'.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import rdma_goals

from rdmacoll._base.text import counted

matplotlib.use("Agg")
from matplotlib import pyplot

# Key of the report, key of the numbers in a row, title, the peer's name.
PANELS = (
    ("allreduce", "time_us", "allreduce (µs)", "Open MPI"),
    ("pair", "latency_us", "one way (µs)", "ib_send_lat"),
    ("pair", "GB_per_s", "bandwidth (GB/s)", "ib_write_bw"),
)


def draw(report: dict[str, Any]) -> Any:
    """Returns the figure, with a panel for each measured quantity. Both axes are logarithmic."""
    panels = [panel for panel in PANELS if panel[0] in report]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (key, quantity, title, peer) in zip(axes[0], panels):
        rows: Sequence[rdma_goals.Row] = report[key]
        sizes = [row["bytes"] for row in rows]
        for who, label in (("ours", "rdmacoll"), ("peer", peer)):
            axis.loglog(sizes, [row[quantity][who] for row in rows], marker="o", label=label)
        axis.set(title=title, xlabel="bytes")
        axis.legend()
    figure.suptitle(f"{counted(report['processors'], 'processor')}, {' and '.join(report['devices'])}")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(json.loads(options.report.read_text())).savefig(options.picture)


if __name__ == "__main__":
    main()
