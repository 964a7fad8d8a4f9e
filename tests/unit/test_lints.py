"""Each lint on something that really has the flaw, with its line and remedy; and on the nearest thing that has not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tilec.cli.main import main
from tilec.driver import build as driver, engine, lints
from tilec.driver.lints.assembler import assembled
from tilec.driver.lints.registry import is_lint
from tilec.driver.lints.warp.barriers import find_exhausted_barriers
from tilec.ir import warp
from tilec.ir.tile import Buffer, Kernel
from tilec.ir.types import FLOAT16, FLOAT32, DType
from tilec.passes.layout.mechanisms.tensor_memory import count_columns
from tilec.passes.state import KernelState
from tilec.ptx.assemble import parse_remarks
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.options import CompileOptions, Lint
from tilec.support.source import SourceFile, Span

Make = Callable[..., Kernel]
SAMPLES = Path(__file__).parents[2] / "samples"
GEMM = SAMPLES / "gemm.tl"
SPAN = Span(1, 1, 1, 4)


def found(text: str, target: str = "sm_90a", lint: Lint = "warn", **defines: int) -> list[Diagnostic]:
    observer = driver.Observer()
    options = CompileOptions(target=target, lint=lint, defines=tuple(defines.items()))
    driver.plan_kernel(SourceFile("kernel.tl", text), options, observer)
    return observer.warnings


def kernel(params: str, *lines: str) -> str:
    head = "import tilelang.language as T\n@T.prim_func\ndef kernel({}):\n    with T.Kernel(4, threads=128) as bx:\n"
    return head.format(params) + "".join(f"        {line}\n" for line in lines)


# ---- what the assembler did ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


HUGE = ["-D", "block_M=256", "-D", "block_N=256", "-D", "threads=128"]


def test_a_spilling_kernel(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Built with a warning; with --lint=error not at all."""
    assert main([str(GEMM), *HUGE, "-o", "a.cubin"]) == 0
    said = capfd.readouterr().err
    assert "warning[register-spill]" in said and "warning[wgmma-serialised]" in said
    assert "C7511" in said and "gemm.tl:14:" in said and "help: use a smaller tile" in said
    assert main([str(GEMM), *HUGE, "-o", "b.cubin", "--lint=error"]) == 1
    said = capfd.readouterr().err
    assert "error[register-spill]" in said and "error[wgmma-serialised]" in said
    assert main([str(GEMM), *HUGE, "-o", "c.cubin", "--lint=off"]) == 0
    assert capfd.readouterr().err == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.cubin", "c.cubin"]


def test_a_good_kernel_passes_as_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(GEMM), "-o", "a.cubin", "--lint=error"]) == 0
    assert capfd.readouterr() == ("", "")


SERIALISED = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to {} in the function 'k'"
ADVICE = {
    "C7508": "Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.",
    "C7511": SERIALISED.format("insufficient register resources for the wgmma pipeline"),
    "C7515": SERIALISED.format("non wgmma instructions defining accumulator registers of a wgmma"),
    "C7517": "Potential Performance Loss: warpgroup.arrive is injected in around line 8 by compiler in function 'k'",
    "C7518": SERIALISED.format("ill formed pipeline stage"),
    "C7519": "Potential Performance Loss: warpgroup.depbar is injected in around line 8 by compiler in function 'k'",
    "C7520": SERIALISED.format("the presence of divergent control flow"),
}


@pytest.mark.parametrize("code", ADVICE)
def test_every_line_of_the_log_that_costs_is_a_lint(code: str) -> None:
    log = parse_remarks(f"ptxas info    : ({code}) {ADVICE[code]}", ())
    source = SourceFile("k.tl", "def k():\n")
    (warning,) = assembled.group_remarks(log, "", source, SPAN)
    assert is_lint(warning.code) and warning.help
    with pytest.raises(CompileError, match=warning.code):
        judged([warning], "error")
    assert judged([warning], "off") == []


def judged(warnings: list[Diagnostic], lint: Lint) -> list[Diagnostic]:
    observer = driver.Observer(warnings=list(warnings))
    with lints.apply_lints_at_end(CompileOptions(lint=lint), observer):
        pass
    return observer.warnings


WITH_ONE_LOAD = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((256, 512), "float16"), B: T.Tensor((512, 256), "float16"), C: T.Tensor((256, 256), "float32")):
    with T.Kernel(4, 4, threads=128) as (bx, by):
        As = T.alloc_shared((64, 32), "float16")
        Bs = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in range(16):
            {load}
            T.copy(B[k * 32, bx * 64], Bs)
            T.gemm(As, Bs, acc)
        T.copy(acc, C[by * 64, bx * 64])
"""
THROUGH_REGISTERS = """for i, j in T.Parallel(64, 32):
                As[i, j] = T.exp(T.float32(A[by * 64 + i, k * 32 + j]))"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_warp_that_waits_for_its_own_load(target: str) -> None:
    """A function makes the copy one through registers, which the same iteration waits for."""
    codes, found = {}, Diagnostic("", "", None)
    for load in ("T.copy(A[by * 64, k * 32], As)", THROUGH_REGISTERS):
        observer = driver.Observer()
        source = SourceFile("kernel.tl", WITH_ONE_LOAD.format(load=load))
        driver.build_kernel(source, CompileOptions(target=target), observer)
        codes[load] = [each.code for each in observer.warnings]
        found = next((each for each in observer.warnings if each.code == "assembled-interval"), found)
    assert "assembled-interval" not in codes["T.copy(A[by * 64, k * 32], As)"]
    assert is_lint(found.code) and found.primary is not None and found.primary.span.line == 11
    assert (
        "the schedule has" in found.title and "by stall counts alone" in found.primary.text and found.help is not None
    )
    said = [label.text for label in found.secondary] + list(found.notes)
    assert any("waits" in each and "for LDG of line 13" in each for each in said)


OF_ANY_WIDTH = """
import tilelang.language as T

M, N, K = T.dynamic("M"), 256, {columns}

@T.prim_func
def kernel(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        As = T.alloc_shared((128, 64), "float16")
        Bs = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        T.clear(acc)
        for k in T.{loop}(T.ceildiv(K, 64){stages}):
            T.copy(A[by * 128{odd}, k * 64{odd}], As)
            T.copy(B[k * 64, bx * 128], Bs)
            T.gemm(As, Bs, acc)
        T.copy(acc, C[by * 128, bx * 128])
"""


def codes_of_any_width(columns: str, target: str = "sm_90a", *, is_pipelined: bool = True, odd: str = "") -> list[str]:
    loop, stages = ("Pipelined", ", num_stages=3") if is_pipelined else ("serial", "")
    text = OF_ANY_WIDTH.format(columns=columns, loop=loop, stages=stages, odd=odd)
    return [each.code for each in found(text, target)]


@pytest.mark.parametrize(("columns", "factor"), [('T.dynamic("K")', 8), ('2 * T.dynamic("k")', 4)])
def test_rows_of_unknown_length_lose_tma(columns: str, factor: int) -> None:
    text = OF_ANY_WIDTH.format(columns=columns, loop="Pipelined", stages=", num_stages=3", odd="")
    (warning,) = [each for each in found(text) if each.code == "rows-without-tma"]
    assert is_lint(warning.code) and warning.primary is not None and warning.primary.span.line == 8
    assert [label.span.line for label in warning.secondary] == [18]
    assert warning.help is not None and f'{factor} * T.dynamic("n")' in warning.help


def test_rows_lose_tma_for_another_reason_or_not_at_all() -> None:
    unknown = 'T.dynamic("K")'
    assert "rows-without-tma" not in codes_of_any_width('8 * T.dynamic("n")')
    assert "rows-without-tma" not in codes_of_any_width(unknown, "sm_80")
    assert "rows-without-tma" not in codes_of_any_width(unknown, is_pipelined=False)
    assert "rows-without-tma" not in codes_of_any_width(unknown, odd=" + 1")


def test_a_tile_that_is_copied_in_its_own_type_is_not_advised_so() -> None:
    text = OF_ANY_WIDTH.format(columns='T.dynamic("K")', loop="Pipelined", stages=", num_stages=3", odd="")
    observer = driver.Observer()
    driver.build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), observer)
    (warning,) = [each for each in observer.warnings if each.code == "assembled-interval"]
    assert warning.help is not None and warning.help.startswith("make the rows of A a multiple of 16 bytes")


def test_other_warnings_are_no_lints() -> None:
    other = Diagnostic("schedule-not-proven", "so", severity="warning")
    assert judged([other], "error") == judged([other], "off") == [other]


@pytest.mark.parametrize("given", [["--stop-after", "schedule"], ["--stop-after", "ptx"], []], ids=" ".join)
def test_lints_are_judged_wherever_a_build_ends(given: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """All of what was found by then, in one go."""
    Path("columns.tl").write_text(kernel(MATRIX, *COLUMNS[:5], COLUMNS[5].format(other="u[j, i]")))
    assert main(["columns.tl", "-o", "out", *given, "--lint=error"]) == 1
    assert capfd.readouterr().err.count("error[bank-conflict]") == 1
    assert main(["columns.tl", "-o", "out", *given]) == 0
    assert capfd.readouterr().err.count("warning[bank-conflict]") == 1
    assert main(["columns.tl", "-o", "out", *given, "--lint=off"]) == 0
    assert capfd.readouterr().err == ""


def test_only_the_lints_of_a_stage_that_is_reached_are_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "outputs",
        "parallel_races",
        "serial_elements",
        "uninitialised_read",
        "zero_filled_reduction",
    ]


LOADED = f"""
import sys
from tilec.cli.main import main
main(["check", {str(GEMM)!r}])
loaded = [name.split(".") for name in sys.modules if name.startswith("tilec.driver.lints.")]
print(*sorted(words[-1] for words in loaded if len(words) == 5))
"""


# ---- bank conflicts --------------------------------------------------------------------------------------------------

COLUMNS = (
    't = T.alloc_shared((32, 32), "float32")',
    'u = T.alloc_shared((32, 32), "float32")',
    "T.copy(A[bx * 32, 0], t)",
    "T.copy(A[bx * 32, 0], u)",
    "for i, j in T.Parallel(32, 32):",
    "    A[bx * 32 + i, j] = t[j, i] + {other}",
)
MATRIX = 'A: T.Tensor((128, 32), "float32")'


def test_two_tiles_read_by_columns_collide() -> None:
    (lint,) = found(kernel(MATRIX, *COLUMNS[:5], COLUMNS[5].format(other="u[j, i]")))
    assert lint.code == "bank-conflict" and lint.severity == "warning"
    assert lint.title.startswith("t and u are accessed at the same time")
    assert lint.primary is not None and lint.primary.span.line == 9
    assert lint.help is not None and lint.help.startswith("index one of them along its rows")


@pytest.mark.parametrize("other", ["u[i, j]", "t[j, i]", "1.0"])
def test_one_tile_alone_does_not_collide(other: str) -> None:
    assert found(kernel(MATRIX, *COLUMNS[:5], COLUMNS[5].format(other=other))) == []


def test_tiles_that_nobody_wrote_are_not_spoken_of() -> None:
    scan = ('x = T.alloc_fragment((128,), "float32")', "T.copy(X, x)", "T.cumsum(x)", "T.copy(x, X)")
    assert found(kernel('X: T.Tensor((128,), "float32")', *scan)) == []


# ---- stages ----------------------------------------------------------------------------------------------------------

TRANSPOSED = """
import tilelang.language as T

batch, M, N, K, step, stages = 4, 2048, 1536, 4096, 64, 2

@T.prim_func
def kernel(
    A: T.Tensor((batch, M, K), "bfloat16"),
    B: T.Tensor((batch, N, K), "bfloat16"),
    R: T.Tensor((batch, M, N), "float32"),
):
    with T.Kernel(N // 192, M // 128, batch, threads=256) as (bx, by, bz):
        As = T.alloc_shared((128, step), "bfloat16")
        Bs = T.alloc_shared((192, step), "bfloat16")
        acc = T.alloc_fragment((128, 192), "float32")
        T.clear(acc)
        for k in T.Pipelined(K // step, num_stages=stages):
            T.copy(A[bz, by * 128, k * step], As)
            T.copy(B[bz, bx * 192, k * step], Bs)
            T.gemm(As, Bs, acc, transpose_B=True)
        for i, j in T.Parallel(128, 192):
            R[bz, by * 128 + i, bx * 192 + j] += acc[i, j]
"""


@pytest.mark.parametrize("defines", [{}, {"step": 128, "stages": 1}], ids=str)
def test_loads_that_more_stages_would_hide(defines: dict[str, int]) -> None:
    """The stages that the warning names fit, and with them it is gone."""
    (lint,) = found(TRANSPOSED, **defines)
    assert lint.code == "too-few-stages" and is_lint(lint.code)
    assert lint.primary is not None and lint.primary.span.line == 17 and lint.help is not None
    advised = re.fullmatch(r"write num_stages=(\d), which fits: about (\d+) of 227 KiB of shared memory", lint.help)
    assert advised is not None and lint.title.startswith(f"with num_stages={advised[1]} this kernel is predicted")
    stages = int(advised[1])
    assert stages > defines.get("stages", 2)
    assert found(TRANSPOSED, **{**defines, "stages": stages}) == []


@pytest.mark.parametrize(
    "defines",
    [{"stages": 4}, {"step": 128, "stages": 2}, {"K": 256}, {"batch": 1, "M": 256}],
    ids=["its loads are early", "a third stage does not fit", "the loop is short", "the grid is small"],
)
def test_stages_that_would_change_nothing(defines: dict[str, int]) -> None:
    assert found(TRANSPOSED, **defines) == []


def test_stages_of_a_target_that_has_not_been_measured() -> None:
    assert found(TRANSPOSED, "sm_100a") == []


def test_too_few_stages_can_be_silenced_or_refused() -> None:
    assert found(TRANSPOSED, lint="off") == []
    observer = driver.Observer()
    options = CompileOptions(target="sm_90a", silenced=("too-few-stages",))
    driver.plan_kernel(SourceFile("kernel.tl", TRANSPOSED), options, observer)
    assert observer.warnings == []
    with pytest.raises(CompileError, match="too-few-stages"):
        found(TRANSPOSED, lint="error")


# ---- barriers --------------------------------------------------------------------------------------------------------


def with_barriers(ids: range, *, inside: bool) -> KernelState:
    source = SourceFile("gemm.tl", GEMM.read_text())
    file = engine.read_file(source, CompileOptions(target="sm_80"), driver.Observer(), is_single=True)
    (work,) = engine.advance_kernels(file, driver.Observer()).kernels
    program = work.program
    (role,) = program.roles
    more = tuple(warp.BarSync(id, 256, span=role.body[0].span) for id in ids)
    body = role.body + more
    if inside:
        (at,) = (i for i, op in enumerate(role.body) if isinstance(op, warp.Loop | warp.Pipeline))
        loop = role.body[at]
        assert isinstance(loop, warp.Loop | warp.Pipeline)
        body = (*role.body[:at], replace(loop, body=loop.body + more), *role.body[at + 1 :])
    return replace(work, warp_program=replace(program, roles=(replace(role, body=body),)))


@pytest.mark.parametrize(
    ("ids", "inside", "says"),
    [
        (range(1, 16), False, []),
        (range(1, 17), False, ["the kernel uses 17 named barriers, sm_80 allows 16"]),
        (range(1, 3), True, []),
        (range(1, 4), True, ["the kernel carries across iterations 4 named barriers, sm_80 allows 3"]),
    ],
)
def test_barriers(ids: range, inside: bool, says: list[str]) -> None:
    work = with_barriers(ids, inside=inside)
    warnings = list(find_exhausted_barriers(work))
    assert [w.title for w in warnings] == says
    assert all(w.code == "barriers-exhausted" and w.primary and w.primary.span.line and w.help for w in warnings)


def handing_over(*tiles: str) -> str:
    """A loop whose statements hand a tile on, each to the next, through shared memory and to other threads."""
    return kernel(
        'A: T.Tensor((512, 64), "float32"), C: T.Tensor((64, 64), "float32")',
        *(f'{tile} = T.alloc_shared((64, 64), "float32")' for tile in ("s", *sorted(set(tiles)))),
        f"T.clear({tiles[0]})",
        "for k in T.Pipelined(8, num_stages=2):",
        "    T.copy(A[k * 64, 0], s)",
        *(
            line
            for source, to in pairwise(tiles)
            for line in ("    for i, j in T.Parallel(64, 64):", f"        {to}[i, j] = {source}[j, i] + s[i, j]")
        ),
        f"T.copy({tiles[-1]}, C)",
    )


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_hand_overs_that_cannot_fall_together(target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two tiles that take turns: each hand-over waits for the one before. Half as many are carried."""
    Path("many.tl").write_text(handing_over("t", "u", "t", "u", "t"))
    Path("few.tl").write_text(handing_over("t", "u", "t"))
    assert main(["few.tl", "--target", target, "-o", "few.cubin"]) == 0
    assert "barriers-exhausted" not in capfd.readouterr().err
    assert main(["many.tl", "--target", target, "-o", "many.cubin"]) == 0
    said = capfd.readouterr().err
    assert f"warning[barriers-exhausted]: each iteration stops at a barrier 4 times, {target} carries 3" in said
    assert (
        "many.tl:9:" in said
        and "before lines 11, 13, 15, 17" in said
        and "help: fill all tiles, then read them" in said
    )
    assert main(["many.tl", "--target", target, "-o", "none.cubin", "--lint=error"]) == 1
    assert "error[barriers-exhausted]" in capfd.readouterr().err
    assert not (tmp_path / "none.cubin").exists()


# ---- address arithmetic ----------------------------------------------------------------------------------------------

GATHER = (
    's = T.alloc_shared((64, 64), "float32")',
    'x = T.alloc_fragment((64, 64), "float32")',
    "T.clear(x)",
    "for k in T.Pipelined(n, num_stages=3):",
    "    T.copy(A[k * 64, 0], s)",
    "    for i, j in T.Parallel(64, 64):",
    "        x[i, j] += s[{index}]",
    "T.copy(x, A[0, 0])",
)


def gathered(index: str) -> list[Diagnostic]:
    text = kernel('A: T.Tensor((512, 64), "float32"), n: T.int32', *(line.format(index=index) for line in GATHER))
    return found(text)


def test_divisions_in_addresses() -> None:
    (lint,) = gathered("(i * 7 + j) // 3 % 64, (i + j * 5) % n")
    assert lint.code == "address-latency"
    assert lint.primary is not None and lint.primary.span.line == 10
    assert "index arithmetic in each iteration" in lint.primary.text
    assert "stages seem enough" in lint.notes[0] and lint.help is not None


@pytest.mark.parametrize("index", ["i, j", "(i + j) % 64, (i * 64 + j) // 64"])
def test_cheap_addresses(index: str) -> None:
    assert gathered(index) == []


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("bank-conflict", kernel(MATRIX, *COLUMNS[:5], COLUMNS[5].format(other="u[j, i]"))),
        (
            "address-latency",
            kernel(
                'A: T.Tensor((512, 64), "float32"), n: T.int32',
                *(line.format(index="(i * 7 + j) // 3 % 64, (i + j * 5) % n") for line in GATHER),
            ),
        ),
    ],
)
def test_a_command_warns_and_refuses(code: str, source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("kernel.tl").write_text(source)
    assert main(["kernel.tl", "-o", "a.cubin"]) == 0
    said = capfd.readouterr().err
    assert f"warning[{code}]" in said and "kernel.tl:" in said and "help: " in said
    assert main(["kernel.tl", "-o", "b.cubin", "--schedule-trace-file", "b.json", "--lint=error"]) == 1
    assert f"error[{code}]" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.cubin", "kernel.tl"]


# ---- tensor memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [((128, 128), FLOAT32, 128), ((256, 256), FLOAT32, 512), ((128, 256), FLOAT16, 256), ((64, 8), FLOAT32, 8)],
)
def test_columns_of_an_accumulator(shape: tuple[int, int], dtype: DType, wanted: int) -> None:
    """A row of up to 128 lanes takes a column for each element, halves too."""
    assert count_columns(Buffer("c", shape, dtype, "tmem")) == wanted


@pytest.mark.weekly
def test_accumulators_that_do_not_fit(capfd: pytest.CaptureFixture[str]) -> None:
    """They stay in registers then, of which there are too few as well."""
    wide = [str(GEMM), "--target", "sm_100a", "-D", "block_M=256", "-D", "block_N=512", "-o", "a.cubin"]
    assert main(wide) == 0
    said = capfd.readouterr().err
    assert "warning[tensor-memory-exhausted]: the accumulators need 1024 columns of tensor memory" in said
    assert "gemm.tl:22:" in said and "use a smaller tile" in said
    assert main([*wide, "--lint=error"]) == 1
    assert "error[tensor-memory-exhausted]" in capfd.readouterr().err
    assert main([str(GEMM), "--target", "sm_100a", "-o", "b.cubin"]) == 0
    assert "tensor-memory-exhausted" not in capfd.readouterr().err
