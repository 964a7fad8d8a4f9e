"""What `tilec` says of itself: short where nothing is asked, one screen for --help, all for --help-all; and what it
answers where it does not understand."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from command import SMALL, VECTOR_ADD, tilec

from tilec.cli.help import GROUPS, GroupedCommand
from tilec.cli.names import COMMANDS, find_command

GROUPED = [name for name in ("", *COMMANDS) if isinstance(find_command(name.split())[0], GroupedCommand)]


def test_bare(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec() == 2
    assert len(capfd.readouterr().out.splitlines()) < 10


@pytest.mark.parametrize("name", GROUPED)
def test_help_fits_a_screen(name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert tilec(*name.split(), "--help") == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80
    assert "Target:" in lines
    assert sum("-h, --help" in line for line in lines) == 1


@pytest.mark.parametrize("name", GROUPED)
def test_help_all_has_every_option(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*name.split(), "--help-all") == 0
    said = capfd.readouterr().out
    command, _ = find_command(name.split())
    assert all(param.opts[0] in said for param in command.params if isinstance(param, click.Option))


def test_a_long_value_is_named_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", "--help") == 0
    assert "  --expect REF.npz|REF.py:FUNCTION\n" in capfd.readouterr().out


def test_groups_name_options_that_there_are() -> None:
    known = {param.name for name in GROUPED for param in find_command(name.split())[0].params}
    assert {name for group in GROUPS.values() for name in group} <= known


def test_the_command_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("help") == 0
    assert "tilec emulate FILE.tl" in capfd.readouterr().out
    assert tilec("help", "explain", "pipeline") == 0
    assert capfd.readouterr().out.startswith("Usage: tilec explain pipeline ")
    assert tilec("help", "emulat") == 2
    assert "error[command-line]: there is no command 'emulat': did you mean 'emulate'?" in capfd.readouterr().err
    assert tilec("help", "nosuch") == 2
    assert "there is no command 'nosuch': `tilec help` lists them" in capfd.readouterr().err


CODE = "command-line"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ouput", "x", VECTOR_ADD], "did you mean --output?"),
        (["tune", "--nope", VECTOR_ADD], "tilec tune has no option --nope"),
        (["emulate"], "missing argument"),
        (["-o", "g.ptx", "--emit", "cubin", VECTOR_ADD], "-o g.ptx names a ptx file"),
        (["check", "-j", "0", VECTOR_ADD], "0 is not in the range"),
        (["-o", "foo.txt", VECTOR_ADD], "-o foo.txt: no kind of output is called .txt; write one of .ptx, .cubin,"),
        (["-o", "foo.s", VECTOR_ADD], "or name the kind with --emit"),
        (["-o", "out/x.foo", "--target", "sm_80,sm_90a", VECTOR_ADD], "no kind of output is called .foo"),
        (["-maxrregcount=64", VECTOR_ADD], "T.annotate_min_blocks_per_sm(2) in the kernel requests"),
        (["-Xptxas", "-v", VECTOR_ADD], "--verbose shows its report"),
        (["-Xcompiler=-O2", VECTOR_ADD], "--emit header"),
        (["emulate", VECTOR_ADD, "--expect"], "`tilec emulate --help-all` shows its options"),
        (["report", VECTOR_ADD, "--html"], "`tilec report --help-all` shows its options"),
        (["emulate", VECTOR_ADD, "--size", "M", "100"], "write --size M=100"),
        ([VECTOR_ADD, "--html", "f.html"], "`tilec report` has it"),
        ([VECTOR_ADD, "--emit", "ptxx"], "did you mean ptx?"),
        (["new", "mine", "--template", "matmul"], "did you mean gemm?"),
        ([VECTOR_ADD, "--template", "gemm"], "`tilec new` has it"),
    ],
)
def test_command_lines_that_are_wrong(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*words) == 2
    found = capfd.readouterr().err
    assert found.startswith(f"error[{CODE}]: ")
    assert said in found
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-ptx", "-arch=sm_80"],
        ["--ptx", "-arch", "sm_80"],
        ["-S", "--gpu-architecture=sm_80"],
        ["-ptx", "-gencode", "arch=compute_80,code=[sm_80,compute_80]"],
        ["-ptx", "-arch=compute_80", "-code=sm_80"],
        ["-ptx", "--gencode", "arch=compute_80,code=sm_80"],
        ["-ptx", "-arch=sm_80", "-std=c++17", "-dc", "-rdc=true"],
        ["--target", "sm_80"],
    ],
)
def test_ptx_by_any_name(words: list[str], tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, *words, "-o", "made/here/k.ptx") == 0
    assert "\n.target sm_80" in (tmp_path / "made/here/k.ptx").read_text()


def test_names_without_a_suffix_and_kinds_that_are_stated(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-o", "plain") == 0
    assert tilec(VECTOR_ADD, "-o", "/dev/null") == 0
    assert tilec(VECTOR_ADD, "--emit", "ptx", "-o", "kernel.s") == 0
    assert (tmp_path / "plain").read_bytes().startswith(b"\x7fELF")
    assert ".target" in (tmp_path / "kernel.s").read_text()


def test_what_is_so_anyway(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-g", "-Wall", "-ptx", "-o", "-") == 0
    found = capfd.readouterr()
    assert found.err.count("note[needless-option]") == 2
    assert ".loc" in found.out


def test_a_word_of_another_compiler_that_is_ours_stays(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "-arch=sm_80", "-S") == 2
    assert "tilec emulate has no option -S" in capfd.readouterr().err


WRONG = """
import tilelang.language as T


@T.prim_func
def k(A: T.Tensor((4,), "float17")):
    with T.Kernel(1) as bx:
        pass
"""


def test_check_of_folders_patterns_and_standard_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/one.tl").write_text(WRONG)
    (tmp_path / "two.tl").write_text(WRONG)
    (tmp_path / "parts.tl").write_text("n = 4\n")
    assert tilec("check", ".") == 1
    assert capfd.readouterr().err.endswith("\n2 errors in 2 files\n")
    assert tilec("check", "*.tl") == 1
    assert capfd.readouterr().err.endswith("\n1 error in 1 file\n")
    assert tilec("check", "parts.tl") == 1
    assert "error[no-kernel]" in capfd.readouterr().err
    assert tilec("check", "*.cu") == 1
    assert "error[no-such-file]: there is no kernel file in *.cu" in capfd.readouterr().err
    with (tmp_path / "two.tl").open() as given:
        monkeypatch.setattr("sys.stdin", given)
        assert tilec("check", "-") == 1
    assert " --> <stdin>:6:" in capfd.readouterr().err


FOR_BLACKWELL = """\
import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((128, 64), "float16"), C: T.Tensor((128, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        C_l = T.alloc_fragment((128, 64), "float32")
        C_t = T.alloc_tmem((128, 64), "float32")
        done = T.alloc_barrier(1)
        T.copy(A, A_s)
        T.copy(A[:64, :], B_s)
        T.tcgen05_gemm(A_s, B_s, C_t, transpose_B=True, clear_accum=True, mbar=done)
        T.mbarrier_wait_parity(done, 0)
        T.copy(C_t, C_l)
        T.copy(C_l, C)
"""


def test_check_of_a_folder_takes_kernels_of_other_targets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file or a target that is named is taken at its word, and a kernel that is wrong everywhere stays wrong."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below/tensor.tl").write_text(FOR_BLACKWELL)
    assert tilec("check", "below", "--diagnostics-format", "json") == 0
    found = json.loads(capfd.readouterr().err)
    assert (found["code"], found["severity"]) == ("for-another-target", "note")
    assert found["title"] == "this kernel needs features that sm_90a lacks; it is correct for sm_100a"
    assert found["primary"]["text"] == "sm_90a has no tensor memory" and found["help"] == "--target sm_100a checks it"
    assert tilec("check", "below") == 0
    assert capfd.readouterr().err.endswith("\n1 note in 1 file\n")
    assert tilec("check", "below", "--target", "sm_90a") == tilec("check", "below/tensor.tl") == 1
    assert tilec("check", "below", "--target", "sm_100a") == 0
    capfd.readouterr()
    (tmp_path / "below/tensor.tl").write_text(FOR_BLACKWELL.replace("T.copy(A, A_s)", "T.copy(A, A_x)"))
    assert tilec("check", "below") == 1
    assert "error[" in capfd.readouterr().err


def test_fmt_of_standard_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k.tl"
    path.write_text(Path(VECTOR_ADD).read_text().replace(" = 256", "=256"))
    with path.open() as given:
        monkeypatch.setattr("sys.stdin", given)
        assert tilec("fmt", "-") == 0
    assert capfd.readouterr().out == Path(VECTOR_ADD).read_text()
    assert tilec("fmt", "-", "--check") == 2


def test_inspect_of_a_fatbin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--target", "sm_80,sm_90a", "-o", "k.fatbin") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["k.fatbin"]
    assert tilec("inspect", "k.fatbin") == 0
    said = capfd.readouterr().out
    assert "sm_80" in said
    assert "sm_90a" in said
    data = (tmp_path / "k.fatbin").read_bytes()
    (tmp_path / "half.fatbin").write_bytes(data[:20])
    assert tilec("inspect", "half.fatbin") == 1
    assert "error[not-a-cubin]" in capfd.readouterr().err
