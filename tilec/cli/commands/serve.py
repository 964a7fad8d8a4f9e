"""`tilec serve` and `tilec lsp`: the playground in a browser, and the server that editors start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tilec.cli.console import report_mistakes
from tilec.cli.help import GroupedCommand
from tilec.cli.kernel_options import add_kernel_options, make_compile_options
from tilec.support.diagnostics import raise_error
from tilec.support.options import CompileOptions, documentation_url
from tilec.support.resources import target_names
from tilec.target.table import refuse_target


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=8300, show_default=True, help="0: any free port.")
@click.option("--target", default=CompileOptions().target, show_default=True, help="The target selected at first.")
def serve(folder: Path, port: int, target: str) -> None:
    """Edit the kernels of FOLDER in a browser, and see what comes of them whenever they are saved: the page of `tilec
    report --html`. For this machine alone: it listens on 127.0.0.1, and reaches no file but the folder's kernels."""
    with report_mistakes(None):
        if not folder.is_dir():
            raise_error("no-such-file", f"there is no folder {folder}")
        if target not in target_names():
            refuse_target(target)
        from tilec.serve.server import Server

        try:
            server = Server(folder, port, target)
        except OSError as error:
            title = f"cannot listen on port {port}: {error.strerror}"
            raise_error("port-taken", title, help="--port 0 takes a free port")
    print(f"{server.url} (Ctrl-C ends)", flush=True)
    with server:
        server.serve_forever()


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
