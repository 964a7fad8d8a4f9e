"""What stands behind each diagnostic code: `tilec explain CODE`. The text is in `explanations.txt`."""

from __future__ import annotations

from pathlib import Path


def _parse(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The texts by their codes, and the codes by what they were once called."""
    found: dict[str, list[str]] = {}
    former: dict[str, str] = {}
    code = ""
    for line in text.splitlines():
        if line.startswith("    "):
            found[code].append(line.strip())
        elif line and not line.startswith("#"):
            code, _, once = line.partition(", once ")
            assert code not in found, f"{code} is explained twice"
            found[code] = []
            if once:
                former[once] = code
    return {code: "\n".join(lines) for code, lines in found.items()}, former


def explanation_url(code: str, site: str) -> str:
    """Return where a site of the documents explains a code: docs/diagnostics.md has a heading for each."""
    return f"{site.rstrip('/')}/diagnostics/#{code}"


EXPLANATIONS, FORMER_CODES = _parse(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
