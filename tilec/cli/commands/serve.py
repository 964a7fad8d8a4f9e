"""`tilec serve`: the playground."""

from __future__ import annotations

from pathlib import Path

import click

from tilec.cli.console import report_mistakes
from tilec.support.diagnostics import raise_error
from tilec.support.options import CompileOptions
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
