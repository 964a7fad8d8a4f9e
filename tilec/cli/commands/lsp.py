"""`tilec lsp`: the command that editors start."""

from __future__ import annotations

from typing import Any

import click

from tilec.cli.console import report_mistakes
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, make_compile_options
from tilec.support.diagnostics import raise_error
from tilec.support.options import documentation_url


@click.command(cls=GroupedCommand)
@add_kernel_options
def lsp(verbose: bool, **given: Any) -> None:
    """Serve an editor on standard input and output, by the language server protocol.

    Diagnostics, hover, completion, definitions, references, renaming and formatting of kernel files: docs/editors.md
    says how editors start it. The options are those of the compiler, for all files. Needs pygls: pip install
    '.[lsp]' in tilec's folder.
    """
    with report_mistakes(None):
        options = make_compile_options(given)
        try:
            from tilec.lsp.server import serve_editor
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] not in ("pygls", "lsprotocol"):
                raise
            raise_error("no-language-server", "pygls is not installed here", help="pip install '.[lsp]'")
    serve_editor(options, documentation_url())
