"""The fenced blocks of the documents, with what stands on their opening line and in a comment above it.

```python title="gemm.tl"        a file of the page: its commands find it
```sh                            commands; those of tilec are run
```text                          behind a block of commands: what they write; a line `…` stands for any number of lines
<!-- not run: needs a GPU -->    above a block: why nothing runs it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
GENERATED = ("docs/language.md", "docs/language/", "docs/diagnostics.md", "docs/tilelang_names.md", "docs/pipeline.md")
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<comment>[^\n]*) -->\n+)?"
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """`start` and `end` are where its text stands in the page."""

    page: str
    line: int
    language: str
    title: str | None
    comment: str | None
    text: str
    start: int
    end: int

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every document that is written by hand, as a path in the repository."""
    found = ["README.md", "CONTRIBUTING.md", *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
    return sorted(page for page in found if not page.startswith(GENERATED))


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(
            page,
            text.count("\n", 0, match.start("text")),
            match["language"],
            match["title"],
            match["comment"],
            dedent(match["text"]),
            match.start("text"),
            match.end("text"),
        )
        for match in BLOCK.finditer(text)
    ]
    fences = len(re.findall(r"^ *```", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page}: a fence that is not closed, or opened in another way"
    return found
