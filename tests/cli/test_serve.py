"""`tilec serve`: what it answers whom, and what it reaches."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest

from tilec.cli.main import main
from tilec.serve.server import Server

KERNEL = """\
import tilelang.language as T

N = 1024


@T.prim_func
def twice(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(N // 128, threads=128) as b:
        for i in T.Parallel(128):
            B[b * 128 + i] = A[b * 128 + i] * 2.0
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "kernels"
    (folder / "more").mkdir(parents=True)
    (folder / "twice.tl").write_text(KERNEL, encoding="utf-8")
    (folder / "more" / "again.tl").write_text(KERNEL, encoding="utf-8")
    (folder / "notes.txt").write_text("of no concern", encoding="utf-8")
    (tmp_path / "outside.tl").write_text(KERNEL, encoding="utf-8")
    (folder / "link.tl").symlink_to(tmp_path / "outside.tl")
    with Server(folder, 0, "sm_90a") as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def ask(server: Server, path: str, body: object = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is None:
        connection.request("GET", path, headers=given)
    else:
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", path, text, headers={"X-Tilec-Token": server.token, **given})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def saved(server: Server, name: str, text: str = KERNEL, target: str = "sm_90a", constants: str = "") -> Any:
    status, said = ask(server, f"/kernels/{name}", {"text": text, "target": target, "constants": constants})
    assert status == 200, said
    return json.loads(said)


def test_the_kernels_of_the_folder_are_listed_and_no_others(server: Server) -> None:
    assert json.loads(ask(server, "/kernels")[1]) == ["more/again.tl", "twice.tl"]
    assert ask(server, "/kernels/more/again.tl") == (200, KERNEL)
    for name in ("notes.txt", "link.tl", "../outside.tl", "%2e%2e/outside.tl", "/etc/passwd", "more/../twice.tl", ""):
        assert ask(server, f"/kernels/{name}")[0] == 404, name


def test_saving_compiles(server: Server) -> None:
    outcome = saved(server, "twice.tl", KERNEL.replace("2.0", "3.0"), constants="N=2048")
    assert outcome == {"said": "", "report": "/reports/twice.tl"}
    assert "3.0" in (server.kernels.folder / "twice.tl").read_text(encoding="utf-8")
    status, page = ask(server, outcome["report"])
    assert status == 200 and "twice" in page and "fma" not in page.lower()[:100]
    assert '"blocks":16' in page  # of 128 elements each


def test_a_mistake_is_shown_and_takes_the_report_away(server: Server) -> None:
    saved(server, "twice.tl")
    outcome = saved(server, "twice.tl", KERNEL.replace("A[b", "missing[b"))
    assert outcome["report"] is None and "error[unknown-name]" in outcome["said"] and "^^^^^^^" in outcome["said"]
    assert ask(server, "/reports/twice.tl")[0] == 404


@pytest.mark.parametrize("constants", ["-o out.cubin", "--emit=ptx", "N", "=3"])
def test_constants_are_no_options(server: Server, constants: str) -> None:
    outcome = saved(server, "twice.tl", constants=constants)
    assert outcome["report"] is None and "is not a constant" in outcome["said"]
    assert sorted(path.name for path in server.kernels.folder.iterdir()) == ["link.tl", "more", "notes.txt", "twice.tl"]


def test_a_new_kernel_is_made_in_the_folder_only(server: Server) -> None:
    assert saved(server, "fresh.tl")["report"] == "/reports/fresh.tl"
    asked = {"text": KERNEL, "target": "sm_90a", "constants": ""}
    for name in ("link.tl", "../fresh.tl", "other/fresh.tl", "-o.tl", ".tl", "notes.txt", "more/fresh.tl"):
        assert ask(server, f"/kernels/{name}", asked)[0] == 404, name


def test_lines_end_as_they_did(server: Server) -> None:
    path = server.kernels.folder / "twice.tl"
    path.write_bytes(KERNEL.replace("\n", "\r\n").encode())
    before = path.stat().st_mtime_ns
    saved(server, "twice.tl")
    assert path.stat().st_mtime_ns == before, "what is the same is not written"
    saved(server, "twice.tl", KERNEL.replace("2.0", "4.0"))
    assert path.read_bytes() == KERNEL.replace("2.0", "4.0").replace("\n", "\r\n").encode()


def test_who_is_answered(server: Server) -> None:
    asked = {"text": KERNEL, "target": "sm_90a", "constants": ""}
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/kernels", Host="attacker.example")[0] == 403
    assert ask(server, "/kernels/twice.tl", asked, Host=f"attacker.example:{server.server_port}")[0] == 403
    assert ask(server, "/kernels/twice.tl", asked, X_Tilec_Token="another")[0] == 403
    assert ask(server, "/kernels", Host=f"localhost:{server.server_port}")[0] == 200
    for body in ("no JSON", [], {"text": KERNEL}, {**asked, "text": 3}, {**asked, "target": "../sm_90a"}):
        assert ask(server, "/kernels/twice.tl", body)[0] == 400, body
    assert ask(server, "/kernels/twice.tl", "", Content_Length="99999999999")[0] == 413


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "missing")]) == 1
    assert "error[no-such-file]" in capfd.readouterr().err
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tilec", "serve", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline()
        assert said.startswith("http://127.0.0.1:") and said.endswith("/ (Ctrl-C ends)\n")
        taken = said.rpartition(":")[2].partition("/")[0]
        assert main(["serve", str(tmp_path), "--port", taken]) == 1
        refused = capfd.readouterr().err
        assert refused.startswith("error") and "port-taken" in refused
        process.send_signal(signal.SIGINT)
        assert process.wait(600) in (0, 130) and "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_in_a_browser(server: Server, tmp_path: Path, width: int, scheme: Any) -> None:
    chrome = chromium.program()
    if chrome is None:
        pytest.skip("no Chromium on the path")
    with chromium.Page(server.url, tmp_path / "profile", width, scheme, chrome) as page:
        waited = "new Promise(done => { const look = () => part('save').disabled || !part('state').textContent"
        settled = f"{waited} ? setTimeout(look, 50) : done(part('state').textContent); look(); }})"
        page.value(settled)  # the first of the list
        page.value("part('kernel').value = 'twice.tl'; open('twice.tl')")
        assert page.value(settled).startswith("saved; compiled in ")
        assert page.value("part('report').hidden") is False and page.value("part('said').hidden") is True
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        (tmp_path / f"{width}-{scheme}.png").write_bytes(page.picture())
        page.value("part('text').value = part('text').value.replace('A[b', 'missing[b'); compile()")
        assert page.value(settled) == "saved; not compiled"
        assert "error[unknown-name]" in page.value("part('said').textContent")
        assert page.problems == []
