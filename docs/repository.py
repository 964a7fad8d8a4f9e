"""For MkDocs (`hooks` in mkdocs.yml): files of the repository that pages link to become pages of the site, and pages
that the navigation does not name come last.

On GitHub `[gemm](../samples/gemm.tl)` opens the file. A site has no `..`: there it opens the page `repository/samples/
gemm.tl`, with the same text; what is only a test is copied as it is. A folder stands for its README.md, or for the list
of what is in it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".tl": "python", ".py": "python", ".toml": "toml", ".json": "json"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages that the navigation leaves out."""
    folder = Path(config.docs_dir)
    named = set(_names(config.nav))
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    if rest := [page for page in pages if page not in named]:
        assert config.nav is not None
        config.nav.append({"More": rest})
    return config


def _names(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry or ():
        yield from _names(part)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside docs/ that a page links to, or that such a page does."""
    pending = [file.src_uri for file in files.documentation_pages()]
    while pending:
        page = pending.pop()
        for path in _linked(page, _text(_path(page))):
            if files.get_file_from_path(uri := _uri(path)) is None and uri.startswith("repository/"):
                files.append(File.generated(config, uri, content=_text(path)))
                if uri.endswith(".md"):
                    pending.append(uri)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads the links of a page to the pages of those files."""
    here = page.file.src_uri

    def led(link: re.Match[str]) -> str:
        path = _resolved(here, link[1])
        if path is None:
            return link[0]
        return f"]({posixpath.relpath(_uri(path), posixpath.dirname(here) or '.')}{link[2] or ''})"

    return LINK.sub(led, markdown)


def _linked(page: str, text: str) -> Iterator[str]:
    for link in LINK.finditer(text):
        if (path := _resolved(page, link[1])) is not None:
            yield path


def _resolved(page: str, link: str) -> str | None:
    """The path in the repository of what a page links to, if it is there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_path(page)), link))
    if (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _path(page: str) -> str:
    """The path in the repository of what a page of the site shows."""
    if not page.startswith("repository/"):
        return f"docs/{page}"
    path = page.removeprefix("repository/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _uri(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".md"):
        return f"repository/{path}"
    return f"repository/{path}.txt" if _is_test(path) else f"repository/{path}.md"


def _is_test(path: str) -> bool:
    """A file of the tests: hundreds are linked, and a page of the site takes longer to make than to copy."""
    return path.startswith("tests/") and (ROOT / path).is_file()


def _text(path: str) -> str:
    """A file as Markdown."""
    file = ROOT / path
    if file.is_dir():
        return f"# {path}\n\n" + "".join(f"* `{inner.name}`\n" for inner in sorted(file.iterdir()))
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md") or _is_test(path):
        return text
    return f"# {file.name}\n\n`{path}`\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
