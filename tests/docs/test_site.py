"""The documents are a site: `mkdocs build --strict` makes it without a warning, and it fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.weekly

ROOT = Path(__file__).parents[2]


def test_the_site(tmp_path: Path) -> None:
    """One test, since it is one build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _every_page_is_there_and_reached_from_the_home_page(tmp_path)
    _files_of_the_repository_are_pages(tmp_path)
    _the_interface_is_made_of_docstrings(tmp_path)
    _reading_it_fetches_nothing_from_elsewhere(tmp_path)


def _every_page_is_there_and_reached_from_the_home_page(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    folders = [page.parent if page.name == "index" else page for page in pages]
    assert len(folders) > 30
    assert [f for f in folders if not (site / f / "index.html").is_file()] == []
    assert [f for f in folders if f.name and f'href="{f.as_posix()}/"' not in home] == []
    assert not (site / "generate.py").exists()


def _files_of_the_repository_are_pages(site: Path) -> None:
    page = (site / "repository" / "samples" / "flash_attention.tl" / "index.html").read_text(encoding="utf-8")
    assert "alloc_fragment" in page
    attention = (site / "attention" / "index.html").read_text(encoding="utf-8")
    assert 'href="../repository/samples/flash_attention.tl/"' in attention


def _the_interface_is_made_of_docstrings(site: Path) -> None:
    text = re.sub(r"<[^>]*>", "", (site / "api" / "index.html").read_text(encoding="utf-8"))
    assert "Compile a kernel file, or the text of one" in text and "What the kernel's author declared" in text


def _reading_it_fetches_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)\b[^>]*?src="?(https?:[^" >]+)|<link\b[^>]*?href="?(https?:[^" >]+)')
    found = {page.name: loaded.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert {name: urls for name, urls in found.items() if urls} == {}
