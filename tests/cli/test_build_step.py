"""tilec as a step of a build: several files and targets at once, depfiles, response files, and the same bytes again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec

from tilec.cli.commands import build
from tilec.ir.manifest import extract_from_cubin, to_json
from tilec.support import files, resources
from tilec.support.diagnostics import CompileError

TWO = ["--target", "sm_80,sm_90a"]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- several files, several targets ----------------------------------------------------------------------------------


def test_each_target_has_its_cubin_and_a_fatbin_has_them_all(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, *TWO, "-o", "out.cubin") == 0
    assert names(tmp_path) == ["out.fatbin", "out.sm_80.cubin", "out.sm_90a.cubin"]
    whole = (tmp_path / "out.fatbin").read_bytes()
    for target in ("sm_80", "sm_90a"):
        cubin = (tmp_path / f"out.{target}.cubin").read_bytes()
        assert [m.target for m in extract_from_cubin(cubin)] == [target]
        assert cubin in whole


def test_what_the_assembler_says_names_the_target(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, *SMALL, *TWO, "-v") == 0
    said = [line.partition(":")[0] for line in capfd.readouterr().err.splitlines()]
    assert said == ["vector_add for sm_80", "vector_add for sm_90a"]


def test_a_report_is_about_each_target(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("report", VECTOR_ADD, *SMALL, *TWO) == 0
    said = capfd.readouterr().out
    assert said.index("vector_add on sm_80: ") < said.index("vector_add on sm_90a: ")
    assert tilec("report", VECTOR_ADD, *SMALL, *TWO, "--html", "pages") == 0
    assert names(Path("pages")) == ["index.html", "vector_add.sm_80.html", "vector_add.sm_90a.html"]


@pytest.mark.parametrize("command", ["schedule", "emulate", "tune", "explain pipeline"])
def test_other_commands_are_about_one_target(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*command.split(), VECTOR_ADD, *TWO) == 2
    assert "--target sm_80,sm_90a: this command takes one target" in capfd.readouterr().err


def test_a_target_named_twice_is_one(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--target", "sm_80,sm_80") == 0
    assert names(tmp_path) == ["vector_add.cubin"]


def test_only_the_fatbin_goes_where_it_is_told(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, *TWO, "--emit", "fatbin", "-o", "anything") == 0
    assert names(tmp_path) == ["anything"]


def test_several_files_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert tilec(VECTOR_ADD, GEMM, "-o", "out", "--emit", "cubin,ptx") == 0
    assert names(tmp_path / "out") == ["gemm.cubin", "gemm.ptx", "vector_add.cubin", "vector_add.ptx"]


def test_a_name_that_ends_with_a_slash_is_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert tilec(VECTOR_ADD, *SMALL, "-o", "file/") == 1
    assert "file is not a directory" in capfd.readouterr().err
    (tmp_path / "file").unlink()
    assert tilec(VECTOR_ADD, *SMALL, "-o", "out/") == 0
    assert tilec(VECTOR_ADD, *SMALL, "-o", "out/", "--emit", "ptx,json") == 0
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["vector_add.cubin", "vector_add.json", "vector_add.ptx"]


def test_several_processes_make_the_same(tmp_path: Path) -> None:
    for jobs in ("1", "4"):
        (tmp_path / jobs).mkdir()
        assert tilec(VECTOR_ADD, GEMM, *TWO, "-j", jobs, "-o", jobs, "--emit", "cubin,fatbin,schedule") == 0
    assert len(names(tmp_path / "1")) == 10
    for name in names(tmp_path / "1"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes(), name


def test_the_launch_manifests_as_json(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--emit", "json,cubin") == 0
    (record,) = json.loads((tmp_path / "vector_add.json").read_text())
    (manifest,) = extract_from_cubin((tmp_path / "vector_add.cubin").read_bytes())
    assert record == json.loads(to_json(manifest))


def test_dumps_of_several_have_folders(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, *TWO, "--dump-ir", "dump", "--emit", "ptx") == 0
    assert names(tmp_path / "dump") == ["sm_80", "sm_90a"]
    for target in ("sm_80", "sm_90a"):
        assert {"01-parse-file.ast", "05-fold-constants.tile"} <= set(names(tmp_path / "dump" / target))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GEMM, VECTOR_ADD, "--schedule-trace-file", "t.json"], "--schedule-trace-file needs a single kernel file"),
        ([GEMM, *TWO, "--schedule", "t.json"], "--schedule needs a single kernel file and a single target"),
        ([GEMM, *TWO, "--stop-after", "ptx"], "--stop-after without -o or --emit needs a single"),
        ([GEMM, VECTOR_ADD, "-MF", "all.d"], "-MF names one file"),
        ([GEMM, "--stop-after", "ptx", "-MD"], "-MD and -MF need an output file"),
        ([GEMM, "-O1", "--emit", "fatbin"], "-O1 ends with stage alias: there is no cubin"),
        ([GEMM, "--stop-after", "ptx", "--emit", "json"], "--stop-after ptx comes before --emit json"),
    ],
)
def test_what_is_for_one_file(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tilec(*arguments) == 2
    assert said in " ".join(capfd.readouterr().err.split())
    assert names(tmp_path) == []


def test_files_of_one_name_do_not_replace_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    shutil.copy(VECTOR_ADD, "a/gemm.tl")
    assert tilec("a/gemm.tl", GEMM) == 1
    said = capfd.readouterr().err
    assert "cannot write gemm.cubin: another output has the same path" in said
    assert f"both a/gemm.tl and {GEMM} write it" in said
    assert names(tmp_path) == ["a"]


BAD = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=128) as bx:
        T.copy(A, nowhere)
"""


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_one_wrong_kernel_leaves_nothing_written_and_is_told_once(
    jobs: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.tl").write_text(BAD)
    (tmp_path / "worse.tl").write_text(BAD.replace("nowhere", "anywhere"))
    assert tilec("bad.tl", VECTOR_ADD, "worse.tl", *TWO, "-j", jobs) == 1
    said = capfd.readouterr().err
    assert said.count("error[") == 2
    assert said.index("nowhere") < said.index("anywhere")
    assert names(tmp_path) == ["bad.tl", "worse.tl"]
    assert tilec("check", "bad.tl", GEMM, "worse.tl", *TWO, "-j", jobs) == 1
    assert capfd.readouterr().err == f"{said}2 errors in 2 files\n"


# ---- depfiles --------------------------------------------------------------------------------------------------------


def rule(path: Path) -> tuple[list[str], list[str]]:
    """Outputs and inputs, as make reads them."""
    outputs, _, inputs = path.read_text().replace("\\ ", "\0").replace("$$", "$").strip().partition(": ")
    return tuple([w.replace("\0", " ") for w in side.split()] for side in (outputs, inputs))


def test_the_depfile_names_everything_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "sizes.tl").write_text("N = 1024\n")
    text = Path(VECTOR_ADD).read_text()
    (tmp_path / "my $kernel.tl").write_text("from .parts.sizes import N as M\n" + text)
    assert tilec("my $kernel.tl", *TWO, "-MD", "--emit", "cubin,ptx") == 0
    outputs, inputs = rule(tmp_path / "my $kernel.d")
    assert outputs == [f"my $kernel.{t}.{s}" for s in ("cubin", "ptx") for t in ("sm_80", "sm_90a")]
    machines = [str(resources.target_file(name)) for name in ("sm_80", "sm_90a")]
    assert inputs == ["my $kernel.tl", "parts/sizes.tl", *machines]
    assert all(Path(path).is_file() for path in [*outputs, *inputs])


@pytest.mark.weekly
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_understands_the_depfile(tmp_path: Path) -> None:
    """Names with blanks, `$` and `#` are files to make, whose change makes the output old; and nothing in them runs."""
    names = (
        "a b.tl",
        "$(touch ran).tl",
        "#c.tl",
        "é.tl",
        "%.tl",
        "x:y.tl",
        "~.tl",
        "[d]*?.tl",
        "$$@.tl",
        "back\\slash.tl",
    )
    text = Path(VECTOR_ADD).read_text()
    understood = []
    for name in names:
        (tmp_path / name).write_text(text)
        if tilec(f"./{name}", "-o", "out.cubin", "-MF", "out.d"):
            continue  # what make may read in another way is refused
        (tmp_path / "Makefile").write_text("all: out.cubin\n\nout.cubin:\n\t@echo made again\n\ninclude out.d\n")

        def said() -> str:
            done = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=True)
            return done.stdout

        assert "made again" not in said(), name
        os.utime(tmp_path / name, (2**31, 2**31))
        assert "made again" in said(), name
        assert not (tmp_path / "ran").exists()
        understood.append(name)
    assert understood == ["a b.tl", "#c.tl", "é.tl", "$$@.tl"]


def test_a_schedule_that_is_read_is_a_dependence(tmp_path: Path) -> None:
    assert tilec(GEMM, "--emit", "schedule") == 0
    assert tilec(GEMM, "--schedule", "gemm.trace.json", "-o", "a.cubin", "-MF", "some.d") == 0
    assert rule(tmp_path / "some.d") == (
        ["a.cubin"],
        [GEMM, "gemm.trace.json", str(resources.target_file("sm_90a"))],
    )


def test_the_depfile_is_no_other_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin", "-MF", "a.cubin") == 1
    assert "error[unwritable-output]" in capfd.readouterr().err


# ---- response files --------------------------------------------------------------------------------------------------


def test_words_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "options.txt").write_text("# how\n--target sm_80 -D 'N=2048'\n@more.txt\n")
    (tmp_path / "more.txt").write_text(f'"{VECTOR_ADD}"\n-o "with space.cubin"')
    assert tilec("@options.txt") == 0
    (manifest,) = extract_from_cubin((tmp_path / "with space.cubin").read_bytes())
    assert (manifest.target, manifest.grid) == ("sm_80", (2, 1, 1))


@pytest.mark.parametrize(
    ("text", "said"), [("@r.txt", "r.txt names itself"), ("-o 'a", "no closing quotation"), (None, "does not exist")]
)
def test_response_files_that_cannot_be_used(text: str | None, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        Path("r.txt").write_text(text)
    assert tilec(VECTOR_ADD, "@r.txt") == 1
    shown = capfd.readouterr().err
    assert said in shown
    assert ("bad-response-file" if text is not None else "no-such-file") in shown


def test_a_command_line_of_too_many_words(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is done with any of them."""
    assert tilec(VECTOR_ADD, *["-D", "N=1024"] * 100_000) == 2
    assert "the command line has 200,001 words, with those of its @FILEs; the limit is 20,000" in capfd.readouterr().err


def test_a_dash_is_standard_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert tilec(VECTOR_ADD, *SMALL, "--emit", "ptx", "-o", "a.ptx") == 0
    assert tilec(VECTOR_ADD, *SMALL, "--emit", "ptx", "-o", "-") == 0
    assert capfdbinary.readouterr().out == (tmp_path / "a.ptx").read_bytes()
    for more in (["--emit", "ptx,cubin"], [GEMM], ["-MD"]):
        assert tilec(VECTOR_ADD, *more, "-o", "-") == 2
        assert b"-o - is standard output" in capfdbinary.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.ptx"]


def test_response_files_are_read_and_no_outputs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "more.txt").write_text("-D N=2048")
    (tmp_path / "how.txt").write_text("@more.txt -MD")
    assert tilec(VECTOR_ADD, "@how.txt", "-o", "a.cubin") == 0
    assert rule(tmp_path / "a.d")[1] == [VECTOR_ADD, "how.txt", "more.txt", str(resources.target_file("sm_90a"))]
    assert tilec(VECTOR_ADD, "@how.txt", "-o", "more.txt") == 1
    assert "cannot write more.txt: it is the input more.txt" in capfd.readouterr().err


# ---- the same bytes --------------------------------------------------------------------------------------------------


def test_output_does_not_depend_on_where_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, another cache, another name of the file's place: every kind of output has the same bytes."""
    kinds = "cubin,ptx,warp,schedule,json,fatbin,tile,alias,layout,problem,expand"
    made: list[dict[str, bytes]] = []
    for place in ("here", "there/further"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        shutil.copy(GEMM, folder)
        monkeypatch.setenv("TILEC_CACHE_DIR", str(folder / "cache"))
        monkeypatch.chdir(folder if place == "here" else tmp_path)
        source = "gemm.tl" if place == "here" else os.path.join(place, "gemm.tl")  # noqa: PTH118 - relative, as typed
        (folder / "out").mkdir()
        assert tilec(source, *TWO, "--emit", kinds, "-o", str(folder / "out" / "k")) == 0
        made.append({p.name: p.read_bytes() for p in (folder / "out").iterdir()})
    assert len(made[0]) == 21
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    assert made[0].keys() == made[1].keys()


def test_a_smaller_problem_is_another_output(tmp_path: Path) -> None:
    """That the comparison above can fail."""
    assert tilec(VECTOR_ADD, "-o", "a.cubin") == 0
    assert tilec(VECTOR_ADD, *SMALL, "-o", "b.cubin") == 0
    assert (tmp_path / "a.cubin").read_bytes() != (tmp_path / "b.cubin").read_bytes()


@pytest.mark.parametrize(
    "name", ["a;id", "`id`", "$(id)", "a\\\\", "a=b", "%", "a:b", "*", "a|b", "a&", "~", "a\tb", "a\nb"]
)
def test_what_make_would_run_or_read_otherwise_is_in_no_rule(name: str) -> None:
    for outputs, inputs in (([name], ["k.tl"]), (["k.cubin"], ["k.tl", name])):
        with pytest.raises(CompileError) as error:
            build._format_make_rule(outputs, inputs)
        assert error.value.diagnostics[0].code == "unwritable-output"
    assert build._format_make_rule(["my $k.cubin"], ["it's #1.tl"]) == "my\\ $$k.cubin: it's\\ \\#1.tl\n"


# ---- @FILE and pipes -------------------------------------------------------------------------------------------------


def test_files_of_words_that_double_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Twenty files of two lines are a million words."""
    for number in range(15):
        (tmp_path / str(number)).write_text(f"@{number + 1}\n@{number + 1}\n")
    (tmp_path / "15").write_text("-v\n")
    assert tilec("@0") == 1
    assert "is not read: it is one of more than 256 @ words" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-D x=1\n" * 10_001, "beyond the limit of 20,000 words"),
        ("#" * (1 << 20) + "\n", "has more than 1,048,576 bytes"),
        ("@deeper", "more than 16 files deep"),
    ],
)
def test_files_of_words_have_bounds(text: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words").write_text(text)
    (tmp_path / "deeper").write_text("@d1")
    for number in range(1, 20):
        (tmp_path / f"d{number}").write_text(f"@d{number + 1}")
    assert tilec("@words") == 1
    assert says in capfd.readouterr().err


def test_a_pipe_that_nobody_writes_to_is_no_kernel_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "k.tl")
    for words in (["k.tl"], ["check", "k.tl"], ["@k.tl"]):
        assert tilec(*words) == 1
        assert "k.tl is a pipe, not a file" in capfd.readouterr().err


def test_a_pipe_of_the_shell_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"M = 1\n")
    os.close(writer)
    try:
        assert files.read_source(f"/dev/fd/{reader}").text == "M = 1\n"
    finally:
        os.close(reader)
