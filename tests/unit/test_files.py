"""Outputs appear whole or not at all; unreadable inputs are diagnostics."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_IMODE

import pytest

from tilec.support import files
from tilec.support.diagnostics import CompileError
from tilec.support.staging import Staging, open_staging


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


# ---- folders that others may write -----------------------------------------------------------------------------------


def test_names_of_temporary_folders_are_random_and_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    for folder in (victim, shared):
        folder.mkdir()
    (shared / f".tilec-{bytes(8).hex()}").symlink_to(victim)
    drawn = iter([bytes(8), bytes(8), bytes([1] * 8)])
    monkeypatch.setattr(os, "urandom", lambda _: next(drawn))
    files.write_all({str(shared / "out"): b"new"})
    assert (shared / "out").read_bytes() == b"new"
    assert not list(victim.iterdir())
    assert list(drawn) == []


@pytest.mark.parametrize("length", [245, 255])
def test_a_name_as_long_as_names_may_be(tmp_path: Path, length: int) -> None:
    files.write_all({str(tmp_path / ("a" * length)): b"new"})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_link_that_someone_else_has_made_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious, link = tmp_path / "precious", tmp_path / "out"
    precious.write_bytes(b"old")
    link.symlink_to(precious)
    monkeypatch.setattr(files, "_link_owner", lambda _: 4242)
    for attempt in (lambda: files.write_all({str(link): b"new"}), lambda: files.check_outputs([str(link)], [])):
        with pytest.raises(CompileError) as error:
            attempt()
        assert error.value.diagnostics[0].title == f"cannot write {link}: it is a link of another user"
    assert precious.read_bytes() == b"old"


@pytest.mark.parametrize("planted", ["link", "folder", "pipe"])
def test_outputs_replace_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """What others have put there after it was looked at, and before the outputs got their names."""
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_bytes(b"old")
    write = Staging.write

    def write_late(staged: Staging, data: bytes, name: str) -> int:
        number = write(staged, data, name)
        if name == "out":
            make = {"link": lambda: out.symlink_to(precious), "folder": out.mkdir, "pipe": lambda: os.mkfifo(out)}
            make[planted]()
        return number

    monkeypatch.setattr(Staging, "write", write_late)
    with pytest.raises(CompileError) as error:
        files.write_all({str(tmp_path / "first"): b"new", str(out): b"new"})
    assert error.value.diagnostics[0].title == f"cannot write {out}: it is not a regular file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "precious"]
    assert precious.read_bytes() == b"old"


def test_a_device_that_has_become_a_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"old")
    monkeypatch.setattr(files, "_is_special", lambda _: True)
    with pytest.raises(CompileError):
        files.write_all({str(precious): b"new"})
    assert precious.read_bytes() == b"old"


def test_permissions_stay_but_not_those_that_give_rights_to_who_runs_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o4751)
    files.write_all({str(out): b"new"})
    assert S_IMODE(out.stat().st_mode) == 0o751


# ---- what killed processes leave -------------------------------------------------------------------------------------


def _killed(folder: Path, *contents: str) -> Path:
    """Leave a private folder as a killed process does: unlocked, with what it has written."""
    private = folder / ".tilec-0123456789abcdef"
    private.mkdir(mode=0o700)
    for name in contents:
        (private / name).write_bytes(b"half")
    return private


def test_strays_are_removed_by_whoever_writes_there_next(tmp_path: Path) -> None:
    _killed(tmp_path, "0", "1")
    files.write_all({str(tmp_path / "out"): b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_living_process_writes_is_no_stray(tmp_path: Path) -> None:
    with open_staging(tmp_path) as staged:
        number = staged.write(b"first", "first")
        files.write_all({str(tmp_path / "second"): b"second"})
        staged.place(number, "first")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


@pytest.mark.parametrize("kind", ["other files", "open to others", "link", "file"])
def test_what_is_no_stray_stays(tmp_path: Path, kind: str) -> None:
    private = _killed(tmp_path, "0", *(["thesis.tex"] if kind == "other files" else []))
    if kind == "open to others":
        private.chmod(0o755)
    elif kind != "other files":
        moved = private.rename(tmp_path / "moved")
        private.symlink_to(moved) if kind == "link" else private.write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    files.write_all({str(tmp_path / "out"): b"new"})
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "out"])


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
