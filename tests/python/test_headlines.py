"""The figures of the documents: the picture of the README, and the processor of every measurement."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ranks import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import headlines

DATA = json.loads(headlines.DATA.read_text())
ROWS = [(group, row) for group in DATA["groups"] for row in group["rows"]]
MEASUREMENTS = sorted(headlines.FOLDER.glob("20*.md"))
PROCESSOR = re.compile(r"AMD EPYC|Intel Xeon|processor was not recorded")


def test_the_picture_is_that_of_its_figures():
    assert headlines.PICTURE.read_text() == headlines.draw(DATA), "run python benchmarks/headlines.py"
    ElementTree.fromstring(headlines.PICTURE.read_text())


@pytest.mark.parametrize(("group", "row"), ROWS, ids=[f"{g['peer']}: {row['label']}" for g, row in ROWS])
def test_a_figure_of_the_picture_is_one_of_its_measurement(group, row):
    text = (headlines.FOLDER / row["source"]).read_text()
    cells = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", text)
    assert row["ratio"] in cells
    assert headlines.SMALLEST < float(row["ratio"]) < headlines.LARGEST
    assert PROCESSOR.search(DATA["machine"]).group() in text  # type: ignore[union-attr]


def test_the_readme_shows_the_picture_with_processor_and_dates():
    readme = (ROOT / "README.md").read_text()
    begin, end = readme.index("](docs/measurements/headlines.svg)"), readme.index("## Four lines")
    assert begin < end
    for fact in [PROCESSOR.search(DATA["machine"]).group(), *re.findall(r"20[\d-]+", DATA["machine"])]:  # type: ignore[union-attr]
        assert fact in readme[begin:end]


@pytest.mark.parametrize("path", MEASUREMENTS, ids=[path.stem for path in MEASUREMENTS])
def test_a_measurement_names_its_processor(path: Path):
    assert PROCESSOR.search(path.read_text().partition("\n## ")[0])
