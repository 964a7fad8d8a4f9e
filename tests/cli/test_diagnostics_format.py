"""Diagnostics for programs: each format says what the text for people says, and where."""

from __future__ import annotations

import json
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from command import GEMM, tilec

from tilec.driver.explanations import EXPLANATIONS
from tilec.support.options import documentation_url

KERNEL = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((512, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 32), "float32")
        T.clear(c)
        T.gemm(s, s, c)
"""
FILE = "100%,a:b.tl"


@pytest.fixture(autouse=True)
def _kernel(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(KERNEL)


def written(form: str, capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert tilec(*arguments, "--diagnostics-format", form) == code
    out, said = capfd.readouterr()
    assert out == ""
    return said


def test_text_is_the_default(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", FILE) == 1
    plain = capfd.readouterr().err
    assert plain.startswith("error[shape-mismatch]: operands of T.gemm disagree on N\n")
    assert written("text", capfd, "check", FILE) == plain


@pytest.mark.parametrize("command", [["check"], []], ids=["check", "build"])
def test_json_is_an_object_a_line(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = written("json", capfd, *command, FILE).splitlines()
    record = json.loads(line)
    assert (record["severity"], record["code"]) == ("error", "shape-mismatch")
    assert record["title"] == "operands of T.gemm disagree on N"
    place = {"file": FILE, "line": 8, "column": 9, "end_line": 8, "end_column": 24}
    assert record["primary"].items() >= place.items()
    assert KERNEL.splitlines()[7][8:23] == "T.gemm(s, s, c)"
    assert [label["text"] for label in record["secondary"]] == ["N = 64 from here", "N = 32 from here"]


def test_github_marks_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    """https://docs.github.com/actions/reference/workflow-commands-for-github-actions has the form."""
    (line,) = written("github", capfd, "check", FILE).splitlines()
    start, message = line.removeprefix("::").split("::", 1)
    place = "file=100%25%2Ca%3Ab.tl,line=8,endLine=8,col=9,title=tilec[shape-mismatch]"
    assert start == f"error {place}"
    first, *others = message.split("%0A")
    assert first == "operands of T.gemm disagree on N"
    assert "100%25,a:b.tl:5:13: N = 64 from here" in others


def results(log: str) -> list[dict[str, Any]]:
    record = json.loads(log)
    assert record["version"] == "2.1.0"
    (run,) = record["runs"]
    assert run["tool"]["driver"]["name"] == "tilec"
    assert run["columnKind"] == "unicodeCodePoints"
    found: list[dict[str, Any]] = run["results"]
    for result in found:
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        assert rule["fullDescription"]["text"] == " ".join(EXPLANATIONS[rule["id"]].split())
    return found


def test_sarif_is_one_log_of_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.tl").write_text(KERNEL)
    found = results(written("sarif", capfd, "check", FILE, GEMM, "b.tl"))
    assert [(r["ruleId"], r["level"]) for r in found] == [("shape-mismatch", "error")] * 2
    physical = found[0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "100%25%2Ca%3Ab.tl"
    assert physical["region"] == {"startLine": 8, "startColumn": 9, "endLine": 8, "endColumn": 24}
    assert [r["message"]["text"] for r in found[0]["relatedLocations"]] == ["N = 64 from here", "N = 32 from here"]


def test_sarif_names_files_by_uris(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What begins with a slash is no relative reference: GitHub and others would not find the file."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "é.tl").write_text(KERNEL)
    found = results(written("sarif", capfd, "check", str(folder / "é.tl"), "a folder/é.tl"))
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in found]
    assert uris == [(folder / "é.tl").as_uri(), "a%20folder/%C3%A9.tl"]


@pytest.mark.parametrize("site", ["", "https://docs.example.com/tilec/", "https://docs.example.com"])
def test_rules_of_sarif_link_to_the_documents_where_these_are_a_site(
    site: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_DOCS_URL", site)
    (rule,) = json.loads(written("sarif", capfd, "check", FILE))["runs"][0]["tool"]["driver"]["rules"]
    assert rule.get("helpUri") == (f"{site.rstrip('/')}/diagnostics/#shape-mismatch" if site else None)


def test_the_package_may_say_where_the_documents_are(monkeypatch: pytest.MonkeyPatch) -> None:
    about = Message()
    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    assert documentation_url({}) is None
    about["Project-URL"] = "Source, https://example.com/tilec"
    about["Project-URL"] = "Documentation, https://example.com/docs"
    assert documentation_url({}) == "https://example.com/docs"
    assert documentation_url({"TILEC_DOCS_URL": "http://localhost:8000"}) == "http://localhost:8000"


def test_half_an_address_of_the_documents_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_DOCS_URL", "docs.example.com")
    (result,) = results(written("sarif", capfd, "check", FILE))
    assert result["ruleId"] == "bad-environment"


def test_sarif_of_what_is_right_is_a_log_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert results(written("sarif", capfd, "check", GEMM, code=0)) == []


def test_mistakes_of_the_command_line_have_no_place(capfd: pytest.CaptureFixture[str]) -> None:
    record = json.loads(written("json", capfd, "no.tl"))
    assert (record["code"], record["primary"]) == ("no-such-file", None)
    (result,) = results(written("sarif", capfd, GEMM, "-D", "=3"))
    assert result["ruleId"] == "bad-define"
    assert "locations" not in result
    assert written("github", capfd, "no.tl").startswith("::error title=tilec[no-such-file]::no.tl does not exist")


def test_warnings_are_warnings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, after = KERNEL.replace("64, 32", "64, 64").split("        T.gemm")
    loop = """\
        for k in T.Pipelined(8, num_stages=3, stage=[0, 1], order=[0, 1], sync=[[], []]):
            T.copy(A[k * 64, 0], s)
            T.gemm"""
    (tmp_path / "warn.tl").write_text(before + loop + after)
    found = results(written("sarif", capfd, "check", "warn.tl", "--target", "sm_80", code=0))
    assert {r["level"] for r in found} == {"warning"}
    assert {r["level"] for r in results(written("sarif", capfd, "check", "warn.tl", "-Werror"))} == {"error"}


@pytest.mark.parametrize("form", ["json", "sarif", "github", "text"])
def test_control_characters_are_not_passed_on(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[31m\x9b\u202e\x07\x7f\u2028é"
    lines = [
        "import tilelang.language as T",
        "@T.prim_func",
        'def k(A: T.Tensor((32,), "float32")):',
        "    with T.Kernel(1, threads=32) as bx:",
        f"        T.device_assert(False, {hostile!a})",
    ]
    Path("k.tl").write_text("\n".join(lines))
    assert tilec("check", "k.tl", "--diagnostics-format", form) == 1
    said = capfd.readouterr().err
    assert [c for c in said if not c.isprintable() and c != "\n"] == []
    if form == "json":
        assert hostile in json.loads(said.splitlines()[0])["notes"]
    assert "é" in said


def test_what_a_kernel_prints_cannot_steer_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        "import tilelang.language as T",
        "@T.prim_func",
        'def k(A: T.Tensor((32,), "float32")):',
        "    with T.Kernel(1, threads=32) as bx:",
        '        T.print("\\x1b[2J\\u202eé")',
        "        for i in T.Parallel(32):",
        "            A[i] = 1.0",
    ]
    Path("k.tl").write_text("\n".join(lines))
    assert tilec("emulate", "k.tl") == 0
    said = capfd.readouterr().out
    assert "[2J" in said and "é" in said
    assert [c for c in said if not c.isprintable() and c != "\n"] == []
