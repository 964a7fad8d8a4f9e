"""An editor, as far as the language server can tell: JSON-RPC over the pipes of a real `tilec lsp`."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Editor:
    def __init__(self, *arguments: str, folder: Path, **capabilities: Any) -> None:
        self.folder = folder
        program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tilec.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "lsp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            # Which may name the current folder.
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        self.log: list[str] = []
        self.versions: dict[str, int] = {}
        self._answers: dict[int, Any] = {}
        self._published: dict[str, list[dict[str, Any]]] = {}
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._next = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.server = self.request(
            "initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities or {"general": {}}
        )
        self.notify("initialized")

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        while header := out.readline():
            length = int(header.split(b":")[1]) if header.lower().startswith(b"content-length") else 0
            while header.strip():
                header = out.readline()
                if header.lower().startswith(b"content-length"):
                    length = int(header.split(b":")[1])
            self._messages.put(json.loads(out.read(length)))
        self._messages.put(None)

    def write(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def _take(self) -> None:
        message = self._messages.get(timeout=PATIENCE)
        assert message is not None, "the server has ended"
        match message:
            case {"method": "textDocument/publishDiagnostics", "params": {"uri": uri, "diagnostics": found}}:
                self._published.setdefault(uri, []).append({"diagnostics": found})
            case {"method": "window/logMessage", "params": {"message": text}}:
                self.log.append(text)
            case {"id": number}:
                self._answers[number] = message
            case _:
                pass

    def notify(self, method: str, **params: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def answer(self, method: str, **params: Any) -> dict[str, Any]:
        """All of the answer, an error or a result."""
        self._next += 1
        number = self._next
        self.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        while number not in self._answers:
            self._take()
        found: dict[str, Any] = self._answers.pop(number)
        return found

    def request(self, method: str, **params: Any) -> Any:
        found = self.answer(method, **params)
        assert "error" not in found, found
        return found["result"]

    def end(self) -> str:
        """What it has said on standard error."""
        if self.process.poll() is None:
            self.request("shutdown")
            self.notify("exit")
        _, said = self.process.communicate(timeout=PATIENCE)
        return said.decode()

    # ---- files -------------------------------------------------------------------------------------------------------

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str) -> None:
        self.versions[name] = 1
        item = {"uri": self.uri(name), "languageId": "tilec", "version": 1, "text": text}
        self.notify("textDocument/didOpen", textDocument=item)

    def change(self, name: str, text: str) -> None:
        self.versions[name] += 1
        document = {"uri": self.uri(name), "version": self.versions[name]}
        self.notify("textDocument/didChange", textDocument=document, contentChanges=[{"text": text}])

    def close(self, name: str) -> None:
        self.notify("textDocument/didClose", textDocument={"uri": self.uri(name)})

    def diagnostics(self, name: str) -> list[dict[str, Any]]:
        """What is published next for the file."""
        uri = self.uri(name)
        while not self._published.get(uri):
            self._take()
        found: list[dict[str, Any]] = self._published[uri].pop(0)["diagnostics"]
        return found

    def at(self, method: str, name: str, line: int, character: int, **more: Any) -> Any:
        """A request about a place, counted from 0 and in the code units of UTF-16."""
        place = {"textDocument": {"uri": self.uri(name)}, "position": {"line": line, "character": character}}
        return self.request(f"textDocument/{method}", **place, **more)

    def hover(self, name: str, line: int, character: int) -> str:
        found = self.at("hover", name, line, character)
        return "" if found is None else str(found["contents"]["value"])
