"""On a screen of 400 pixels nothing of the site is cut off, nor of the pages that commands write, and search finds."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from headless_browser import Browser, find_browser

from tilec.cli.main import main

ROOT = Path(__file__).parents[2]
GEMM = str(ROOT / "samples" / "gemm.tl")

pytestmark = [pytest.mark.peers, pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")]

# What reaches beyond the screen's right edge, and neither scrolls nor is inside of something that does.
CUT_OFF = """(() => {
    const width = document.documentElement.clientWidth, scrolls = (e) =>
        e && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    const found = [...document.querySelectorAll("body *")].filter((e) => {
        const box = e.getBoundingClientRect();
        return box.width && box.right > width + 1 && box.left < width && e.checkVisibility({visibilityProperty: true})
            && !scrolls(e.parentElement) && !e.closest("nav, [data-md-component=sidebar]");
    });
    return JSON.stringify([document.documentElement.scrollWidth, found.map((e) => e.outerHTML.slice(0, 120))]);
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    made = Browser(program, tmp_path_factory.mktemp("browser"), width=400)
    yield made
    made.end()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the site, and its address."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "docs" / "site.py", "--folder", folder], check=True, capture_output=True)
    handler = partial(_Quiet, directory=str(folder / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder / "site", f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def cut_off(browser: Browser, address: str) -> list[str]:
    browser.open(address)
    width, found = json.loads(browser.evaluate(CUT_OFF))
    return [*found, *([f"the page is {width} wide"] if width > 400 else [])]


def test_what_is_cut_off_is_found(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    head = '<meta name="viewport" content="width=device-width">'
    page.write_text(f'{head}<p style="width: 700px">too wide</p><div style="overflow: auto"><p style="width: 700px">')
    (found, _) = cut_off(browser, page.as_uri())
    assert "too wide" in found


def test_nothing_of_the_site_is_cut_off(browser: Browser, site: tuple[Path, str]) -> None:
    folder, address = site
    pages = [path.parent.relative_to(folder).as_posix() for path in folder.rglob("index.html")]
    assert len(pages) > 100
    found = {page: cut_off(browser, f"{address}{page}/") for page in pages}
    assert {page: elements for page, elements in found.items() if elements} == {}


def test_search_finds_a_page(browser: Browser, site: tuple[Path, str]) -> None:
    browser.open(site[1])
    browser.evaluate("document.querySelector('.md-search__button').click()")
    found = browser.evaluate("""new Promise((resolve) => {
        let looks = 0;
        const seen = () => {
            // The field and the hits are inside of an element with a tree of its own.
            const root = [...document.querySelectorAll("body *")].find((e) => e.shadowRoot)?.shadowRoot;
            const field = root?.querySelector("input");
            if (field && !field.value) {
                field.value = "shape-mismatch";
                field.dispatchEvent(new Event("input", {bubbles: true}));
            }
            const links = [...root?.querySelectorAll("a") ?? []].map((a) => a.href);
            const hit = links.find((href) => href.includes("#shape-mismatch"));
            hit || ++looks === 1200 ? resolve(hit ?? "nothing") : setTimeout(seen, 100);
        };
        seen();
    })""")
    assert "diagnostics/" in found


@pytest.mark.parametrize("command", [["report", GEMM, "--html"], ["simulate", GEMM, "--html"]], ids=lambda c: c[0])
def test_nothing_of_a_page_that_a_command_writes_is_cut_off(
    command: list[str], browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    page = tmp_path / "page.html"
    assert main([*command, str(page)]) == 0
    assert cut_off(browser, page.as_uri()) == []
