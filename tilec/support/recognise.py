"""Recognises files that are no kernel files, so that a user who names the wrong file gets one clear message."""

from __future__ import annotations

import re

from tilec.support.diagnostics import raise_error

_BINARY = (
    (b"\x7fELF", "machine code", "use tilec inspect to show how a cubin is launched"),
    (b"\x50\xed\x55\xba", "a fatbin", "it is compiled from a kernel file: give that file"),
    (b"PK\x03\x04", "an archive", "pass arrays by --inputs of tilec emulate"),
)
"""The first bytes of such files."""

_PTX = re.compile(r"\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*\.version\s", re.DOTALL)
_C = re.compile(
    r"\s*(?://|/\*|#\s*(?:include\s*[<\"]|pragma\s+once\b|ifndef\s+\w+\s*\n)"
    r"|(?:extern\s+\"C\"\s*\{?\s*)?(?:__global__|__device__|template\s*<))"
)


def refuse_binary(path: str, data: bytes) -> None:
    """Raise `CompileError` (`not-a-kernel`) where the first bytes are those of machine code or another binary
    format."""
    for first, what, help_text in _BINARY:
        if data.startswith(first):
            raise_error("not-a-kernel", f"{path} is {what}, not text", help=help_text)


def refuse_other_languages(path: str, text: str) -> None:
    """Raise `CompileError` (`not-a-kernel`) where the text is in another language."""
    if _PTX.match(text):
        raise_error("not-a-kernel", f"{path} is PTX, not a kernel file", help="use tilec emulate FILE.ptx to run it")
    if _C.match(text):
        language = "CUDA C++" if "__global__" in text else "C, C++ or CUDA"
        raise_error(
            "not-a-kernel", f"{path} is {language}, not a kernel file", help="use tilec new NAME to make a kernel file"
        )
    if text.lstrip().startswith("{"):
        raise_error("not-a-kernel", f"{path} is JSON, not a kernel file", help="pass a schedule trace by --schedule")
