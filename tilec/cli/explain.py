"""`tilec explain CODE`: more about an error or warning."""

from __future__ import annotations

import re

import click

from tilec.cli.console import reported
from tilec.cli.words import codes, one_of
from tilec.support.diagnostics import fail


@click.command()
@click.argument("code", required=False, shell_complete=one_of(codes))
def explain(code: str | None) -> None:
    """Say more about an error or warning: explain CODE. Without a code, list them all."""
    from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES

    if code is None:
        for name in sorted(EXPLANATIONS):
            # Up to the first full stop that ends a sentence: those in `T.copy` and `from . import *` do not.
            first = re.split(r"(?<!\s)\.\s", " ".join(EXPLANATIONS[name].split()))[0]
            print(f"{name:24} {first.removesuffix('.')}")
        return
    code = code.strip("[]")
    if code in FORMER_CODES:
        print(f"{code} is called {FORMER_CODES[code]} now:\n")
        code = FORMER_CODES[code]
    if code not in EXPLANATIONS:
        import difflib

        near = difflib.get_close_matches(code, EXPLANATIONS, n=1)
        with reported(None):
            fail("unknown-code", f"there is no error or warning '{code}'",
                 help=f"did you mean '{near[0]}'?" if near else "'tilec explain' lists them")  # fmt: skip
    print(f"{code}\n\n{EXPLANATIONS[code]}")
