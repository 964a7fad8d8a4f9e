"""docs/tilelang_names.md: every name of TileLang, from tests/unit/surface.txt, and what tilec says of it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tilec.ops.language.unavailable_names import REFUSED

SURFACE = Path(__file__).parents[1] / "tests" / "unit" / "surface.txt"

INTRODUCTION = """# Names of TileLang

*Made by `python docs/generate.py` from `tests/unit/surface.txt`, which a test keeps true, and
`tilec/ops/language/unavailable_names.py`.*

Of the {count} names that TileLang's own examples and tests use, tilec carries out {works}. The other {refused}
are recognised, and refused with a reason. What a name does is in [the language](language.md); [for users of
TileLang](tilelang.md) says how kernels are brought over.

"""


def tilelang_names() -> str:
    known = [line.split() for line in SURFACE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    works = sum(status == "works" for _, status in known)
    text = INTRODUCTION.format(count=len(known), works=works, refused=len(known) - works)
    return text + "\n".join([*_refused(), *_sections()])


def _refused() -> list[str]:
    """A table for each reason, with names that nobody was seen to use too."""
    lines = ["## Refused\n"]
    for reason, rows in groupby(REFUSED.items(), lambda row: (row[1].code, row[1].title)):
        lines += [
            f"### {reason[1][0].upper()}{reason[1][1:]}\n",
            f"`{reason[0]}`\n",
            "| name | instead |",
            "| --- | --- |",
        ]
        for instead, alike in groupby(rows, lambda row: row[1].help):
            shown = ", ".join(f"`T.{name}`" for name, _ in alike)
            lines.append(f"| {shown} | {instead or ''} |")
        lines.append("")
    return lines


def _sections() -> list[str]:
    """What works, section by section of the list."""
    lines = ["## Carried out\n"]
    for line in SURFACE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            lines.append(f"\n**{line[2:]}**:")
        elif line.endswith("works"):
            lines.append(f"`T.{line.split()[0]}`")
    return [*lines, ""]
