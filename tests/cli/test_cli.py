"""The command line: what goes where, exit codes, and that nothing is written on a mistake."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec

from tilec import __version__
from tilec.cli.main import main
from tilec.driver.explanations import EXPLANATIONS
from tilec.driver.pipeline import PIPELINE
from tilec.ir.manifest import extract_from_cubin
from tilec.ir.types import TYPES_BY_NAME


def test_compiles_to_the_current_folder(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD) == 0
    assert [m.entry for m in extract_from_cubin((tmp_path / "vector_add.cubin").read_bytes())] == ["vector_add"]
    assert [p.name for p in tmp_path.iterdir()] == ["vector_add.cubin"]


def test_prints_nothing_when_all_is_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin") == 0
    assert capfd.readouterr() == ("", "")


def test_several_kinds_share_a_name(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-o", "out.cubin", "--emit", "cubin,ptx,tile,warp") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.cubin", "out.ptx", "out.tile", "out.warp"]
    assert ".entry vector_add" in (tmp_path / "out.ptx").read_text()


def test_one_kind_goes_where_it_is_told(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-o", "anything.txt", "--emit", "ptx") == 0
    assert (tmp_path / "anything.txt").read_text().startswith(".version")


def test_dump_writes_what_every_pass_makes(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--dump-ir", "dump") == 0
    numbers = {row.name: number for number, row in enumerate(PIPELINE, 1)}
    named = [path.name.split(".")[0].split("-", 1) for path in sorted((tmp_path / "dump").iterdir())]
    assert [int(number) for number, _ in named] == [numbers[name] for _, name in named]
    made = {name for _, name in named}
    assert {
        "parse-file",
        "fold-constants",
        "analyse-aliases",
        "assign-layouts",
        "insert-sync",
        "assemble-cubin",
    } <= made
    assert (
        tmp_path / "dump" / f"{numbers['choose-cta-pairs']:02}-choose-cta-pairs.layout"
    ).read_text() == "unchanged\n"


def test_one_can_stop_after_a_pass(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(GEMM, "--stop-after", "assign-layouts") == 0
    assert "fragment C_local" in capfd.readouterr().out
    assert tilec(GEMM, "--stop-after", "insert-sync", "-o", "synchronised.warp") == 0
    assert "wait" in (tmp_path / "synchronised.warp").read_text()
    assert tilec(GEMM, "--stop-after", "insert-synch") == 2
    assert "did you mean 'insert-sync'?" in capfd.readouterr().err
    assert tilec(GEMM, "--stop-after", "split-roles", "-o", "roles.txt") == 2
    assert "--stop-after split-roles: this pass does not run here" in capfd.readouterr().err


def test_the_pipeline_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(GEMM, "--print-pipeline", "--no-split-loops", "--target", "sm_80") == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [row.name for row in PIPELINE]
    found = {line.split()[1]: line for line in lines[1:]}
    assert "off: --no-split-loops" in found["split-loops"]
    assert "off: sm_80 has no dependent_launch" in found["insert-programmatic-launch"]
    assert "off: only with --consumer-warpgroups" in found["set-consumer-warpgroups"]
    assert "off: no explicit roles" in found["check-roles"]
    assert " on" in found["insert-sync"] and "fixed by --subtile" in found["choose-subtile"]


def test_stop_after_prints_the_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "tile") == 0
    assert "vector_add" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_stop_after_with_an_output_writes_the_stage(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "ptx", "-o", "k.ptx") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["k.ptx"]


def test_defines_reach_the_kernel(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-D", "N=2048", "-D", "dtype=float16") == 0
    (manifest,) = extract_from_cubin((tmp_path / "vector_add.cubin").read_bytes())
    assert manifest.grid == (2, 1, 1)
    assert {t.dtype for t in manifest.tensors} == {"float16"}


def test_level_0_writes_tile_ir_that_is_a_kernel_itself(tmp_path: Path) -> None:
    """Compiled from there, the kernel becomes the same schedule and the same code but for its line numbers."""
    assert tilec(GEMM, "-O0") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["gemm.tile"]
    assert tilec("gemm.tile", "-O0", "-o", "again.tile") == 0
    assert (tmp_path / "gemm.tile").read_bytes() == (tmp_path / "again.tile").read_bytes()
    for name, file in (("a", GEMM), ("b", "gemm.tile")):
        assert tilec(file, "--emit", "warp", "-o", f"{name}.warp") == 0
    a, b = ((tmp_path / f"{name}.warp").read_text() for name in "ab")
    assert re.sub(r"  # line \d+", "", a) == re.sub(r"  # line \d+", "", b)


def test_level_1_writes_what_aliases(tmp_path: Path) -> None:
    assert tilec(GEMM, "-O1") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["gemm.alias"]
    text = (tmp_path / "gemm.alias").read_text()
    assert "# alias group A_shared: a tile, a version for each iteration of ko in flight\n" in text
    assert "# alias group C: a tensor\n" in text
    copy, _, product = (line.split("  # ")[1] for line in text.splitlines() if line.startswith("    "))
    assert copy == "%1: reads A writes A_shared"
    assert (
        product == "%3: reads A_shared, B_shared, C_local writes C_local after %0, %1, %2 after the last iteration's %3"
    )


def test_levels_that_make_code_make_the_same_schedule(tmp_path: Path) -> None:
    for level in ("2", "3"):
        assert tilec(GEMM, f"-O{level}", "-o", f"{level}.cubin", "--schedule-trace-file", f"{level}.json") == 0
    traces = [json.loads((tmp_path / f"{level}.json").read_text())["tilec"] for level in ("2", "3")]
    assert traces[0]["loops"] == traces[1]["loops"]


@pytest.mark.parametrize("level", ["0", "1"])
def test_levels_that_make_no_code(level: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(GEMM, f"-O{level}", "--emit", "cubin") == 2
    assert tilec(GEMM, f"-O{level}", "--stop-after", "ptx") == 2
    assert tilec(GEMM, f"-O{level}", "--schedule-trace-file", "t.json") == 2
    assert f"-O{level} ends with stage" in capfd.readouterr().err
    for command in ("emulate", "schedule"):
        assert tilec(command, GEMM, f"-O{level}") == 1
        assert "error[level-without-code]" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert tilec(GEMM, f"-O{level}", "--dump-ir", "dump") == 0
    made = [path.suffix for path in sorted((tmp_path / "dump").iterdir())]
    assert made == [".ast", ".tile", ".alias"][: int(level) + 2]


def test_help_says_what_each_level_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("--help-all") == 0
    shown = " ".join(capfd.readouterr().out.split())
    for part in (
        "0: verify only",
        "1: one step further",
        "2: everything up to a cubin",
        "3: what the source leaves open",
    ):
        assert part in shown


def test_main_job(tmp_path: Path) -> None:
    assert tilec(GEMM, "--opt-level=3", "-o", "gemm.cubin", "--schedule-trace-file", "gemm.trace.json") == 0
    (manifest,) = extract_from_cubin((tmp_path / "gemm.cubin").read_bytes())
    assert manifest.target == "sm_90a"
    trace = json.loads((tmp_path / "gemm.trace.json").read_text())
    assert trace["traceEvents"]
    assert trace["tilec"]


def test_report_says_how_long_each_kernel_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--report") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("vector_add on sm_90a: ") and "µs predicted" in shown and "bound by" in shown
    assert (tmp_path / "vector_add.cubin").exists()
    assert tilec(VECTOR_ADD, "--report", "--emit", "ptx") == 0  # further than what is written
    assert "µs predicted" in capfd.readouterr().out


@pytest.mark.parametrize("asked", [["-O0"], ["--stop-after", "schedule"]])
def test_there_is_no_report_without_a_cubin(asked: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--report", *asked) == 2
    assert "--report needs a cubin" in capfd.readouterr().err


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("--version") == 0
    first, *others = capfd.readouterr().out.splitlines()
    assert first == f"tilec {__version__}"
    assert [line.split() for line in others] == [
        [name, version(name)] for name in ("ortools", "nvidia-nvjitlink", "nvidia-nvfatbin", "cuda-bindings", "lark")
    ]
    assert tilec("--target", "sm_80", "--version") == 0
    assert capfd.readouterr().out.splitlines() == [first, *others]


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    from tilec.cli.names import COMMANDS

    assert tilec("help") == 0
    shown = capfd.readouterr().out
    assert [name for name in COMMANDS if f"tilec {name}" not in shown] == []


def test_check_is_silent_about_a_good_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", GEMM) == 0
    assert capfd.readouterr() == ("", "")


def test_inspect(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin", *SMALL) == 0
    assert tilec("inspect", "a.cubin") == 0
    assert "pointer to A: 2048 float32, in" in capfd.readouterr().out
    assert tilec("inspect", "a.cubin", "--json") == 0
    assert json.loads(capfd.readouterr().out)["entry"] == "vector_add"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tp_gnic_rd", "the SM's read path from L2, 64 bytes a cycle"),
        ("smem", "bytes of shared memory"),
        ("II", "Initiation interval: "),
        ("num_stages", "the most versions of a tile"),
        ("T.gemm", "T.gemm(A, B, C"),
        ("gemm", "T.gemm(A, B, C"),
        ("carried", "from one iteration to a later one"),
        ("stall counts", "cycles that a warp waits"),
        ("Reservation-Table", "Which resource each statement"),
    ],
)
def test_explain_a_name(name: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", name) == 0
    assert said in capfd.readouterr().out


def test_explain_words_without_quotes(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "persistent", "grid") == 0
    assert capfd.readouterr().out.startswith("persistent grid\n")


@pytest.mark.parametrize(("name", "help_text"), [("carriage", "lists them"), ("multicas", "did you mean 'multicast'?")])
def test_explain_guesses_only_near_words(name: str, help_text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", name) == 1
    assert help_text in capfd.readouterr().err


def test_dtypes_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "unknown-dtype") == 0
    assert set(TYPES_BY_NAME) <= set(re.findall(r"\w+", capfd.readouterr().out))


def test_explain(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "shape-mismatch") == 0
    assert EXPLANATIONS["shape-mismatch"] in capfd.readouterr().out
    assert tilec("explain", "[shape-mismatch]") == 0
    capfd.readouterr()
    assert tilec("explain") == 0
    listed = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == sorted(EXPLANATIONS), "one line for each"
    assert any("T.Parallel" in line for line in listed), "sentences are whole"
    assert not [line for line in listed if line.count("`") % 2], "quotations too"


def test_targets(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("targets") == 0
    shown = capfd.readouterr().out
    assert "sm_80" in shown
    assert "wgmma" in shown
    assert tilec("targets", "sm_90a") == 0
    assert "smem_bytes_per_cta" in capfd.readouterr().out


ODD = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((512, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=3, stage=[0, 1], order=[0, 1], sync=[[], []]):
            T.copy(A[k * 64, 0], s)
            T.gemm(s, s, c)
        T.copy(c, C)
"""


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 0, ["warning[sync-incomplete]", "warning[depth-override]"]),
        (["-Wno-sync-incomplete"], 0, ["warning[depth-override]"]),
        (["-W", "no-sync-incomplete", "--warn", "no-depth-override"], 0, []),
        (["-Wno-all"], 0, []),
        (["-Werror", "-Wno-depth-override"], 1, ["error[sync-incomplete]"]),
        (["-Werror", "-Wno-sync-incomplete"], 1, ["error[depth-override]"]),
        (["-Wno-all", "-Werror"], 0, []),
        (["-Wno-such-thing"], 1, ["error[unknown-code]"]),
        (["-Wall"], 0, ["warning[sync-incomplete]", "warning[depth-override]"]),
    ],
)
@pytest.mark.parametrize("command", [["check"], []], ids=["check", "build"])
def test_warnings(
    command: list[str],
    options: list[str],
    code: int,
    said: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "odd.tl"
    path.write_text(ODD)
    output = [] if command else ["-o", str(tmp_path / "odd.cubin")]
    assert main([*command, str(path), "--target", "sm_80", *options, *output]) == code
    assert sorted(re.findall(r"(?:error|warning)\[[a-z-]+\]", capfd.readouterr().err)) == sorted(said)
    assert command or (tmp_path / "odd.cubin").exists() == (code == 0)
