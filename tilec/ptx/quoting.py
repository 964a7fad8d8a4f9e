"""Quotes arbitrary text in PTX: names of files, comments. The assembler takes printable ASCII only, and no escapes in
strings: any other character becomes the hexadecimal bytes of its UTF-8, as in a URL."""

from __future__ import annotations

import re

_HEXADECIMAL = re.compile(rb"%([0-9A-F]{2})")
_OTHERS = re.compile(r"[^ -~]|[\"%\\]")


def quote_text(text: str) -> str:
    """Return a text as PTX takes it, `%C3%A9.tl` for `é.tl`: different texts stay different."""
    return _OTHERS.sub(lambda found: "".join(f"%{byte:02X}" for byte in _encode_text(found[0])), text)


def unquote_text(text: str) -> str:
    """Return the original of a text that `quote_text` has made."""
    data = _HEXADECIMAL.sub(lambda found: bytes([int(found[1], 16)]), _encode_text(text))
    return data.decode(errors="surrogateescape")


def _encode_text(text: str) -> bytes:
    """Encode a text in which surrogates stand for bytes that are not UTF-8, as in file names."""
    return text.encode(errors="surrogateescape")
