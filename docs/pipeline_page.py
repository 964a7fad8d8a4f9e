"""docs/pipeline.md: the passes of the compiler, from the table that runs them."""

from __future__ import annotations

from tilec.driver.pipeline_text import format_page

INTRODUCTION = """# The pipeline

*Made by `python docs/generate.py` from `tilec/driver/pipeline.py`; edit the texts there, not here.*

A kernel goes through these passes, in this order; whatever builds, checks, tunes or shows it runs a part of this table.
`tilec FILE --print-pipeline` says which of them run with the options that are given, and why the others do not,
`--dump-ir DIR` writes what each makes (or that it changed nothing), `--stop-after PASS` goes no further, and `--time`
says how long each took. A pass that *gives* something completes a stage, which `--emit` writes too. A pass that
*decides* something says so in the schedule trace, with who decided and why; the switches in brackets fix it.
"""


def pipeline() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *format_page(), ""])
