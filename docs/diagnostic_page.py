"""docs/diagnostics.md: every diagnostic code, from tilec/driver/explanations.txt, and kernels that show it."""

from __future__ import annotations

import re
from pathlib import Path

from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES

ERRORS = Path(__file__).parents[1] / "tests" / "errors"

INTRODUCTION = """# Diagnostics

*Made by `python docs/generate.py` from `tilec/driver/explanations.txt`; edit the texts there, not here.*

Every error, warning and lint carries a code in brackets: `error[shape-mismatch]: …`. `tilec explain CODE` says what
stands here. `-Wno-CODE` silences a warning, `-Werror=CODE` makes an error of it, `-Werror` of all; lints have
`--lint=error` and `--lint=off`. A code that was called otherwise in an earlier version is still understood by that.
*Shown by* names a kernel of the tests that is refused or warned of so, with the message beside the line to blame.

"""


def diagnostics() -> str:
    examples = _examples()
    entries = []
    once = {code: f"\n*Once called* `{former}`*.*\n" for former, code in FORMER_CODES.items()}
    for code in sorted(EXPLANATIONS):
        shown = "".join(f"[{path.stem}](../tests/errors/{path.name})" for path in examples.get(code, ())[:1])
        entries.append(
            f"## {code}\n\n{_escaped(EXPLANATIONS[code])}\n"
            + (f"\n*Shown by* {shown}.\n" if shown else "")
            + once.get(code, "")
        )
    return INTRODUCTION + "\n".join(entries)


def _examples() -> dict[str, list[Path]]:
    """The kernels that expect a code, the shortest first."""
    found: dict[str, list[Path]] = {}
    sources = {path: path.read_text(encoding="utf-8") for path in ERRORS.glob("*.tl")}
    for path in sorted(sources, key=lambda path: (len(sources[path]), path.name)):
        for code in dict.fromkeys(re.findall(r"# (?:error|warning)(?:@\d+)?: \[([a-z0-9-]+)\]", sources[path])):
            found.setdefault(code, []).append(path)
    return found


def _escaped(text: str) -> str:
    """An explanation is plain text, but for names in backticks: Markdown is to take no other character for its own."""
    parts = text.split("`")
    return "`".join(part if n % 2 else re.sub(r"([*<])", r"\\\1", part) for n, part in enumerate(parts))
