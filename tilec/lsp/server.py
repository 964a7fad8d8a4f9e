"""The language server: receives the protocol's requests and sends answers. No content of a file or request ends it."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

from tilec import __version__
from tilec.lsp import answers, findings
from tilec.lsp.documents import Document, Documents
from tilec.lsp.helper import WorkerClient
from tilec.lsp.positions import CodeUnits
from tilec.lsp.worker import Question
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions

PAUSE = 0.15
"""The seconds without a change after which a text is analysed."""
CHECK_SECONDS, SCHEDULE_SECONDS = 20.0, 300.0


class _Protocol(LanguageServerProtocol):
    """Also answers malformed requests, because their sender waits."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Parse a message of the protocol; for a malformed request send an error answer and raise it again."""
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            if "method" in data and "id" in data:
                self._send_response(data["id"], error=error.to_response_error())
            raise


class Server(LanguageServer):
    """The open files, and the two workers that analyse them: errors do not wait for schedules."""

    def __init__(self, options: CompileOptions, site: str | None) -> None:
        # Kernels are small: each change sends the whole text, so that there are no edits to apply.
        whole = types.TextDocumentSyncKind.Full
        super().__init__("tilec", __version__, text_document_sync_kind=whole, protocol_cls=_Protocol)
        self.options = options
        self.site = site
        self.documents = Documents()
        self.checker, self.scheduler = WorkerClient(CHECK_SECONDS), WorkerClient(SCHEDULE_SECONDS)
        self._looking: set[asyncio.Task[None]] = set()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Write an error's type and message, without its traceback, to the editor's log."""
        self.log(f"{type(error).__name__}: {error}")

    def log(self, message: str) -> None:
        """Write a message to the editor's log as an error."""
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, message))

    @property
    def units(self) -> CodeUnits:
        """Return the code units that the editor and the server agreed on."""
        encoding = self.workspace.position_encoding
        return CodeUnits(str(encoding.value if isinstance(encoding, types.PositionEncodingKind) else encoding))

    # ---- analysis of a text ------------------------------------------------------------------------------------------

    def start_analysis(self, document: Document, pause: float = 0.0) -> None:
        """Start a task that checks and schedules a document after a pause, and abandon an older scheduling of it."""
        self.scheduler.abandon_file(document.source.path)
        task = asyncio.ensure_future(self._analyse(document, document.edition, pause))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _analyse(self, document: Document, edition: int, pause: float) -> None:
        """Wait, check a text and publish the result; if it has no errors, schedule it and publish again. It stops when
        the text has changed, and logs a check that fails.
        """
        is_current = functools.partial(self.documents.is_current, document, edition)
        await asyncio.sleep(pause)
        options = _relevant_options(document, self.options)
        found = await self.checker.ask(Question("check", document.source, options), is_current)
        if not is_current():
            return
        if found is None or found.bug is not None:
            reason = "no answer in time" if found is None else f"internal error: {found.bug}"
            self.log(f"{document.source.path} cannot be checked: {reason}")
            return
        document.checked = found
        self.publish(document)
        if not found.is_clean:
            return
        planned = await self.scheduler.ask(Question("schedule", document.source, options), is_current)
        if is_current() and planned is not None:
            document.scheduled = planned
            self.publish(document)

    def publish(self, document: Document) -> None:
        """Send the editor all diagnostics found so far for a document, by checking and by scheduling."""
        found = [d for answer in (document.checked, document.scheduled) if answer for d in answer.diagnostics]
        source = document.checked.source if document.checked is not None else document.source
        listed = findings.convert_diagnostics(found, source, document.uri, self.units, self.site)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, listed))


def _relevant_options(document: Document, options: CompileOptions) -> CompileOptions:
    """Return the options with only those -D constants whose names occur in the document's text. An editor opens other
    files too.
    """
    text = document.source.text
    return replace(options, defines=tuple(d for d in options.defines if d[0] in text))


def serve_editor(options: CompileOptions, site: str | None) -> None:
    """Serve an editor on standard input and output until it disconnects, and stop the workers; link diagnostics to
    `site`. None: they have no links.
    """
    logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)
    server = Server(options, site)
    register_requests(server)
    try:
        # Output of libraries must not mix with the answers.
        with (
            open(0, "rb", closefd=False) as requests,
            open(1, "wb", closefd=False) as replies,
            redirect_stdout(sys.stderr),
        ):
            server.start_io(requests, replies)
    finally:
        server.checker.stop()
        server.scheduler.stop()


# ---- requests --------------------------------------------------------------------------------------------------------


def register_requests(server: Server) -> None:
    """Register the handlers of all requests and notifications that the server answers."""
    feature = server.feature
    feature(types.TEXT_DOCUMENT_DID_OPEN)(functools.partial(_did_open, server))
    feature(types.TEXT_DOCUMENT_DID_CHANGE)(functools.partial(_did_change, server))
    feature(types.TEXT_DOCUMENT_DID_SAVE)(functools.partial(_did_save, server))
    feature(types.TEXT_DOCUMENT_DID_CLOSE)(functools.partial(_did_close, server))
    completion = types.CompletionOptions(trigger_characters=[".", '"', "'", "(", ","])
    signature_help = types.SignatureHelpOptions(trigger_characters=["(", ","])
    code_actions = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    for name, handler, options in (
        (types.TEXT_DOCUMENT_HOVER, answers.hover, None),
        (types.TEXT_DOCUMENT_COMPLETION, answers.completion, completion),
        (types.TEXT_DOCUMENT_SIGNATURE_HELP, answers.signature_help, signature_help),
        (types.TEXT_DOCUMENT_DEFINITION, answers.definition, None),
        (types.TEXT_DOCUMENT_REFERENCES, answers.references, None),
        (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, answers.document_symbols, None),
        (types.TEXT_DOCUMENT_PREPARE_RENAME, answers.prepare_rename, None),
        (types.TEXT_DOCUMENT_RENAME, answers.rename, types.RenameOptions(prepare_provider=True)),
        (types.TEXT_DOCUMENT_CODE_ACTION, answers.code_actions, code_actions),
        (types.TEXT_DOCUMENT_FORMATTING, answers.formatting, None),
    ):
        feature(name, options)(_make_request_handler(server, handler))


def _make_request_handler(
    server: Server, handler: Callable[[answers.AnswerContext, Document, Any], Any]
) -> Callable[[Any], Awaitable[Any]]:
    """Make the handler of a request about an open file; on an error, or for another file, it answers with nothing.
    Errors are logged.
    """

    async def answer_request(params: Any) -> Any:
        """Answer a request with what `handler` returns; None, logged, if it raises an error or the file is not open."""
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        try:
            found = handler(answers.AnswerContext(server.documents, server.units, server.site), document, params)
            return await found if isinstance(found, Awaitable) else found
        except CompileError as error:
            server.log(f"{document.source.path}: {error.diagnostics[0].title}")
            return None
        except (Exception, RecursionError) as error:
            server.log(f"{handler.__name__}: {type(error).__name__}: {error}")
            return None

    return answer_request


def _did_open(server: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Add a file that the editor has opened, and start its analysis."""
    server.start_analysis(server.documents.open(params.text_document.uri, params.text_document.text))


def _did_change(server: Server, params: types.DidChangeTextDocumentParams) -> None:
    """Replace the text of an open document, and start its analysis after a pause; do nothing for a file not open."""
    document = server.documents.get(params.text_document.uri)
    if document is not None and params.content_changes:
        document.change(params.content_changes[-1].text)
        server.start_analysis(document, PAUSE)


def _did_save(server: Server, params: types.DidSaveTextDocumentParams) -> None:
    """Start a new analysis of each open document that imports the saved file."""
    saved = server.documents.get(params.text_document.uri)
    for document in list(server.documents.values()):
        imported = document.checked.source.imported.values() if document.checked is not None else ()
        if saved is not None and any(file.path == saved.source.path for file in imported):
            document.change(document.source.text)
            server.start_analysis(document)


def _did_close(server: Server, params: types.DidCloseTextDocumentParams) -> None:
    """Forget a closed document, abandon its scheduling, and remove its diagnostics from the editor."""
    document = server.documents.pop(params.text_document.uri, None)
    if document is not None:
        server.scheduler.abandon_file(document.source.path)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, []))
