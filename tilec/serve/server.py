"""`tilec serve`: a server for one person on one machine, and the folder whose kernels it lists, reads and saves.

It listens on 127.0.0.1 only, answers requests for that address only (another site may give this machine a name of its
own: DNS rebinding), and accepts kernels only with the token of its own page. Reports are shown without an origin, so
that their scripts cannot send requests to the server.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import unquote, urlsplit

from tilec.support import files
from tilec.support.diagnostics import CompileError
from tilec.support.files import LARGEST_SOURCE
from tilec.support.resources import target_names

_NEW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.tl")
_CONSTANT = re.compile(r"[A-Za-z_]\w*=\S+")
_TIME_LIMIT_SECONDS = 120
"""The time limit of one compilation: an error in a kernel must not keep the machine busy."""


Outcome = tuple[str, bytes | None]
"""The output of a compilation, and the report page if there is one."""


class KernelFolder:
    """Kernel files of a folder and of the folders in it; links that lead out of it are not followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def names(self) -> list[str]:
        """Return the sorted paths of the kernels in the folder and the folders in it, relative to it, with slashes."""
        found = (path for pattern in ("*.tl", "*/*.tl") for path in self.folder.glob(pattern) if self._is_ours(path))
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def _is_ours(self, path: Path) -> bool:
        """Return whether a path is a file that lies in the folder after links are followed."""
        return path.is_file() and path.resolve().is_relative_to(self.folder)

    def read(self, name: str) -> str | None:
        """Return the text of a kernel; None if the folder has none of this name, `CompileError` raised if it cannot be
        read."""
        if name not in self.names():
            return None
        return files.read_source(str(self.folder / name)).text

    def may_save(self, name: str) -> bool:
        """Return whether a name is an existing kernel, or a valid new one, not yet a file, in the folder itself."""
        return name in self.names() or (_NEW.fullmatch(name) is not None and not os.path.lexists(self.folder / name))

    def save(self, name: str, text: str) -> None:
        """Write a kernel's text to its file atomically, with the line endings that it had; raises `CompileError` on
        failure. An unchanged text is not written."""
        assert self.may_save(name)
        before = self.read(name)
        if before is not None and "\r\n" in before:
            text = text.replace("\n", "\r\n")
        if text != before:
            files.write_all({str(self.folder / name): text.encode()})

    def compile(self, name: str, target: str, constants: Sequence[str]) -> Outcome:
        """Run `tilec report` on a kernel in a process of its own; return its output, and the HTML page if it made one.
        The page is None for a wrong constant, and after two minutes."""
        assert name in self.names()
        if strange := [word for word in constants if not _CONSTANT.fullmatch(word)]:
            return f"{strange[0]} is not a constant: write NAME=VALUE\n", None
        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch, "report.html")
            given = [word for constant in constants for word in ("-D", constant)]
            command = ["report", f"./{name}", "--target", target, *given, "--html", str(page)]
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-m", "tilec", *command],
                    cwd=self.folder,
                    env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_TIME_LIMIT_SECONDS,
                )
            except subprocess.TimeoutExpired:
                advice = f"run `tilec {name} --time` to see where"
                return f"compilation took more than {_TIME_LIMIT_SECONDS} s; {advice}\n", None
            # A page contains the tables of the report.
            if page.exists():
                return done.stderr, page.read_bytes()
            return done.stdout + done.stderr, None


ADDRESS = "127.0.0.1"
_PAGE = Path(__file__).parent / "page"
_STATIC = {"/playground.css": "text/css", "/playground.js": "text/javascript"}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; "
    "base-uri 'none'"
)
_REPORT_POLICY = "sandbox allow-scripts"


class Server(ThreadingHTTPServer):
    """Serves the kernels of a folder at `url`."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int, target: str) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.kernels, self.target = KernelFolder(folder), target
        self.token = secrets.token_urlsafe()
        self.reports: dict[str, bytes] = {}
        self.compiling = threading.Lock()

    @property
    def url(self) -> str:
        """Return the address of the server's page, with its port."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the host names, with the port, under which requests are answered."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "tilec"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a GET request with the page, its files, a list of kernels, a kernel or a report; refuse foreign hosts,
        other paths.
        """
        if self._is_foreign():
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/":
            self._send(self._start_page(), "text/html", _PAGE_POLICY)
        elif path in _STATIC:
            self._send((_PAGE / path[1:]).read_bytes(), _STATIC[path], _PAGE_POLICY)
        elif path == "/kernels":
            self._send_json(self.server.kernels.names())
        elif path.startswith("/kernels/"):
            self._send_kernel(path.removeprefix("/kernels/"))
        elif (report := self.server.reports.get(path.removeprefix("/reports/"))) is not None:
            self._send(report, "text/html", _REPORT_POLICY)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Save and compile a kernel for a POST request that has the page's token; refuse any other request."""
        if self._is_foreign():
            return
        if not secrets.compare_digest(self.headers.get("X-Tilec-Token", "").encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > 2 * LARGEST_SOURCE:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        name = unquote(urlsplit(self.path).path).removeprefix("/kernels/")
        request = _parse_request(self.rfile.read(int(length)))
        if request is None or request["target"] not in target_names():
            self._refuse(HTTPStatus.BAD_REQUEST)
        elif not self.server.kernels.may_save(name):
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._save_and_compile(name, request)

    def _save_and_compile(self, name: str, request: Mapping[str, str]) -> None:
        """Save and compile a kernel, keep its report page, and send what was said and the report's path; one at a
        time."""
        server = self.server
        with server.compiling:
            try:
                server.kernels.save(name, request["text"])
            except CompileError as error:
                self._send_json({"said": f"{error}\n", "report": None})
                return
            said, page = server.kernels.compile(name, request["target"], request["constants"].split())
            server.reports.pop(name, None)
            if page is not None:
                server.reports[name] = page
        self._send_json({"said": said, "report": None if page is None else f"/reports/{name}"})

    def _is_foreign(self) -> bool:
        """Return whether a request names another host than this server; if so, answer it with 403 Forbidden."""
        if self.headers.get("Host") in self.server.hosts:
            return False
        self._refuse(HTTPStatus.FORBIDDEN)
        return True

    def _start_page(self) -> bytes:
        """Return the playground's HTML page with the server's token and the targets filled in."""
        targets = "".join(
            f"<option{' selected' if name == self.server.target else ''}>{name}</option>" for name in target_names()
        )
        page = Template((_PAGE / "playground.html").read_text(encoding="utf-8"))
        return page.substitute(token=self.server.token, targets=targets).encode()

    def _send_kernel(self, name: str) -> None:
        """Send the text of a kernel, 404 if there is none, or the reason why it cannot be read."""
        try:
            text = self.server.kernels.read(name)
        except CompileError as error:
            self._send(str(error).encode(), "text/plain", _PAGE_POLICY, HTTPStatus.CONFLICT)
            return
        if text is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._send(text.encode(), "text/plain", _PAGE_POLICY)

    def _send_json(self, value: object) -> None:
        """Send a value as JSON."""
        self._send(json.dumps(value).encode(), "application/json", _PAGE_POLICY)

    def _refuse(self, status: HTTPStatus) -> None:
        """Send an error status with its phrase as the text, and close the connection."""
        self.close_connection = True  # the rest of the request has not been read
        self._send(status.phrase.encode(), "text/plain", _PAGE_POLICY, status)

    def _send(self, body: bytes, kind: str, policy: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send a response of this content type, with headers that forbid caching and all other use."""
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no log of requests."""


def _parse_request(body: bytes) -> dict[str, str] | None:
    """Return the text, target and constants of a JSON request; None where one is missing or no string."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    known = ("text", "target", "constants")
    if not isinstance(value, dict) or any(not isinstance(value.get(name), str) for name in known):
        return None
    return {name: value[name] for name in known}
