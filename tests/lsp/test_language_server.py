"""`tilec lsp`, as an editor meets it: one server for all of these tests, which nothing in them may end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from language_client import ROOT, Editor

from tilec.cli.main import main
from tilec.frontend.language import list_documented_names
from tilec.frontend.sema.vocabulary import list_supported_names

GEMM = (ROOT / "samples" / "gemm.tl").read_text(encoding="utf-8")
IMPORTING = """\
import tilelang.language as T
from .parts.scale import doubled as twice, FACTOR
from . import lib
from .stars import *

N = 1024


@T.prim_func
def scaled(A: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 256), threads=128) as bx:
        for i in T.Parallel(256):
            A[bx * 256 + i] = twice(A[bx * 256 + i]) * lib.HALF * STAR
"""
PARTS = {
    "parts/scale.tl": 'FACTOR = 2\n\n\ndef doubled(x):\n    """Twice as much."""\n    return x * FACTOR\n',
    "lib.tl": "HALF = 0.5\n",
    "stars.tl": "STAR = 3.0\n",
}


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("project")
    for name, text in PARTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    # What Python would take for its own module if it looked here, as an editor's folder may have it.
    for name in ("json.py", "pickle.py", "struct.py", "tilec.py"):
        (folder / name).write_text("open('executed', 'w').close()\nraise SystemExit('executed')\n", encoding="utf-8")
    (folder / "ruff.toml").write_text("line-length = 120\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("TILEC_DOCS_URL", "https://docs.example.com/tilec/")
        editor = Editor(folder=folder)
        yield editor
        said = editor.end()
    assert said == ""
    assert editor.process.returncode == 0
    assert not (folder / "executed").exists()


@pytest.fixture
def opened(editor: Editor) -> Iterator[Any]:
    """Opens files that are closed when the test ends."""
    names: list[str] = []

    def open_(name: str, text: str) -> None:
        names.append(name)
        editor.open(name, text)

    yield open_
    for name in names:
        editor.close(name)
        while editor.diagnostics(name):
            pass


def place(text: str, marked: str) -> tuple[int, int]:
    """Line and UTF-16 character, from 0, of the `|` in a piece of the text."""
    before = text[: text.index(marked.replace("|", "")) + marked.index("|")]
    line = before.split("\n")[-1]
    return before.count("\n"), len(line.encode("utf-16-le")) // 2


def under(text: str, where: dict[str, Any]) -> str:
    """The text of a range, counted in UTF-16."""
    lines = [line.encode("utf-16-le") for line in text.split("\n")]
    start, end = where["start"], where["end"]
    assert start["line"] == end["line"]
    return lines[start["line"]][2 * start["character"] : 2 * end["character"]].decode("utf-16-le")


# ---- diagnostics -----------------------------------------------------------------------------------------------------

WRONG = GEMM.replace("T.clear(C_local)", "T.cleer(C_local)").replace("(block_K, block_N)", "(32, block_N)")


def test_mistakes_are_shown_together_with_both_places_and_go_when_mended(editor: Editor, opened: Any) -> None:
    opened("wrong.tl", WRONG)
    name, shape = editor.diagnostics("wrong.tl")
    assert (name["code"], name["severity"], name["source"]) == ("unsupported-operation", 1, "tilec")
    assert under(WRONG, name["range"]) == "T.cleer"
    assert "T.cleer is not supported" in name["message"] and "help: did you mean T.clear?" in name["message"]
    assert shape["code"] == "shape-mismatch"
    assert shape["codeDescription"]["href"] == "https://docs.example.com/tilec/diagnostics/#shape-mismatch"
    related = {under(WRONG, r["location"]["range"]): r["message"] for r in shape["relatedInformation"]}
    assert any("alloc_shared" in text for text in related), related
    assert all(r["location"]["uri"] == editor.uri("wrong.tl") for r in shape["relatedInformation"])
    editor.change("wrong.tl", GEMM)
    assert editor.diagnostics("wrong.tl") == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("T.clear", "T.cleer"),
        ("threads", "treads"),
        ("float32", "float23"),
        ("C_local", "C_locla"),
        ("T.copy", "copy"),
    ],
)
def test_a_fix_is_offered_where_there_is_one(editor: Editor, opened: Any, right: str, wrong: str) -> None:
    at = {
        "threads": "treads=threads",
        "float32": 'accum_dtype = "float23"',
        "C_local": "T.clear(C_locla)",
        "T.copy": "        copy(C_local",
    }
    before = at.get(right, "T.cleer(C_local)")
    text = GEMM.replace(before.replace(wrong, right, 1), before, 1)
    assert text != GEMM
    opened("fixable.tl", text)
    found = editor.diagnostics("fixable.tl")
    offered = []
    for one in found:
        where = {"textDocument": {"uri": editor.uri("fixable.tl")}, "range": one["range"]}
        offered += editor.request("textDocument/codeAction", **where, context={"diagnostics": [one]})
    (action,) = offered
    (edit,) = action["edit"]["changes"][editor.uri("fixable.tl")]
    assert (under(text, edit["range"]), edit["newText"], action["kind"]) == (wrong, right, "quickfix")
    assert action["diagnostics"] == found[:1]


def test_a_mistake_in_an_imported_file_is_shown_where_it_is_imported(editor: Editor, opened: Any) -> None:
    (editor.folder / "broken.tl").write_text("HALF = = 0.5\n", encoding="utf-8")
    text = IMPORTING.replace("import lib", "import broken as lib")
    opened("importing_broken.tl", text)
    (found,) = editor.diagnostics("importing_broken.tl")
    assert found["range"]["start"]["line"] == 2
    (related,) = found["relatedInformation"]
    assert related["location"]["uri"] == editor.uri("broken.tl")
    assert related["location"]["range"]["start"] == {"line": 0, "character": 7}


def test_warnings_are_warnings_and_a_file_without_kernels_is_no_mistake(editor: Editor, opened: Any) -> None:
    unused = GEMM.replace("num_stages=num_stages", "num_stages=num_stages, annotations={'nonsense': 1}")
    opened("warned.tl", unused)
    found = editor.diagnostics("warned.tl")
    assert [(d["code"], d["severity"]) for d in found] == [("unknown-annotation", 2)]
    opened("lib.tl", PARTS["lib.tl"])
    assert [(d["code"], d["severity"]) for d in editor.diagnostics("lib.tl")] == [("no-kernel", 3)]


def test_only_the_last_of_many_texts_is_looked_at(editor: Editor, opened: Any) -> None:
    opened("typed.tl", GEMM)
    assert editor.diagnostics("typed.tl") == []
    statement = "T.clear(C_local)"
    for end in range(1, len(statement)):
        editor.change("typed.tl", GEMM.replace(statement, statement[:end]))
    editor.change("typed.tl", WRONG)
    published = 1
    while [d["code"] for d in editor.diagnostics("typed.tl")] != ["unsupported-operation", "shape-mismatch"]:
        published += 1  # the first text's schedule, or one where the machine made a pause
    assert published < len(statement) // 2


def test_characters_outside_ascii_count_as_the_editor_counts_them(editor: Editor, opened: Any) -> None:
    text = GEMM.replace("        T.clear(C_local)", '        T.print(C_local[0, 0], "𝕏é😀", nosuch, block_M)')
    opened("unicode.tl", text)
    (found,) = editor.diagnostics("unicode.tl")
    assert (found["code"], under(text, found["range"])) == ("unknown-name", "nosuch")
    assert "**error[unknown-name]**" in editor.hover("unicode.tl", *place(text, '"𝕏é😀", nosuc|h'))
    assert "warp=" not in completed(editor, "unicode.tl", *place(text, '"𝕏é|😀"'))
    assert "msg=" not in completed(editor, "unicode.tl", *place(text, '"𝕏é😀", |nosuch'))
    at = place(text, '"𝕏é😀", nosuch, blo|ck_M')
    found = editor.at("references", "unicode.tl", *at, context={"includeDeclaration": True})
    assert [under(text, r["range"]) for r in found] == ["block_M"] * 7


# ---- hover -----------------------------------------------------------------------------------------------------------


def test_hover_tells_meaning_value_type_layout_and_schedule(editor: Editor, opened: Any) -> None:
    text = GEMM.replace("block_K = 128, 128, 64", "block_K = 128, 128, 32")  # nobody has scheduled it yet
    opened("hover.tl", text)
    assert editor.diagnostics("hover.tl") == []
    early = editor.hover("hover.tl", *place(text, "T.gemm|(A_shared"))
    assert "T.gemm(A, B, C, transpose_A=False" in early and "policy" in early
    assert "**K** (constant): `1024`" in editor.hover("hover.tl", *place(text, "(M, K|), dtype"))
    assert "a float16 shared tile of shape [128, 32]" in editor.hover("hover.tl", *place(text, "A_sh|ared, B_shared"))
    assert "a float16 tensor of shape [1024, 1024]" in editor.hover("hover.tl", *place(text, "T.copy(A|["))
    # It is published anew when it is scheduled.
    assert editor.diagnostics("hover.tl") == []
    late = editor.hover("hover.tl", *place(text, "T.gemm|(A_shared"))
    assert "Schedule: stage " in late
    assert ", role consumer: begins " in late
    assert "stages, optimal: every II below" in editor.hover("hover.tl", *place(text, "for k|o in"))
    assert "Layout in shared memory: " in editor.hover("hover.tl", *place(text, "A_sh|ared, B_shared"))
    assert "Layout in registers: threads " in editor.hover("hover.tl", *place(text, "T.clear(C_l|ocal"))


def test_hover_explains_a_mistake(editor: Editor, opened: Any) -> None:
    opened("explained.tl", WRONG)
    assert editor.diagnostics("explained.tl")
    assert "**error[unsupported-operation]** " in editor.hover("explained.tl", *place(WRONG, "T.cl|eer"))


# ---- completion ------------------------------------------------------------------------------------------------------


def completed(editor: Editor, name: str, line: int, character: int) -> list[str]:
    found = editor.at("completion", name, line, character)
    return [item["label"] for item in found or ()]


def test_completion_knows_the_language_the_call_and_the_file(editor: Editor, opened: Any) -> None:
    before, behind = GEMM.split("        T.clear(C_local)\n")

    def after(typed: str) -> list[str]:
        editor.change("typing.tl", f"{before}        {typed}\n{behind}")
        return completed(editor, "typing.tl", before.count("\n"), 8 + len(typed))

    opened("typing.tl", GEMM)
    names = after("T.")
    assert set(names) >= {name.removeprefix("T.") for name in list_supported_names() if name.startswith("T.")}
    assert after("T.GemmWarpPolicy.") == ["Square", "FullRow", "FullCol"]
    assert after("T.gemm(A_shared, B_shared, C_local, tr")[:2] == ["transpose_A=", "transpose_B="]
    assert "transpose_A=" not in after("T.gemm(A_shared, B_shared, C_local, transpose_A=True, ")
    local = after("T.copy(A_shared, ")
    assert {"C_local", "B_shared", "block_M", "gemm", "dst="} <= set(local) and "src=" not in local
    assert {"float16", "float8_e4m3fn", "bfloat16"} <= set(after('x = T.alloc_fragment((4, 4), "flo'))
    assert after("# T.") == []
    items = editor.at("completion", "typing.tl", *place(GEMM, "T.|Tensor((M, K)"))
    copy = next(item for item in items if item["label"] == "copy")
    assert copy["detail"].startswith("T.copy(src, dst") and "Copy `src` to `dst`" in copy["documentation"]["value"]


def test_signature_help_follows_the_argument(editor: Editor, opened: Any) -> None:
    opened("signature.tl", GEMM)

    def active(marked: str) -> str:
        found = editor.at("signatureHelp", "signature.tl", *place(GEMM, marked))
        (only,) = found["signatures"]
        return str(only["parameters"][found["activeParameter"]]["label"])

    assert active("T.gemm(|A_shared") == "A"
    assert active("T.gemm(A_shared, B_|shared") == "B"
    assert active("T.alloc_fragment((block_M, |block_N)") == "shape"
    assert active("num_stages=num_st|ages)").startswith("num_stages=")
    assert editor.at("signatureHelp", "signature.tl", 0, 0) is None


# ---- names -----------------------------------------------------------------------------------------------------------


def target(editor: Editor, name: str, text: str, marked: str) -> tuple[str, int, int]:
    found = editor.at("definition", name, *place(text, marked))
    return Path(found["uri"]).name, found["range"]["start"]["line"], found["range"]["start"]["character"]


def test_definitions_here_and_in_other_files(editor: Editor, opened: Any) -> None:
    opened("names.tl", IMPORTING)
    here = ("names.tl", *place(IMPORTING, "|N = 1024"))
    assert target(editor, "names.tl", IMPORTING, "ceildiv(|N") == here
    assert target(editor, "names.tl", IMPORTING, "(A[bx * 256 + |i]") == ("names.tl", *place(IMPORTING, "|i in T."))
    assert target(editor, "names.tl", IMPORTING, "A[bx| * 256 + i] =")[1:] == place(IMPORTING, "|bx:")
    assert target(editor, "names.tl", IMPORTING, "= tw|ice(") == ("scale.tl", 3, 4)
    assert target(editor, "names.tl", IMPORTING, "FACT|OR") == ("scale.tl", 0, 0)
    assert target(editor, "names.tl", IMPORTING, "lib.HA|LF") == ("lib.tl", 0, 0)
    assert target(editor, "names.tl", IMPORTING, "ST|AR") == ("stars.tl", 0, 0)
    assert "def doubled(x):" in editor.hover("names.tl", *place(IMPORTING, "tw|ice("))
    assert "Twice as much." in editor.hover("names.tl", *place(IMPORTING, "tw|ice("))


def test_references_rename_and_symbols(editor: Editor, opened: Any) -> None:
    opened("rename.tl", GEMM)
    at = place(GEMM, "T.clear(C_l|ocal")
    found = editor.at("references", "rename.tl", *at, context={"includeDeclaration": True})
    assert [under(GEMM, r["range"]) for r in found] == ["C_local"] * 4
    uses = editor.at("references", "rename.tl", *at, context={"includeDeclaration": False})
    assert len(uses) == 3
    renamed = editor.at("rename", "rename.tl", *at, newName="sums")
    edits = renamed["changes"][editor.uri("rename.tl")]
    lines = GEMM.split("\n")
    for edit in reversed(edits):
        start, end = edit["range"]["start"], edit["range"]["end"]
        line = lines[start["line"]]
        lines[start["line"]] = line[: start["character"]] + edit["newText"] + line[end["character"] :]
    assert "\n".join(lines) == GEMM.replace("C_local", "sums")
    assert editor.at("rename", "rename.tl", *at, newName="not a name") is None
    assert editor.at("prepareRename", "rename.tl", *place(GEMM, "T|.clear")) is None
    assert editor.at("rename", "rename.tl", *at, newName="if") is None
    assert editor.at("rename", "rename.tl", *at, newName="A_shared") is None, "which is another tile"
    symbols = editor.request("textDocument/documentSymbol", textDocument={"uri": editor.uri("rename.tl")})
    assert [s["name"] for s in symbols][:3] == ["M", "N", "K"]
    assert symbols[-1]["name"] == "gemm"
    assert [s["name"] for s in symbols[-1]["children"]] == ["A_shared", "B_shared", "C_local"]


def test_no_renaming_where_a_name_may_stand_unread(editor: Editor, opened: Any) -> None:
    foreign = (
        GEMM + "\n\ndef reference(a, b):\n    try:\n        return {**a, block_K: b}\n    finally:\n        b.done()\n"
    )
    opened("foreign.tl", foreign)
    assert editor.at("rename", "foreign.tl", *place(foreign, "T.clear(C_l|ocal"), newName="sums")
    assert editor.at("rename", "foreign.tl", *place(foreign, "by * block_|M"), newName="rows")
    assert editor.at("rename", "foreign.tl", *place(foreign, "ko * block_|K"), newName="depth") is None


# ---- formatting ------------------------------------------------------------------------------------------------------


def test_formatting_is_that_of_the_command(editor: Editor, opened: Any) -> None:
    options = {"tabSize": 4, "insertSpaces": True}
    untidy = GEMM.replace("threads=threads", "threads = threads").replace("(block_M, block_K)", "(block_M,block_K)")
    opened("untidy.tl", untidy)
    document = {"uri": editor.uri("untidy.tl")}
    (edit,) = editor.request("textDocument/formatting", textDocument=document, options=options)
    assert edit["newText"] == GEMM
    assert edit["range"]["start"] == {"line": 0, "character": 0}
    assert edit["range"]["end"] == {"line": untidy.count("\n"), "character": 0}
    editor.change("untidy.tl", GEMM)
    assert editor.request("textDocument/formatting", textDocument=document, options=options) == []
    editor.change("untidy.tl", GEMM + "\ndef (")
    assert editor.request("textDocument/formatting", textDocument=document, options=options) is None


# ---- bad days --------------------------------------------------------------------------------------------------------


def test_a_half_written_text_is_still_understood(editor: Editor, opened: Any) -> None:
    half = GEMM.replace("            T.gemm(A_shared, B_shared, C_local)", "            T.gemm(A_shared, B_sha")
    opened("half.tl", half)
    found = editor.diagnostics("half.tl")
    assert [d["code"] for d in found] == ["syntax"]
    assert target(editor, "half.tl", half, "T.copy(C_l|ocal")[1:] == place(half, "|C_local = ")
    assert {"A_shared", "B_shared"} <= set(completed(editor, "half.tl", *place(half, "T.gemm(A_shared, B_sha|")))
    assert "**block_M**" in editor.hover("half.tl", *place(half, "by * blo|ck_M"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "(" * 5000,
        "T." * 3000,
        "def",
        "\0",
        "x = '''",
        "\ud800 = 1",
        "\t if:\n  else",
        "@" * 99,
        "if 1:\n" * 40,
    ],
    ids=range(11),
)
def test_no_text_ends_the_server(editor: Editor, opened: Any, text: str) -> None:
    opened("odd.tl", text)
    for request in ("hover", "completion", "signatureHelp", "definition", "prepareRename"):
        for character in (0, 5, 99999):
            editor.at(request, "odd.tl", 0, character)
            editor.at(request, "odd.tl", 77, character)
    document = {"uri": editor.uri("odd.tl")}
    editor.request("textDocument/documentSymbol", textDocument=document)
    editor.request("textDocument/formatting", textDocument=document, options={"tabSize": 4, "insertSpaces": True})
    found = editor.diagnostics("odd.tl")
    assert all(d["source"] == "tilec" for d in found)


def test_what_is_not_open_or_not_asked_properly_has_no_answer(editor: Editor) -> None:
    editor.open("closed.tl", GEMM)
    editor.close("closed.tl")
    for request in ("hover", "completion", "signatureHelp", "definition", "prepareRename"):
        assert editor.at(request, "closed.tl", 3, 3) is None
        assert editor.at(request, "never.tl", 3, 3) is None
    assert "error" in editor.answer("textDocument/nonsense", x=1)
    assert "error" in editor.answer("textDocument/hover", position="here")
    editor.write(b"{ this is no JSON")
    editor.write(json.dumps({"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {}}).encode())
    editor.notify("textDocument/didChange", textDocument={"uri": "odd:", "version": 1}, contentChanges=[{"text": ""}])
    editor.notify("$/unheard")
    editor.open("after.tl", WRONG)
    assert len(editor.diagnostics("after.tl")) == 2
    editor.close("after.tl")
    assert not any("Traceback" in line for line in editor.log)


def test_a_file_that_is_nowhere_imports_nothing(editor: Editor) -> None:
    uri = "untitled:Untitled-1"
    item = {"uri": uri, "languageId": "tilec", "version": 1, "text": IMPORTING}
    editor.notify("textDocument/didOpen", textDocument=item)
    while not (published := editor._published.get(uri)):
        editor._take()
    assert [d["code"] for d in published[0]["diagnostics"]] == ["no-such-file"]
    editor.notify("textDocument/didClose", textDocument={"uri": uri})


def test_saving_a_file_looks_again_at_those_that_import_it(editor: Editor, opened: Any) -> None:
    opened("user.tl", IMPORTING)
    assert editor.diagnostics("user.tl") == []
    opened("stars.tl", PARTS["stars.tl"])
    try:
        (editor.folder / "stars.tl").write_text("PLANET = 3.0\n", encoding="utf-8")
        editor.change("stars.tl", "PLANET = 3.0\n")
        editor.notify("textDocument/didSave", textDocument={"uri": editor.uri("stars.tl")})
        while not (found := editor.diagnostics("user.tl")):
            pass
        assert [d["code"] for d in found] == ["unknown-name"]
    finally:
        (editor.folder / "stars.tl").write_text(PARTS["stars.tl"], encoding="utf-8")


def test_without_pygls_the_command_says_what_to_install(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.setitem(sys.modules, "pygls.exceptions", None)
    monkeypatch.delitem(sys.modules, "tilec.lsp.server", raising=False)
    assert main(["lsp", "--diagnostics-format", "json"]) == 1
    said = json.loads(capfd.readouterr().err)
    assert said["code"] == "no-language-server" and said["help"] == "pip install '.[lsp]'"


def test_without_an_editor_it_ends_and_leaves_its_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lsp"]) == 0
    print("afterwards")
    assert capfd.readouterr() == ("afterwards\n", "")


def test_every_documented_name_is_one_of_the_language() -> None:
    missing = [name for name in list_supported_names() if name not in list_documented_names()]
    assert missing == []
    assert all(entry.meaning for entry in list_documented_names().values())


@pytest.mark.weekly
def test_typing_does_not_wait_for_the_scheduler(editor: Editor, opened: Any) -> None:
    opened("busy.tl", GEMM.replace("1024, 1024, 1024", "1000, 1000, 1000"))
    began = time.monotonic()
    assert editor.hover("busy.tl", *place(GEMM, "T.gemm|(A_shared"))
    assert time.monotonic() - began < 5


@pytest.mark.weekly
def test_killed_helpers_are_replaced_and_end_with_the_editor(tmp_path: Path) -> None:
    """The last test, with a server of its own: this one ends as its editor does, without a word."""
    editor = Editor(folder=tmp_path)
    editor.open("a.tl", WRONG)
    assert len(editor.diagnostics("a.tl")) == 2
    (checker,) = children(editor.process.pid)
    os.kill(checker, signal.SIGKILL)
    editor.change("a.tl", WRONG)
    assert len(editor.diagnostics("a.tl")) == 2
    (again,) = children(editor.process.pid)
    assert again != checker
    assert editor.process.stdin is not None and editor.process.stderr is not None
    editor.process.stdin.close()
    assert editor.process.wait(timeout=30) == 0
    assert editor.process.stderr.read() == b""
    assert not Path(f"/proc/{again}").exists()


def children(process: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        found += [int(child) for child in (thread / "children").read_text().split()]
    return found
