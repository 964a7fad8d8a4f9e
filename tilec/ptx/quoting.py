"""Texts in PTX that are not PTX: names of files, comments. The assembler takes printable ASCII alone, and knows no
escapes in strings: anything else is written as the bytes of its UTF-8 in hexadecimal, as in an address of the web."""

from __future__ import annotations

import re

_HEXADECIMAL = re.compile(rb"%([0-9A-F]{2})")
_OTHERS = re.compile(r"[^ -~]|[\"%\\]")


def quote_text(text: str) -> str:
    """Return a text as PTX takes it, `%C3%A9.tl` for `é.tl`: different texts stay different."""
    return _OTHERS.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), text)


def unquote_text(text: str) -> str:
    """Return the text that `quote_text` was given."""
    data = _HEXADECIMAL.sub(lambda found: bytes([int(found[1], 16)]), _bytes(text))
    return data.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    """File names that are not UTF-8 have surrogates for their bytes."""
    return text.encode(errors="surrogateescape")
