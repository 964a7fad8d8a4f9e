"""Outputs appear whole or not at all; unreadable inputs are diagnostics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.support import files
from tilec.support.diagnostics import CompileError


def _code(error: pytest.ExceptionInfo[CompileError]) -> str:
    return error.value.diagnostics[0].code


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        files.read_source(str(tmp_path / "absent.tl"))
    assert _code(error) == "no-such-file"


def test_directory_as_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        files.read_source(str(tmp_path))
    assert _code(error) == "not-a-file"


def test_text_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.tl"
    path.write_bytes(b"# ok\n# caf\xe9\n")
    with pytest.raises(CompileError) as error:
        files.read_source(str(path))
    assert _code(error) == "not-utf8"
    assert "line 2" in error.value.diagnostics[0].title


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.tl"
    path.write_bytes(b"\xef\xbb\xbfM = 1\n")
    assert files.read_source(str(path)).text == "M = 1\n"


@pytest.mark.parametrize(("name", "code"), [("file/out.cubin", "unwritable-output"), (".", "not-a-file")])
def test_outputs_that_cannot_be_written(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError) as error:
        files.check_writable(str(tmp_path / name))
    assert _code(error) == code


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError) as error:
        files.check_writable(str(tmp_path / "file" / "out.cubin"))
    assert "is not a directory" in error.value.diagnostics[0].title


def test_nothing_is_left_when_one_of_several_outputs_fails(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_bytes(b"old")
    with pytest.raises(CompileError):
        files.write_all({str(first): b"new", str(first / "second"): b"new"})
    assert first.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["first"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    files.write_all({str(link): b"new"})
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_device_is_written_not_replaced() -> None:
    files.write_all({"/dev/null": b"gone"})
    assert Path("/dev/null").is_char_device()


# ---- outputs against inputs and each other ---------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["own.tl", "./own.tl", "sub/../own.tl", "link.tl", "hard.tl"])
def test_an_output_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    own = tmp_path / "own.tl"
    own.write_text("M = 1\n")
    (tmp_path / "link.tl").symlink_to(own)
    (tmp_path / "hard.tl").hardlink_to(own)
    with pytest.raises(CompileError) as error:
        files.check_outputs([output], inputs=["own.tl"])
    assert _code(error) == "unwritable-output"
    assert error.value.diagnostics[0].title == f"cannot write {output}: it is the input own.tl"


@pytest.mark.parametrize("second", ["out", "./out", "sub/../out", "link"])
def test_two_outputs_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("out")  # which does not exist yet
    with pytest.raises(CompileError) as error:
        files.check_outputs(["out", second], inputs=[])
    assert _code(error) == "unwritable-output"


def test_a_device_may_be_named_twice() -> None:
    files.check_outputs(["/dev/null", "/dev/null"], inputs=["/dev/null"])


def test_an_input_that_does_not_exist_is_left_to_its_reader(tmp_path: Path) -> None:
    files.check_outputs([str(tmp_path / "new")], inputs=[str(tmp_path / "new")])


def test_a_symbolic_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CompileError) as error:
        files.check_outputs([str(tmp_path / "loop")], inputs=[])
    assert _code(error) == "unwritable-output"


def test_a_name_too_long_for_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        files.check_writable(str(tmp_path / ("a" * 300)))
    assert _code(error) == "unwritable-output"
