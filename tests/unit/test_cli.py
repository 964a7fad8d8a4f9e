"""The command line: what goes where, exit codes, and that nothing is written on a mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tilec import __version__, driver, emulate
from tilec.cli import main
from tilec.explanations import EXPLANATIONS
from tilec.manifest import extract
from tilec.options import STAGES, CompileOptions
from tilec.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
VECTOR_ADD = str(SAMPLES / "vector_add.tl")
GEMM = str(SAMPLES / "gemm.tl")
SMALL = ["-D", "N=2048"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test works in a folder of its own; parser tables and schedules are shared between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def tilec(*arguments: str) -> int:
    return main(list(arguments))


def test_compiles_to_the_current_folder(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD) == 0
    assert [m.entry for m in extract((tmp_path / "vector_add.cubin").read_bytes())] == ["vector_add"]
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


def test_dump_writes_every_stage(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--dump-ir", "dump") == 0
    assert [p.name.split(".")[0] for p in sorted((tmp_path / "dump").iterdir())] == [
        f"{i:02}-{stage}" for i, stage in enumerate(STAGES, 1)
    ]


def test_stop_after_prints_the_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "tile") == 0
    assert "vector_add" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_stop_after_with_an_output_writes_the_stage(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--stop-after", "ptx", "-o", "k.ptx") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["k.ptx"]


def test_defines_reach_the_kernel(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "-D", "N=2048", "-D", "dtype=float16") == 0
    (manifest,) = extract((tmp_path / "vector_add.cubin").read_bytes())
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
    assert [p.name for p in sorted((tmp_path / "dump").iterdir())] == ["01-ast.ast", "02-tile.tile", "03-alias.alias"][
        : int(level) + 2
    ]


def test_help_says_what_each_level_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("--help") == 0
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
    (manifest,) = extract((tmp_path / "gemm.cubin").read_bytes())
    assert manifest.target == "sm_90a"
    trace = json.loads((tmp_path / "gemm.trace.json").read_text())
    assert trace["traceEvents"]
    assert trace["tilec"]


# ---- the smaller commands --------------------------------------------------------------------------------------------


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("--version") == 0
    assert capfd.readouterr().out == f"tilec {__version__}\n"


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    from tilec.cli_commands import COMMANDS

    assert tilec("--help") == 0
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


def test_explain(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "shape-mismatch") == 0
    assert EXPLANATIONS["shape-mismatch"] in capfd.readouterr().out
    assert tilec("explain", "[shape-mismatch]") == 0
    capfd.readouterr()
    assert tilec("explain") == 0
    listed = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == sorted(EXPLANATIONS), "one line for each"
    assert any("T.Parallel" in line for line in listed), "sentences are whole"


def test_targets(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("targets") == 0
    shown = capfd.readouterr().out
    assert "sm_80" in shown
    assert "wgmma" in shown
    assert tilec("targets", "sm_90a") == 0
    assert "smem_bytes_per_cta" in capfd.readouterr().out


def exchange(name: str = "pair", **changed: Any) -> str:
    """Writes a problem in the exchange form into the current folder."""
    ops = [{"name": "a", "resource": "r", "duration": 2}, {"name": "b", "resource": "r", "duration": 3}]
    problem = {"name": name, "ops": ops, "edges": [[0, 1, 4, 0], [1, 0, 3, 1]], "limits": {"r": 1}} | changed
    Path("problem.json").write_text(json.dumps(problem))
    return "problem.json"


def test_a_problem_is_solved_and_its_schedule_written(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", "--problem", exchange(), "--json", "-o", "out.json") == 0
    (line,) = capfd.readouterr().out.splitlines()
    said = json.loads(line)
    assert list(said) == ["name", "ii", "mii", "proven", "seconds"]
    assert {**said, "seconds": 0} == {"name": "pair", "ii": 7, "mii": 7, "proven": True, "seconds": 0}
    written = json.loads(Path("out.json").read_text())
    assert (written["ii"], written["start"], written["status"]) == (7, [0, 4], "optimal")
    assert tilec("schedule", "--problem", exchange(), "--time-limit", "20") == 0
    assert capfd.readouterr().out.startswith("pair: II 7 cycles, proven optimal, MII 7, ")


def test_the_problems_of_a_kernel_are_problems_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(GEMM, "--emit", "problem", "-o", "gemm.problem.json") == 0
    assert tilec("schedule", "--problem", "gemm.problem.json", "--json", "--scheduler", "heuristic") == 0
    assert json.loads(capfd.readouterr().out)["ii"] == 512


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"edges": [[0, 2, 4, 0]]}, "edges[0]: expected ops below 2, found [0, 2, 4, 0]"),
        ({"edges": [[0, 1, 4]]}, "edges[0]: expected [src, dst, latency, distance], found [0, 1, 4]"),
        ({"edges": [[0, 1, 4, 0], [1, 0, 3, 0]]}, "within one iteration these ops wait for each other"),
        ({"ops": [{"name": "a"}]}, "ops[0]: expected an object with name, resource and duration"),
        ({"limits": {"r": "one"}}, "limits.r: expected a whole number, found 'one'"),
        ({"name": 3}, "name: expected a string, found 3"),
    ],
)
def test_what_is_no_problem(changed: dict[str, Any], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", "--problem", exchange(**changed), "-o", "out.json") == 1
    shown = " ".join(capfd.readouterr().err.split())
    assert "bad-problem" in shown and says in shown and "Traceback" not in shown
    assert not Path("out.json").exists()


def test_options_that_go_with_a_problem(capfd: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text("{")
    assert tilec("schedule", "--problem", "broken.json") == 1
    assert "error[bad-problem]" in capfd.readouterr().err
    assert tilec("schedule") == 2
    assert tilec("schedule", GEMM, "--json") == 2
    assert tilec("schedule", GEMM, "--problem", exchange()) == 2
    assert "give either a kernel or --problem" in capfd.readouterr().err


def test_light_specialisation_only_divides(capfd: pytest.CaptureFixture[str]) -> None:
    for threshold, is_light in (("512", False), ("511", True), ("0", True)):
        assert tilec(GEMM, "--rrt-size-threshold", threshold, "--emit", "schedule,cubin", "-o", "light") == 0
        loop = json.loads(Path("light.trace.json").read_text())["tilec"]["loops"][0]
        assert {op["role"] for op in loop["ops"]} == {"producer", "consumer"}
        assert (loop["stages"] == 1 and loop["ii"] > 1000) if is_light else loop["ii"] == 512
    assert capfd.readouterr().err == ""


def test_schedule_shows_the_pipeline(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("schedule", GEMM) == 0
    shown = capfd.readouterr().out
    for part in ("II ", "optimal", "bounds", "by the roofline", "rings", "A_shared", "reservation table"):
        assert part in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert tilec("schedule", VECTOR_ADD) == 0
    assert "no pipelined loop" in capfd.readouterr().out
    assert tilec("schedule", GEMM, "--pipeline-strategy", "none") == 0
    assert "serially with strategy none" in capfd.readouterr().out


# ---- emulate ---------------------------------------------------------------------------------------------------------


def test_emulate_compares_with_the_reference(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL) == 0
    assert capfd.readouterr().out.startswith("C: worst error 0, ")


def test_emulate_on_a_hostile_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--adversary", "1", "--jobs", "2", "--timeline", "t.json") == 0
    assert capfd.readouterr().out.endswith(": ok\n")
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ns"


def test_emulate_a_sample(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--grid-sample", "1", "--seed", "4") == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("1 blocks of ")
    assert second.endswith(": ok")


def test_emulate_interrupted(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(build: object, arguments: object, progress: Callable[[int, int], None], options: object) -> None:
        progress(1, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr("tilec.emulate.run", interrupted)
    assert tilec("emulate", VECTOR_ADD, *SMALL) == 130
    assert "interrupted after 1 of" in capfd.readouterr().err


def test_emulate_on_given_arrays(tmp_path: Path) -> None:
    a, b = np.arange(2048, dtype=np.float32), np.ones(2048, np.float32)
    np.savez(tmp_path / "in.npz", A=a, B=b)
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--inputs", "in.npz", "--outputs", "out.npz") == 0
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out.files) == ["A", "B", "C"]
        assert np.array_equal(out["C"], a + b)


def test_bfloat16_travels_as_raw_bits(tmp_path: Path) -> None:
    import ml_dtypes

    a = np.arange(2048).astype(ml_dtypes.bfloat16)
    # numpy stores ml_dtypes arrays as void of the same size.
    np.savez(tmp_path / "in.npz", A=a, B=a.view(np.uint16))
    assert (
        tilec("emulate", VECTOR_ADD, *SMALL, "-D", "dtype=bfloat16", "--inputs", "in.npz", "--outputs", "out.npz") == 0
    )
    with np.load(tmp_path / "out.npz") as out:
        assert out["C"].dtype == np.uint16
        assert np.array_equal(out["C"].view(ml_dtypes.bfloat16), a + a)


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"A": np.zeros(2048, np.float32)}, "missing-input"),
        ({"A": np.zeros(2048, np.float32), "B": np.zeros(2048, np.float64)}, "wrong-input"),
        ({"A": np.zeros(2048, np.float32), "B": np.zeros(2047, np.float32)}, "wrong-input"),
        ({"A": np.zeros(2048, np.float32), "b": np.zeros(2048, np.float32)}, "bad-inputs"),
    ],
    ids=["missing", "dtype", "shape", "unknown"],
)
def test_arrays_that_do_not_fit(
    arrays: dict[str, Any], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert tilec("emulate", VECTOR_ADD, *SMALL, "--inputs", "in.npz", "--outputs", "out.npz") == 1
    assert f"error[{code}]" in capfd.readouterr().err
    assert not (tmp_path / "out.npz").exists()


CHAIN = """
import tilelang.language as T

M, N, K = 64, 64, 256
between, after = 1.0, 1.0


@T.prim_func
def chain(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    D: T.Tensor((N, N), "float16"),
    H: T.Tensor((M, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(1, threads=128) as bx:
        A_s = T.alloc_shared((M, K), "float16")
        B_s = T.alloc_shared((K, N), "float16")
        D_s = T.alloc_shared((N, N), "float16")
        H_s = T.alloc_shared((M, N), "float16")
        h = T.alloc_fragment((M, N), "float32")
        c = T.alloc_fragment((M, N), "float32")
        T.clear(h)
        T.copy(A, A_s)
        T.copy(B, B_s)
        T.gemm(A_s, B_s, h)
        for i, j in T.Parallel(M, N):
            h[i, j] = T.exp2(h[i, j] * 0.1) * between
        T.copy(h, H)
        T.copy(H, H_s)
        T.copy(D, D_s)
        T.clear(c)
        T.gemm(H_s, D_s, c)
        for i, j in T.Parallel(M, N):
            c[i, j] *= after
        T.copy(c, C)
"""
"""A product of a tensor that the kernel itself has computed and rounded."""


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_rounding_on_the_way_is_allowed_for(seed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chain.tl").write_text(CHAIN)
    assert tilec("emulate", "chain.tl", "--seed", seed) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("defines", "wrong"),
    [({}, []), ({"between": 1.02}, ["H", "C"]), ({"after": 1.02}, ["C"]), ({"after": 0.98}, ["C"])],
)
def test_two_percent_is_not_rounding(defines: dict[str, float], wrong: list[str], tmp_path: Path) -> None:
    source = SourceFile("chain.tl", CHAIN)
    right = driver.build(source, CompileOptions(), driver.Observer())
    made = driver.build(source, CompileOptions(defines=tuple(defines.items())), driver.Observer())
    found = emulate.random_arguments(made.kernel, made.manifest, seed=0)
    expected = found.copy()
    emulate.run(made, found)
    emulate.reference(right.kernel, expected)
    results = emulate.compare(right.kernel, right.manifest, found, expected)
    assert [result.name for result in results if not result.matches] == wrong


def test_what_only_comes_in_is_exact() -> None:
    """Rounding is allowed for where the kernel rounds: the operands of this product are inputs."""
    kernel = driver.check(SourceFile("gemm.tl", Path(GEMM).read_text()), CompileOptions(), driver.Observer())
    seen, summed = emulate.roundings(kernel)
    assert ({buffer.name for buffer in seen}, summed) == ({"C_local", "C"}, 0.0)


# ---- foreign PTX -----------------------------------------------------------------------------------------------------


ADD_ONE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u64 out, .param .f32 by)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    .reg .f32 %f<3>;
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    ld.param.f32 %f2, [by];
    mad.wide.u32 %rd3, %r1, 4, %rd1;
    mad.wide.u32 %rd4, %r1, 4, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f1, %f1, %f2;
    st.global.f32 [%rd4], %f1;
    ret;
}
"""


def test_emulate_runs_foreign_ptx(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx, inputs, outputs = tmp_path / "k.ptx", tmp_path / "in.npz", tmp_path / "out.npz"
    ptx.write_text(ADD_ONE)
    np.savez(inputs, A=np.arange(32, dtype=np.float32))
    launch = ["emulate", str(ptx), "--block", "32", "--arg", f"{inputs}:A"]
    assert tilec(*launch, "--arg", "zeros:float32:4x8", "--arg", "f32:1.5", "--outputs", str(outputs)) == 0
    assert capfd.readouterr().out.startswith("1 blocks, 10 warp instructions (")
    with np.load(outputs) as saved:
        np.testing.assert_array_equal(saved["arg1"].reshape(-1), saved["A"] + np.float32(1.5))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--arg", "zeros:float32:2", "--arg", "null", "--arg", "f32:1"], "emulation-fault"),
        (["--arg", "null"], "wrong-launch"),
        (["--arg", "f32:x"], "bad-argument"),
        (["--arg", "zeros:float31:2"], "bad-argument"),
        (["--arg", "bytes:0"], "bad-argument"),
        (["--arg", "nowhere.npz:A"], "no-such-file"),
        (["--arg", "what"], "bad-argument"),
        (["--grid", "0,1"], "bad-argument"),
    ],
)
def test_a_wrong_launch_of_foreign_ptx(
    arguments: list[str], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE)
    assert tilec("emulate", str(ptx), "--block", "32", *arguments) == 1
    assert capfd.readouterr().err.startswith(f"error[{code}]: ")


def test_what_is_not_ptx_is_shown_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE.replace("add.f32 %f1", "add.f32 % f1"))
    assert tilec("emulate", str(ptx), "--block", "32") == 1
    error = capfd.readouterr().err
    assert error.partition("]")[0].split("[") == ["error", "ptx-syntax"] and "k.ptx:17" in error
    assert tilec("emulate", str(ptx)) == 2
    assert tilec("emulate", VECTOR_ADD, "--grid", "1") == 2


# ---- warnings --------------------------------------------------------------------------------------------------------

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
        (["-Wall"], 1, ["error[unknown-code]"]),
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


SPIN = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "spin.cu"
.visible .entry spin(.param .u64 flag)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd0, [flag];
    mov.u32 %r1, 0;
again:
    .loc 1 12 3
    add.u32 %r1, %r1, STEP;
    ld.relaxed.gpu.global.u32 %r0, [%rd0];
    setp.eq.u32 %p, %r0, 0;
    @%p bra again;
    ret;
}
"""


def test_emulate_ptx_takes_the_options_of_the_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "k.ptx"
    ptx.write_text(ADD_ONE)
    arrays = ["--arg", "zeros:float32:32", "--arg", "zeros:float32:32", "--arg", "f32:1.5"]
    options = ["--adversary", "3", "--jobs", "2", "--timeline", "t.json", "--grid-sample", "1", "--seed", "2"]
    assert tilec("emulate", str(ptx), "--block", "32", "--grid", "4", *arrays, *options) == 0
    assert capfd.readouterr().out.startswith("1 blocks, 10 warp instructions (")
    assert json.loads(Path("t.json").read_text())["displayTimeUnit"] == "ns"
    assert tilec("emulate", str(ptx), "--block", "32", *arrays, "--inputs", "in.npz") == 2
    np.savez("in.npz", A=np.zeros(32, np.float32))
    taken = ["--arg", "in.npz:A", *arrays[2:], "--outputs", "in.npz"]
    assert tilec("emulate", str(ptx), "--block", "32", *taken) == 1
    assert "it is the input in.npz" in capfd.readouterr().err


def test_emulate_shows_who_waits_for_what(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ptx = tmp_path / "spin.ptx"
    ptx.write_text(SPIN.replace("STEP", "0"))
    launch = ["emulate", str(ptx), "--block", "32", "--arg", "zeros:uint32:1"]
    assert tilec(*launch, "--timeline", "t.json", "--outputs", "out.npz") == 1
    error = capfd.readouterr().err
    assert error.startswith("error[emulation-fault]: ")
    assert "threads 0-31 go round PTX lines 15 to 18 and poll address" in error
    assert "compiled from spin.cu:12" in error
    # What happened until then is there to be looked at; arrays of a run that did not end are not.
    assert Path("t.json").exists() and not Path("out.npz").exists()
    ptx.write_text(SPIN.replace("STEP", "1"))
    assert tilec(*launch, "--step-limit", "100000") == 1
    assert "the block runs more than 100,000 steps" in capfd.readouterr().err


def test_emulate_ends_cleanly_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ptx = tmp_path / "spin.ptx"
    ptx.write_text(SPIN.replace("STEP", "1"))

    def interrupted(cta: object, group: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilec.emu.progress.note", interrupted)
    launch = ["emulate", str(ptx), "--block", "32", "--arg", "zeros:uint32:1"]
    assert tilec(*launch, "--outputs", "out.npz", "--timeline", "t.json") == 130
    captured = capfd.readouterr()
    assert captured.err == "interrupted after 0 of 1 blocks: nothing is compared, nothing written\n"
    assert captured.out == "" and not Path("out.npz").exists() and not Path("t.json").exists()


def drawn(problem: object, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """What `schedule --problem` shows, and the page that it writes."""
    Path("p.json").write_text(json.dumps(problem))
    assert tilec("schedule", "--problem", "p.json", "--html", "p.html", *more) == 0
    return capfd.readouterr().out, Path("p.html").read_text()


def exchanged(count: int) -> dict[str, object]:
    """A chain of ops that take turns at three units."""
    ops = [{"name": f"op{i}", "resource": f"unit{i % 3}", "duration": 1 + i % 4} for i in range(count)]
    edges = [[i, i + 1, 2, 0] for i in range(count - 1)]
    return {"name": f"chain of {count}", "ops": ops, "edges": edges, "limits": {f"unit{i}": 1 for i in range(3)}}


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_problems_of_any_size_are_drawn(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    shown, page = drawn(exchanged(count), capfd, "--time-limit", "20")
    assert shown.startswith(f"chain of {count}: II ")
    assert ("reservation table" in shown) == ("iterations: " in shown) == (count > 0)
    # A bound on three hundred ops does not name all of them.
    assert count < 300 or "76 more" in shown
    assert max(len(line) for line in shown.splitlines()) <= 160
    ElementTree.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>", "", page))
    assert page.count('aria-label="reservation table"') == 1


def test_a_problem_that_leaves_roles_open_is_drawn_with_those_decided(capfd: pytest.CaptureFixture[str]) -> None:
    slots = [{"name": "unit"}, {"name": "left"}, {"name": "right"}]
    roles = [{"name": "left", "slot": 1}, {"name": "right", "slot": 2}]
    ops = [{"name": n, "uses": [], "issue": 40, "latency": 50, "roles": [0, 1]} for n in ("a", "b")]
    problem = {"name": "open", "ops": ops, "edges": [], "slots": slots, "roles": roles}
    shown, page = drawn({"schema": 1, "problem": problem}, capfd)
    assert "II 40 cycles, proven optimal" in shown
    rows = [line for line in shown.splitlines() if line.startswith(("left ", "right "))]
    assert [row.split()[0] for row in rows] == ["left", "right"] and all("100%" in row for row in rows)
    assert re.search(r"^0 left +0", shown, re.MULTILINE) and re.search(r"^0 right +1", shown, re.MULTILINE)
    assert "<td>left</td>" in page and "<td>right</td>" in page
