"""The explanation of each diagnostic code, for `tilec explain CODE`. The texts are in `explanations.txt`."""

from __future__ import annotations

from pathlib import Path


def _parse_explanations(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Parse the file of explanations into texts by code, and present codes by former code."""
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


def build_explanation_url(code: str, site: str) -> str:
    """Return the web address of a code's explanation, in the documentation at `site`."""
    return f"{site.rstrip('/')}/diagnostics/#{code}"


EXPLANATIONS, FORMER_CODES = _parse_explanations(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
