"""Makes a site of the documents: `python docs/site.py`, which runs Zensical.

On GitHub `[gemm](../samples/gemm.tl)` opens the file. A site has no `..`: there it opens the page `repository/samples/
gemm.tl`, with the same text; what is only a test is copied as it is. A folder stands for its README.md, or for the list
of what is in it. Pages that the navigation of mkdocs.yml does not name come last.

All of this is written into a folder, as Markdown and one configuration without plugins of our own, so that any program
that reads mkdocs.yml can make the site of it.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^(```+).*?^\1 *$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".tl": "python", ".py": "python", ".toml": "toml", ".json": "json"}
COPIED = {".svg", ".css"}


def write_sources(folder: Path) -> Path:
    """Write all pages below a folder, and return the configuration that makes a site of them, in `site` beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    pending, seen = list(pages), set(pages)
    while pending:
        page = pending.pop()
        text = _text(_path(page))
        _write(folder / "docs" / page, _with_links_of_the_site(page, text))
        found = {_uri(path) for path in _linked(page, text)}
        new = sorted(uri for uri in found - seen if uri.startswith("repository/"))
        seen.update(new)
        pending += (uri for uri in new if uri.endswith(".md"))
        for uri in new:
            if not uri.endswith(".md"):
                _write(folder / "docs" / uri, _text(_path(uri)))
    for path in DOCS.rglob("*"):
        if path.suffix in COPIED:
            _write(folder / "docs" / path.relative_to(DOCS), path.read_text(encoding="utf-8"))
    return _write_configuration(folder, pages)


def _write_configuration(folder: Path, pages: list[str]) -> Path:
    """Write mkdocs.yml with the pages that its navigation leaves out, and an absolute path to the package."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(_names(config["nav"]))
    if rest := [page for page in pages if page not in named]:
        config["nav"].append({"More": rest})
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            python = plugin["mkdocstrings"]["handlers"]["python"]
            python["paths"] = [str(ROOT / path) for path in python["paths"]]
    path = folder / "mkdocs.yml"
    _write(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    return path


def _names(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry or ():
        yield from _names(part)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# ---- links -----------------------------------------------------------------------------------------------------------


def _with_links_of_the_site(page: str, text: str) -> str:
    """Lead the links of a page to the pages of the files that they name; code stays as it is."""

    def lead(link: re.Match[str]) -> str:
        path = _resolved(page, link[1])
        if path is None:
            return link[0]
        return f"]({posixpath.relpath(_uri(path), posixpath.dirname(page) or '.')}{link[2] or ''})"

    made, at = [], 0
    for code in FENCED.finditer(text):
        made += [LINK.sub(lead, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*made, LINK.sub(lead, text[at:])])


def _linked(page: str, text: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to."""
    for link in LINK.finditer(FENCED.sub("", text)):
        if (path := _resolved(page, link[1])) is not None:
            yield path


def _resolved(page: str, link: str) -> str | None:
    """Return the path in the repository of what a page links to, if it is there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_path(page)), link))
    if (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _path(page: str) -> str:
    """Return the path in the repository of what a page of the site shows."""
    if not page.startswith("repository/"):
        return f"docs/{page}"
    path = page.removeprefix("repository/")
    return path if (ROOT / path).exists() else path.rpartition(".")[0]


def _uri(path: str) -> str:
    """Return the page of the site that shows a file of the repository."""
    if path.startswith("docs/") and path.endswith((".md", *COPIED)):
        return path.removeprefix("docs/")
    if path.endswith(".md"):
        return f"repository/{path}"
    return f"repository/{path}.txt" if _is_test(path) else f"repository/{path}.md"


def _is_test(path: str) -> bool:
    """Tell whether this is a file of the tests: hundreds are linked, and a page takes longer to make than to copy."""
    return path.startswith("tests/") and (ROOT / path).is_file()


def _text(path: str) -> str:
    """Return a file as Markdown."""
    file = ROOT / path
    if file.is_dir():
        return f"# {path}\n\n" + "".join(f"* `{inner.name}`\n" for inner in sorted(file.iterdir()))
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md") or _is_test(path):
        return text
    return f"# {file.name}\n\n`{path}`\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = "where its pages are written, and where the site is then in `site` (default: build/documents)"
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "documents", help=where)
    parser.add_argument("--serve", action="store_true", help="show it on this machine, as it is now, and stay")
    asked = parser.parse_args()
    config = write_sources(asked.folder.resolve())
    command = [sys.executable, "-m", "zensical", *(["serve"] if asked.serve else ["build", "--strict"])]
    return subprocess.run([*command, "--config-file", str(config)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
