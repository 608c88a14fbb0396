"""The pages of the documentation site that are generated, and its links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT

import rdmacoll.engine
import rdmacoll.ps
from rdmacoll._abi.library import load

sys.path.insert(0, str(ROOT / "release/docs"))
import pages


def test_the_site_has_every_document_setting_command_and_public_name(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    pages.write(folder, [rdmacoll.engine, rdmacoll.ps])
    documents = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    generated = {"settings.md", "algorithms.md", "command-reference.md", "api.md"}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    assert found == documents | generated | set(pages.ADDED.values())
    settings = (folder / "settings.md").read_text()
    assert re.findall(r"^## (.*)$", settings, re.MULTILINE) == [row["name"] for row in load().settings()]
    commands = (folder / "command-reference.md").read_text()
    for words in ("rdmacoll doctor", "rdmacoll bench pair", "rdmacoll sim faults"):
        assert f"\n## {words}\n" in commands
    assert "--pair" in commands
    names = (folder / "api.md").read_text()
    for name in ("rdmacoll.engine.allreduce", "rdmacoll.ps.push"):
        assert f"\n### {name}\n" in names


def test_links_of_the_site_lead_to_its_pages_and_lose_targets_that_are_none(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    pages.write(folder, [])
    for page in folder.rglob("*.md"):
        for target in re.findall(
            r"\]\(([^)\s#]+)", re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        ):
            assert "://" in target or (page.parent / target).is_file(), f"{page.name}: {target}"
    assert "[plan mode](internals/plan-mode.md)" in (folder / "architecture.md").read_text()
    assert "is a whole program" in (folder / "quick-start.md").read_text()
    assert "01_keras_digits.py](" not in (folder / "quick-start.md").read_text()


def test_every_page_of_the_sites_menu_is_written(tmp_path: Path) -> None:
    pages.write(tmp_path / "pages", [])
    menu = (ROOT / "release/docs/mkdocs.yml").read_text()
    for name in re.findall(r"[\w/-]+\.md", menu):
        assert (tmp_path / "pages" / name).is_file(), name


def test_a_link_to_a_missing_file_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "one.md"
    with pytest.raises(SystemExit, match=r"one\.md links to nowhere\.md, which does not exist"):
        pages.with_links_of_the_site("see [that](nowhere.md)", source, tmp_path / "page.md", {})
    source.touch()
    assert pages.with_links_of_the_site("[me](one.md)", source, tmp_path / "page.md", {}) == "me"


def test_links_of_documents_lead_to_files() -> None:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / name).read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            assert "://" in target or ((ROOT / name).parent / target).exists(), f"{name}: {target}"
