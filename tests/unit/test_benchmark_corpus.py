"""benchmarks/tilelang_corpus.py: values of a made-up repository's own calls, and what comes of its kernels."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import tilelang_corpus as corpus
import tilelang_reasons as reasons
from tilelang_arguments import Script

MODULE = """import pytest
import tilelang
import tilelang.language as T

OPS = {"double": lambda a: a * 2}


def make(length, block, op, extra=None, vector=T.float32x2, shift=0):
    assert length % block == 0

    @T.prim_func
    def kernel(A: T.Tensor((length,), "float32"), B: T.Tensor((length,), "float32")):
        with T.Kernel(length // block, threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = op(A[bx * block + i]) + shift

    return kernel


@pytest.mark.parametrize("length", [4096, 8192])
@pytest.mark.parametrize("op", list(OPS))
def test_make(length, op):
    tilelang.compile(make(length, 128, OPS[op.replace(" ", "")]))


def test_make_other():
    tilelang.compile(make(1024, 128, OPS["double"], shift=4))


def tuned(rows):
    def kernel(columns=None):
        @T.prim_func
        def main(A: T.Tensor((rows, columns), "float32")):
            with T.Kernel(rows, threads=32) as bx:
                for i in T.Parallel(columns):
                    A[bx, i] = 1

        return main

    return kernel


def configurations():
    found = []
    for columns in (32, 64):
        found.append({"columns": columns})
    return found


def tune():
    AutoTuner.from_kernel(kernel=tuned(8), configs=configurations()).run()


def apply(heads, groups):
    @T.prim_func
    def kernel(A: T.Tensor((heads // groups, 32), "float32")):
        with T.Kernel(heads // groups, threads=32) as bx:
            T.clear(A)

    return kernel


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        ctx.heads = q.shape[1]

    @staticmethod
    def backward(ctx, grad):
        q, k = ctx.saved_tensors
        apply(ctx.heads, q.shape[1] // k.shape[1])


attention = Attention.apply


def main():
    attention(torch.randn(2, 32, 8), torch.randn(2, 4, 8))


@tilelang.jit
def laid_out(A, layout):
    N = T.const("N")
    A: T.Tensor[(N,), T.float32]
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N, loop_layout=layout):
            A[i] = 1.0


def test_laid_out():
    def by_two(i):
        pairs = i // 2
        return pairs % 32, i % 2

    laid_out.compile(N=64, layout=T.Fragment((64,), forward_fn=by_two))
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "examples" / "module.py"
    path.parent.mkdir()
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_values_are_those_of_calls_parametrised_tests_and_configurations(module: Path) -> None:
    assert corpus.values(module, "make") == {"length": 4096, "block": 128, "op": "lambda a: a * 2"}
    assert corpus.values(module, "tuned") == {"rows": 8, "columns": 32}
    assert corpus.values(module, "apply") == {"heads": 32, "groups": 8}
    found = [name for name, _ in corpus.kernels(module)]
    assert found == ["make", "tuned", "apply", "laid_out"]
    layout = "T.Fragment((64,), forward_fn=lambda i: (i // 2 % 32, i % 2))"
    assert corpus.values(module, "laid_out") == {"N": 64, "layout": layout}


def test_a_kernel_is_emulated_at_small_sizes(module: Path) -> None:
    made, defines = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")
    assert defines == "-D length=256 -D block=128 -D op=lambda a: a * 2"
    assert corpus.reduced({"length": 4096, "block": 512, "K": 16384, "batch": 8, "flag": True}) == {
        "length": 256, "block": 512, "K": 256, "batch": 1, "flag": True
    }  # fmt: skip
    sizes = {"heads": 64, "kv_heads": 8, "head_dim": 64, "groups": 8, "causal": True}
    assert corpus.reduce_heads(sizes, corpus.HEADS) == sizes | {"heads": 8, "kv_heads": 1}


def test_some_blocks_of_a_large_grid_are_emulated(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a sample of two blocks runs and is compared; of two that an atomic operation connects, both."""
    monkeypatch.setattr(corpus, "MOST_BLOCKS", 1)
    monkeypatch.setattr(corpus, "SAMPLE", 1)
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")
    adding = MODULE.replace("B[bx * block + i] = op(A[bx * block + i]) + shift", "T.atomic_add(B[i], A[i])")
    module.write_text(adding, encoding="utf-8")
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")
    monkeypatch.setattr(corpus, "MOST_DEPENDENT_BLOCKS", 1)
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == (
        "too-large", "512 elements and 2 blocks that depend on one another are not emulated"
    )  # fmt: skip


SCATTER = """import tilelang.language as T


def make(rows):
    @T.prim_func
    def kernel(A: T.Tensor((rows, 32), "float16"), R: T.Tensor((rows,), "int32"), B: T.Tensor((rows, 32), "float16")):
        with T.Kernel(rows, threads=32) as bx:
            for i in T.Parallel(32):
                B[R[bx], i] = A[bx, i]

    return kernel
"""


def test_indices_that_let_blocks_write_one_place_are_replaced_by_ascending_ones(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a scatter is emulated with ascending rows, and that its race is told where only drawn ones are tried.
    A wrong result is never tried again."""
    module.write_text(SCATTER, encoding="utf-8")
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")
    monkeypatch.setattr(corpus, "INDICES", ("drawn",))
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert made.code == "emulation-fault"
    assert "another block" in made.title
    assert not corpus.is_due_to_indices(corpus.Obstacle("wrong-result", ""))


def test_a_sample_that_differs_is_followed_by_a_run_of_all_blocks(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it is the result of all blocks which counts where a sample of them differs."""
    runs: list[int] = []

    def compare_run(build: object, arguments: object, sample: int) -> None:
        """Record a run, and fail if it is of a sample."""
        runs.append(sample)
        if sample:
            raise corpus.Obstacle("wrong-result", "")

    monkeypatch.setattr(corpus, "MOST_BLOCKS", 1)
    monkeypatch.setattr(corpus, "compare_run", compare_run)
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, runs) == ("", [corpus.SAMPLE, 0])


def test_all_launches_of_a_function_are_emulated(module: Path) -> None:
    """Check that a function with two launches is emulated, and that a mistake is found before its sizes change."""
    launch = """        with T.Kernel(length // block, threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = op(A[bx * block + i]) + shift
"""
    assert launch in MODULE
    module.write_text(MODULE.replace(launch, launch + launch.replace("+ shift", "+ 1")), encoding="utf-8")
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")


def test_a_size_that_the_kernel_refuses_stays(module: Path) -> None:
    """Check that one size is reduced where another cannot be."""
    module.write_text(MODULE.replace("assert length % block == 0", "assert shift == 512"), encoding="utf-8")
    source = corpus.read_source(str(module))
    options = corpus.CompileOptions(target="sm_80", entry="make", lint="off")
    sizes = {"length": 4096, "block": 128, "op": "lambda a: a", "shift": 512}
    assert corpus.choose_sizes(source, options, sizes, {}, 256) == sizes | {"length": 256}


def test_a_constant_of_the_file_is_reduced(module: Path) -> None:
    """Check that a size which the file gives a name, and no call, is made smaller, but no name of the kernel's."""
    module.write_text(
        MODULE.replace("length", "LENGTH").replace("make(LENGTH, ", "make(") + "LENGTH = 1024\nbx = 512\n"
    )
    made, defines = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("", "")
    assert defines == "-D block=128 -D op=lambda a: a * 2 -D LENGTH=256"


def test_the_parameters_of_what_a_factory_returns_have_values(module: Path) -> None:
    made, defines = corpus.examine(str(module), "tuned", "sm_80", "front")
    assert (made.code, defines) == ("", "-D rows=8 -D columns=32")


def test_the_first_obstacle_is_named(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text(MODULE.replace("make(length, 128,", "make(length, 100,"), encoding="utf-8")
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.line) == ("assertion-failed", ":9")
    module.write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(corpus, "MOST_ELEMENTS", 100)
    made, _ = corpus.examine(str(module), "make", "sm_80", "emulate")
    assert (made.code, made.title) == ("too-large", "512 elements and 2 blocks are not emulated")


def test_a_run_prints_the_table(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = (
        corpus.Kernel("module.py", "make", "sm_80"),
        corpus.Kernel("module.py", "tuned", "sm_80", "syntax", "x", ":3"),
    )
    corpus.report(list(made), ["sm_80"], ["all"], corpus.Counter())
    assert capsys.readouterr().out.splitlines()[0] == (
        "sm_80: 1 of 2 kernels (50%), 50% of the 2 that are not rightly refused; 0 name a later machine"
    )


CALLS = """import itertools
import torch
import tilelang.language as T

from helpers import twice


def split(A, sizes, longest, block, dtype):
    rows, columns = T.const("rows, columns")
    A: T.Tensor((rows, columns), dtype)
    with T.Kernel(longest // block, threads=128) as bx:
        T.clear(A)


def unused(A, sizes, longest, block, extra=2):
    with T.Kernel(longest // block, threads=128) as bx:
        T.clear(A)


def case(parts, width, block=64):
    device = torch.device("cuda")
    ends = torch.tensor([0, *itertools.accumulate(parts)], device=device)
    starts = [0]
    for i in range(len(parts) - 1):
        starts.append(starts[-1] + parts[i])
    A = (twice(torch.randn(n, width, dtype=torch.half), device) for n in [ends[-1].item()])
    (A,) = A
    sizes = torch.tensor(parts)
    split(A, torch.tensor(starts), int(sizes.max()), block, A.dtype)


def test_refused():
    with pytest.raises(ValueError):
        case([3], width=1)


def test_first():
    case([64, 192], width=32)
    block = 16
    case([16, 16], 8, block=block)


def outer():
    def main(width=7, block=5):
        pass
"""


def test_values_are_those_of_calls_by_another_name() -> None:
    """A script that chooses between its kernels calls the chosen one by a name of its own."""
    script = Script(ast.parse("""
def alone(rows, stages): ...
def paired(rows, stages): ...
def other(rows, stages): ...
def main(is_paired=True):
    kernel = paired if is_paired else alone
    chosen = is_paired
    sizes = {"rows": 64, "stages": 6 if chosen else 4}
    kernel(**sizes)
"""))  # fmt: skip
    assert script.arguments("paired") == {"rows": 64, "stages": 6}
    assert script.arguments("alone") == {"rows": 64, "stages": 4}
    assert script.arguments("other") == {}


def test_values_are_those_of_what_a_function_makes_of_tensors() -> None:
    """Parts of tensors and transposed ones have a shape, a type may depend on an argument, and of a dictionary with
    items that nothing shows the others count.
    """
    script = Script(ast.parse("""
def scaled(A, B, turned, block, count=1):
    A: T.Tensor[[rows, depth], "float16"]
    B: T.Tensor[[columns, depth] if turned else [depth, columns], "float16"]
def padded(x):
    rows, depth = x.shape
    wide = torch.zeros((rows, depth + 8), dtype=torch.half)
    return wide[:, :depth].contiguous()
def main():
    options = {"block": 32, "count": how_many()}
    scaled(padded(torch.randn(64, 24)), torch.randn(40, 24).T, turned=False, **options)
"""))  # fmt: skip
    assert script.arguments("scaled") == {"turned": False, "block": 32, "rows": 64, "depth": 24, "columns": 40}


def test_values_are_those_where_a_call_stands() -> None:
    """Check the arguments found for `split` in CALLS, and those that another kernel of the file shares."""
    script = Script(ast.parse(CALLS))
    script.imported["twice"] = Script(
        ast.parse("def twice(x, device):\n    return x.contiguous().view(-1, x.shape[1] * 2)")
    )
    expected = {"longest": 192, "block": 64, "rows": 128, "columns": 64}
    found = script.arguments("split")
    assert {k: found[k] for k in expected} == expected
    assert corpus.text_of(found["dtype"]) == "T.float16"
    alike = script.arguments("unused", ("split", "unused"))
    assert (alike["longest"], alike["block"]) == (192, 64)


REFUSED = """import tilelang
import pytest


def right(n):
    with T.Kernel(n) as bx:
        pass


def wrong(n):
    return right(undefined)


@tilelang.testing.requires_cuda_compute_version_ge(9, 0)
def test_wrong():
    with pytest.raises(ValueError):
        wrong(1)


def indirect(n):
    made = refused_inside(n)
    with pytest.raises(ValueError):
        tilelang.compile(made)


def refused_inside(n):
    return right(n)


def test_indirect():
    indirect(1)


def of_tvm(n):
    from tvm.script import tirx as TS

    @TS.prim_func
    def kernel():
        TS.launch_thread("threadIdx.x", n)

    return kernel


@tilelang.testing.requires_rocm
def test_right():
    right(3)
"""


def test_reasons_are_those_that_the_repository_states() -> None:
    """Check which machine each kernel of REFUSED is for, and why it is right to refuse it."""
    tree = ast.parse(REFUSED)
    assert (reasons.find_least_capability(tree, "wrong"), reasons.find_least_capability(tree, "right")) == (90, 0)
    assert (reasons.is_for_another_machine(tree, "wrong"), reasons.is_for_another_machine(tree, "right")) == (
        False,
        False,
    )
    assert reasons.explain_refusal(REFUSED, "wrong", "wrong-shape", "") == "a mistake on purpose"
    assert reasons.explain_refusal(REFUSED, "right", "wrong-shape", "") == ""
    assert reasons.explain_refusal(REFUSED, "refused_inside", "wrong-shape", "") == "a mistake on purpose"
    rounding = 'T.cast: round="rs" is not available (only sm_100a has an instruction for it)'
    assert reasons.explain_refusal(REFUSED, "right", "unsupported-keyword", rounding) == "beyond this machine"
    sums = "T.tcgen05_gemm: C must be a tile of T.alloc_tmem (acc is a fragment)"
    assert reasons.explain_refusal(REFUSED, "right", "wrong-scope", sums) == "for an earlier TileLang"
    undefined = ("unknown-name", "`undefined` is not defined")
    assert reasons.explain_refusal(REFUSED, "wrong", *undefined) == "a name that nothing defines"
    assert reasons.explain_refusal(REFUSED, "right", "shared-memory-overflow", "") == "beyond this machine"
    assert reasons.explain_refusal(REFUSED, "of_tvm", "missing-kernel", "") == "written in TVM's own language"
    other = REFUSED.replace("import tilelang\n", "")
    assert reasons.explain_refusal(other, "right", "wrong-shape", "") == "written for another library"
