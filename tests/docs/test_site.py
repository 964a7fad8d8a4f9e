"""The documents are a site: `python docs/site.py` makes it without a warning, and it fetches nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilec.driver.explanations import EXPLANATIONS, build_explanation_url

ROOT = Path(__file__).parents[2]


@pytest.mark.weekly
def test_the_site(tmp_path: Path) -> None:
    """One test, since it is one build."""
    command = [sys.executable, str(ROOT / "docs" / "site.py"), "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    _every_page_is_there_and_reached_from_the_home_page(site)
    _the_search_index_has_every_page(site)
    _every_diagnostic_code_has_its_address(site)
    _files_of_the_repository_are_pages(site)
    _the_interface_is_made_of_docstrings(site)
    _reading_it_fetches_nothing_from_elsewhere(site)


def _folders() -> list[Path]:
    """Return where the site has each page of docs/."""
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    return [page.parent if page.name == "index" else page for page in pages]


def _every_page_is_there_and_reached_from_the_home_page(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert len(_folders()) > 30
    assert [f for f in _folders() if not (site / f / "index.html").is_file()] == []
    assert [f for f in _folders() if f.name and f'href="./{f.as_posix()}/"' not in home] == []
    assert [path.name for path in site.rglob("*.py")] == []


def _the_search_index_has_every_page(site: Path) -> None:
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    found = {item["location"].partition("#")[0] for item in items}
    assert [f for f in _folders() if (f"{f.as_posix()}/" if f.name else "") not in found] == []
    assert any("shape-mismatch" in item["title"] for item in items)


def _every_diagnostic_code_has_its_address(site: Path) -> None:
    page = (site / "diagnostics" / "index.html").read_text(encoding="utf-8")
    assert {build_explanation_url(code, "https://x") for code in re.findall(r'<h2 id="([^"]*)"', page)} == {
        f"https://x/diagnostics/#{code}" for code in EXPLANATIONS
    }


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
