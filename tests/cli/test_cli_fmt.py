"""`tilec fmt`: another layout, the same kernel, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import GEMM, SAMPLES, SMALL, VECTOR_ADD, tilec

from tilec.frontend.syntax import ast, formatting
from tilec.frontend.syntax.parse import parse_file
from tilec.support.diagnostics import CompileError
from tilec.support.files import read_source
from tilec.support.source import SourceFile

UNTIDY = """\
# who wrote it
import tilelang.language as T
N = 256  # elements


@T.prim_func
def doubled(A: T.Tensor((N,), 'float32')):
    '''Doubles␣␣␣
    each.'''
    with T.Kernel(1, threads = 128):
        # in place

        for i in T.Parallel(N): A[i] = A[i]*0X2
        y  =  [1,2]  # fmt: skip
        # fmt: off
        x   =   1
        # fmt: on


def reference(a):
    '''What it should be.  '''
    try: return {**a}
    finally: print( f"{a!r:>4}" )
""".replace("␣", " ")
TIDY = '''\
# who wrote it
import tilelang.language as T

N = 256  # elements


@T.prim_func
def doubled(A: T.Tensor((N,), "float32")):
    """Doubles
    each."""
    with T.Kernel(1, threads=128):
        # in place

        for i in T.Parallel(N):
            A[i] = A[i] * 0x2
        y  =  [1,2]  # fmt: skip
        # fmt: off
        x   =   1
        # fmt: on


def reference(a):
    """What it should be."""
    try:
        return {**a}
    finally:
        print(f"{a!r:>4}")
'''


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    path = tmp_path / "untidy.tl"
    path.write_text(UNTIDY)
    return path


def test_comments_docstrings_and_guarded_lines_stay(untidy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    untidy.chmod(0o640)
    assert tilec("fmt", "untidy.tl") == 0
    assert untidy.read_text() == TIDY
    assert capfd.readouterr().out == "formatted untidy.tl\n"
    assert untidy.stat().st_mode & 0o777 == 0o640
    assert isinstance(parse_file(SourceFile("untidy.tl", TIDY)).body[-1], ast.Foreign)
    assert [p.name for p in untidy.parent.iterdir()] == ["untidy.tl"]
    assert tilec("fmt", "untidy.tl", "--check", "--diff") == 0
    assert capfd.readouterr().out == ""


def test_check_and_diff_write_nothing(untidy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (untidy.parent / "tidy.tl").write_text(TIDY)
    assert tilec("fmt", "--check", "tidy.tl", "untidy.tl") == 1
    assert capfd.readouterr().out == "would format untidy.tl\n"
    untidy.write_text("x =  1\ny = 2")
    assert tilec("fmt", "--diff", "tidy.tl", "untidy.tl") == 1
    assert capfd.readouterr().out == (
        "--- untidy.tl\n+++ untidy.tl\n@@ -1,2 +1,2 @@\n-x =  1\n-y = 2\n\\ No newline at end of file\n+x = 1\n+y = 2\n"
    )
    assert untidy.read_text() == "x =  1\ny = 2"


def test_encoding_and_line_ends_stay(untidy: Path) -> None:
    untidy.write_bytes(b"\xef\xbb\xbf" + UNTIDY.replace("who", "Ŵho").replace("\n", "\r\n").encode())
    assert tilec("fmt", "untidy.tl") == 0
    assert untidy.read_bytes() == b"\xef\xbb\xbf" + TIDY.replace("who", "Ŵho").replace("\n", "\r\n").encode()


def test_one_file_by_two_names_and_links(untidy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    link = untidy.with_name("link.tl")
    link.symlink_to("untidy.tl")
    assert tilec("fmt", "untidy.tl", "./untidy.tl", "link.tl") == 0
    assert capfd.readouterr().out.count("\n") == 1
    assert link.is_symlink()
    assert untidy.read_text() == TIDY


def test_the_settings_of_the_folder_hold(untidy: Path) -> None:
    untidy.with_name("ruff.toml").write_text('format.quote-style = "single"\nexclude = ["*.tl"]')
    assert tilec("fmt", "untidy.tl") == 0
    assert "'float32'" in untidy.read_text()


def test_with_a_wrong_file_none_is_written(untidy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = untidy.with_name("wrong.tl")
    wrong.write_text("N =\n")
    assert tilec("fmt", "wrong.tl", "absent.tl", "untidy.tl") == 1
    assert "wrong.tl:1" in capfd.readouterr().err
    assert tilec("fmt", "absent.tl", "untidy.tl") == 1
    assert "[no-such-file]" in capfd.readouterr().err
    assert untidy.read_text() == UNTIDY


def test_what_would_be_another_kernel_is_not_written(
    untidy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in (("* 0x2", "* 2.0"), ("{a!r:>4}", "{a!r:>5}"), ('"float32"', '"float16"'), ("each", "all")):
        with monkeypatch.context() as patched:
            patched.setattr(formatting, "_run_ruff", lambda source, change=change: TIDY.replace(*change))
            assert code_of(read_source("untidy.tl")) == "formatting-changes"
            assert tilec("fmt", "untidy.tl") == 1
        assert "ruff would change the meaning" in capfd.readouterr().err
        assert untidy.read_text() == UNTIDY


def code_of(source: SourceFile) -> str:
    with pytest.raises(CompileError) as error:
        formatting.format_kernel(source)
    return error.value.diagnostics[0].code


def test_ruff_that_is_not_there_or_fails(untidy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untidy.with_name("ruff.toml").write_text("no-such-setting = 1")
    assert code_of(read_source("untidy.tl")) == "formatting-failed"
    monkeypatch.setitem(sys.modules, "ruff", None)
    assert code_of(read_source("untidy.tl")) == "no-formatter"


@pytest.mark.some(10)
@pytest.mark.parametrize("path", sorted(SAMPLES.rglob("*.tl")), ids=lambda p: p.stem)
def test_samples_stay_what_they_are(path: Path) -> None:
    source = read_source(str(path))
    once = SourceFile(source.path, formatting.format_kernel(source))
    assert parse_file(once) == parse_file(source), "docstrings included: those of the samples are tidy"
    assert formatting.format_kernel(once) == once.text


@pytest.mark.parametrize(("sample", "constants"), [(GEMM, ()), (VECTOR_ADD, SMALL)], ids=["gemm", "vector_add"])
def test_formatted_samples_give_the_same_code(sample: str, constants: list[str], tmp_path: Path) -> None:
    def ptx(text: str) -> bytes:
        (tmp_path / "kernel.tl").write_text(text)
        assert tilec("kernel.tl", *constants, "--emit", "ptx", "-o", "kernel.ptx") == 0
        return without_places((tmp_path / "kernel.ptx").read_bytes())

    source = read_source(sample)
    loose = source.text.replace(" = ", "  =  ")
    assert (formatted := formatting.format_kernel(SourceFile("kernel.tl", loose))) != loose
    assert ptx(formatted) == ptx(source.text) == ptx(loose)


def without_places(ptx: bytes) -> bytes:
    """The lines of the source may be others."""
    return b"\n".join(line for line in ptx.splitlines() if not line.lstrip().startswith(b".loc"))


def test_the_other_commands_do_not_need_ruff() -> None:
    looked = "import sys; from tilec.cli.main import main; main(['check', sys.argv[1]]); print('ruff' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", looked, VECTOR_ADD], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
