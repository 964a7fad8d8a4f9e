"""`tilec lsp`: the command that editors start."""

from __future__ import annotations

from typing import Any

import click

from tilec.cli.console import reported
from tilec.cli.help import Grouped
from tilec.cli.kernel_options import compile_options, kernel_options
from tilec.support.diagnostics import fail
from tilec.support.options import documentation_url


@click.command(cls=Grouped)
@kernel_options
def lsp(verbose: bool, **given: Any) -> None:
    """Serve an editor on standard input and output, by the language server protocol.

    Diagnostics, hover, completion, definitions, references, renaming and formatting of kernel files: docs/editors.md
    says how editors start it. The options are those of the compiler, for all files. Needs pygls: pip install
    '.[lsp]' in tilec's folder.
    """
    with reported(None):
        options = compile_options(given)
        try:
            from tilec.lsp.server import serve
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] not in ("pygls", "lsprotocol"):
                raise
            fail("no-language-server", "pygls is not installed here", help="pip install '.[lsp]'")
    serve(options, documentation_url())
