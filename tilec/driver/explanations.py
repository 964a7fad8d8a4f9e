"""What stands behind each diagnostic code: `tilec explain CODE`. The text is in `explanations.txt`."""

from __future__ import annotations

from pathlib import Path


def _parse(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    code = ""
    for line in text.splitlines():
        if line.startswith("    "):
            found[code].append(line.strip())
        elif line and not line.startswith("#"):
            code = line
            assert code not in found, f"{code} is explained twice"
            found[code] = []
    return {code: "\n".join(lines) for code, lines in found.items()}


EXPLANATIONS = _parse(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
