from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tilec.analysis.scalar_definitions import mark_replayable_binds
from tilec.analysis.usage import find_reads, find_tensor_directions, find_writes
from tilec.driver import engine
from tilec.driver.observer import Observer
from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import parse_file
from tilec.ir.text import print_kernel, show_expr
from tilec.ir.tile import Bind, Buffer, For, If, Kernel, Load, Parallel, Stmt, Store, TileOp, Var, walk_statements
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Build = Callable[..., Kernel]
SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.tl"))
HEAD = "import tilelang.language as T\n\n"


def text_of(kernel: Kernel) -> str:
    """The statements alone."""
    return print_kernel(kernel).split("\n\n", 1)[1]


def values(kernel: Kernel) -> list[str]:
    """What is stored, in order."""
    return [show_expr(s.value) for s in walk_statements(kernel.body) if isinstance(s, Store)]


def store(body: Build, value: str, params: str = "", dtype: str = "float32") -> str:
    """What `x[i] = value` stores."""
    lines = f'x = T.alloc_fragment((8,), "{dtype}")\nfor i in T.Parallel(8):\n    x[i] = {value}'
    (stored,) = values(body(lines, params))
    return stored


# ---- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples(path: Path, kernel: Build, golden: Callable[[str, str, str], None]) -> None:
    built = kernel(path.read_text(encoding="utf-8"))
    assert list(verify_tile(built)) == []
    golden("tile", path.stem, print_kernel(built))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_take_bfloat16(path: Path, kernel: Build) -> None:
    built = kernel(path.read_text(encoding="utf-8"), dtype="bfloat16")
    assert {p.dtype for p in built.params} == {BFLOAT16}


# ---- constants, names and entries ------------------------------------------------------------------------------------


def test_defines_reach_every_form_of_constant(kernel: Build) -> None:
    text = f"""{HEAD}M, N = 1, 2
K = L = 3
scale: float = 0.5
dtype = T.float16
S = M + 1

@T.prim_func
def f(A: T.Tensor((M, N, K, L, S), dtype)):
    with T.Kernel(1):
        x = T.alloc_fragment((1,), "float32")
        T.fill(x, scale)
"""
    built = kernel(text, M=4, N=5, K=6, L=7, scale=0.25, dtype="bfloat16")
    assert built.params == (Buffer("A", (4, 5, 6, 7, 5), BFLOAT16, "global"),)
    assert "value=float32(0.25)" in text_of(built)


def test_imports_only_name_the_language(kernel: Build) -> None:
    text = """'''Doc.'''
import tilelang
from tilelang import language as TL
import torch, math  # type: ignore
from tilelang.autotuner import *_
N = tilelang.cdiv(9, 2) * math.gcd(4, 6)

@TL.prim_func
def f(A: TL.Tensor((N,), "float16")):
    with TL.Kernel(1) as (bx,):
        pass

if __name__ == "__main__":
    f(torch)
""".replace("import *_", "import autotune")
    assert kernel(text).params == (Buffer("A", (10,), FLOAT16, "global"),)


def test_both_spellings_of_a_tensor_and_scalars(body: Build) -> None:
    built = body("pass", 'A: T.Tensor[(4, 2), "float16"], B: T.Tensor(4), n: T.int32, alpha: "float32"')
    assert built.params == (
        Buffer("A", (4, 2), FLOAT16, "global"),
        Buffer("B", (4,), FLOAT32, "global"),
        Var("n", INT32),
        Var("alpha", FLOAT32),
    )


def test_the_launch(kernel: Build) -> None:
    launch = "n = 4\n    with T.Kernel(n, 2, 3, threads=(64, 2)) as (x, y, z):\n        pass\n"
    built = kernel(f"{HEAD}@T.prim_func\ndef f():\n    {launch}")
    assert (built.grid, built.threads) == ((4, 2, 3), 128)
    assert [v.name for v in built.block_vars] == ["x", "y", "z"]
    assert kernel(f"{HEAD}@T.prim_func\ndef f():\n    with T.Kernel(4) as bx:\n        pass\n").threads == 128


def test_one_of_several_kernels_is_chosen(kernel: Build) -> None:
    one = "@T.prim_func\ndef {}():\n    with T.Kernel({}):\n        pass\n\n"
    text = HEAD + "def helper(x):\n    return x\n\n" + one.format("first", 1) + one.format("second", 2)
    assert kernel(text, "second").grid == (2,)


def test_names_become_unique(body: Build) -> None:
    built = body("for i in T.serial(2):\n    j = i * bx\nfor i in T.serial(3):\n    j = i * bx\nj = bx + 1\nj = j + 1")
    names = [s.var.name for s in walk_statements(built.body) if isinstance(s, For | Bind)]
    assert names == ["i", "j", "i_1", "j_1", "j_2", "j_3"]
    assert list(verify_tile(built)) == []


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("i", "float32(i)"),
        ("1", "1.0"),
        ("i * 2", "float32(i * 2)"),
        ("i * 0.5", "float32(i) * 0.5"),
        ("i // 2 % 3 - i", "float32(i // 2 % 3 - i)"),
        ("h + 1", "float32(h + float16(1.0))"),
        ("h + i", "float32(h + float16(i))"),
        ("h + s", "float32(h) + s"),
        ("h * 0.1", "float32(h * float16(0.0999755859375))"),
        ("s ** 2", "pow(s, 2.0)"),
        ("-s", "-s"),
        ("+s", "s"),
        ("~i", "float32(i ^ -1)"),
        ("T.max(s, 0)", "max(s, 0.0)"),
        ("T.exp2(s * 1.5)", "exp2(s * 1.5)"),
        ("T.exp2(i)", "exp2(float32(i))"),
        ("T.abs(s)", "abs(s)"),
        ("T.abs(i)", "float32(max(i, -i))"),
        ("T.infinity('float32')", "float32('inf')"),
        ("-T.infinity(T.float32)", "float32('-inf')"),
        ("T.float32(3)", "3.0"),
        ("T.cast(s, 'float16')", "float32(float16(s))"),
        ("T.ceildiv(i, 4)", "float32((i + 3) // 4)"),
        ("T.ceildiv(9, 4)", "3.0"),
        ("T.clamp(s, 0, 6)", "min(max(s, 0.0), 6.0)"),
        ("T.if_then_else(i < 4, s, 0)", "select(i < 4, s, 0.0)"),
        ("s if i < 4 else 0", "select(i < 4, s, 0.0)"),
        ("s if True else undefined", "s"),
        ("T.if_then_else(0 <= i < 4, 1, 0.5)", "select(0 <= i and i < 4, 1.0, 0.5)"),
        ("T.if_then_else(i and not s > 0 or True, s, 0)", "s"),
        ("T.if_then_else(True and i == 3, s, 0)", "select(i == 3, s, 0.0)"),
        ("T.if_then_else((i > 1) & (i < 3), s, 0)", "select(i > 1 and i < 3, s, 0.0)"),
        ("(i > 1) + (i < 3)", "float32(int32(i > 1) + int32(i < 3))"),
        ("b + i", "float32(b + int64(i))"),
        ("u + i", "float32(u + uint32(i))"),
        ("3 / 2", "1.5"),
        ("2 ** 0.5", "1.4142135381698608"),
        ("min(3, 4) + max((1, 2))", "5.0"),
        ("(1, 2)[1]", "2.0"),
    ],
)
def test_types_of_values(value: str, expected: str, body: Build) -> None:
    params = "h: T.float16, s: T.float32, b: T.int64, u: T.uint32"
    assert store(body, value, params) == expected


def test_a_store_converts(body: Build) -> None:
    assert store(body, "i * 0.5", dtype="int8") == "int8(float32(i) * 0.5)"
    assert store(body, "2.7", dtype="int8") == "int8(2)"
    assert store(body, "0.1", dtype="bfloat16") == "bfloat16(0.10009765625)"


def test_augmented_assignment_reads_and_writes(body: Build) -> None:
    assert values(body('x = T.alloc_fragment((8,), "float16")\nfor i in T.Parallel(8):\n    x[i] *= 2')) == [
        "x[i] * float16(2.0)"
    ]


def test_binds(body: Build) -> None:
    built = body("a = 3\nb = bx * a\nc = b\nd: T.int64 = c\nwide: T.float32 = 1\ne: int = 4\ng = T.float32(2)")
    binds = [(s.var.name, s.var.dtype, show_expr(s.value)) for s in built.body if isinstance(s, Bind)]
    assert binds == [("b", INT32, "bx * 3"), ("d", INT64, "int64(b)")]


def test_an_element_becomes_a_bind(body: Build) -> None:
    (bind,) = body("index = Ids[bx]", 'Ids: T.Tensor((4,), "int32")').body
    assert isinstance(bind, Bind) and isinstance(bind.value, Load)


def test_shape_and_dtype_of_a_buffer_are_known(body: Build) -> None:
    built = body("x = T.alloc_shared((A.shape[0], 2 * A.shape[1]), A.dtype)", 'A: T.Tensor((4, 8), "float16")')
    assert built.buffers == (Buffer("x", (4, 16), FLOAT16, "shared"),)


# ---- control ---------------------------------------------------------------------------------------------------------


def test_static_conditions_choose_at_compile_time(body: Build) -> None:
    built = body(
        'x = T.alloc_fragment((8,), "float32")\nif 1 > 2:\n    T.fill(undefined, 1)\n'
        "elif True:\n    y = 2\nT.fill(x, y)"
    )
    assert text_of(built) == "  fill x[:], value=float32(2.0)\n"


def test_runtime_conditions_stay(body: Build) -> None:
    built = body(
        'x = T.alloc_fragment((8,), "float32")\nif bx:\n    T.clear(x)\nelif bx > 3:\n    pass\nelse:\n    T.fill(x, 1)'
    )
    (branch,) = built.body
    assert isinstance(branch, If)
    assert show_expr(branch.condition) == "bx != 0"
    assert len(branch.orelse) == 1


def test_loops(body: Build) -> None:
    lines = "for {} in {}:\n    T.clear(x)\n"
    heads = [
        "range(4)",
        "T.serial(1, 4)",
        "T.serial(8, 0, -2)",
        "T.unroll(bx)",
        "T.Pipelined(4)",
        "T.Pipelined(1, 4, 3)",
    ]
    text = 'x = T.alloc_fragment((8,), "float32")\n' + "".join(lines.format("k", head) for head in heads)
    loops = [s for s in body(text).body if isinstance(s, For)]
    assert [(s.kind, show_expr(s.start), show_expr(s.stop), s.step, s.num_stages) for s in loops] == [
        ("serial", "0", "4", 1, None),
        ("serial", "1", "4", 1, None),
        ("serial", "0", "4", 1, None),  # it counts its iterations
        ("unroll", "0", "bx", 1, None),
        ("pipelined", "0", "4", 1, None),
        ("pipelined", "1", "4", 1, 3),
    ]


def test_so_many_copies_do_not_pay(body: Build) -> None:
    """Of loops that nobody said are to be written out, those inside are: 32 * 32 copies at most."""
    built = body(
        'x = T.alloc_fragment((8,), "float32")\n'
        "for i in T.unroll(8):\n    for j in T.unroll(32):\n        for k in T.unroll(32):\n            T.clear(x)\n"
    )
    assert [stmt.kind for stmt in walk_statements(built.body) if isinstance(stmt, For)] == [
        "serial",
        "unroll",
        "unroll",
    ]


def test_nested_parallel_loops_are_one_nest(body: Build) -> None:
    built = body(
        "for i in T.Parallel(4):\n    for j, k in T.Parallel(2, 3):\n        A[i, j] = k",
        'A: T.Tensor((4, 4), "float32")',
    )
    (nest,) = built.body
    assert isinstance(nest, Parallel)
    assert nest.extents == (4, 2, 3)


PIPELINE = """s = T.alloc_shared((8, 8), "float16")
x = T.alloc_fragment((8, 8), "float16")
for k in T.Pipelined(4, {}):
    row = k * 8
    T.copy(A[row, 0], s)
    T.copy(s, x)
    T.copy(x, A[row, 0])
"""


@pytest.mark.parametrize(
    ("lists", "stage", "order"),
    [
        ("order=[0, 1, 2], stage=[0, 1, 1]", (0, 1, 1), (0, 1, 2)),
        ("stage=(0, 1, 1), order=(2, 0, 1)", (0, 1, 1), (2, 0, 1)),
        # One entry too many: the bind is replayed and takes no place.
        ("order=[0, 1, 2, 3], stage=[0, 0, 1, 1]", (0, 1, 1), (0, 1, 2)),
        ("order=[3, 2, 0, 1], stage=[0, 0, 1, 1]", (0, 1, 1), (2, 0, 1)),
    ],
)
def test_manual_schedules(lists: str, stage: tuple[int, ...], order: tuple[int, ...], body: Build) -> None:
    (loop,) = body(PIPELINE.format(lists), 'A: T.Tensor((32, 8), "float16")').body
    assert isinstance(loop, For)
    assert (loop.stage, loop.order) == (stage, order)


def test_a_bind_that_reads_what_the_loop_writes_is_scheduled(body: Build) -> None:
    text = """s = T.alloc_shared((8,), "int32")
for k in T.Pipelined(4, order=[0, 1], stage=[0, 1]):
    a = Ids[k]
    T.copy(Ids[k * 8], s)
    b = s[0] + a
"""
    (loop,) = body(text, 'Ids: T.Tensor((32,), "int32")').body
    assert isinstance(loop, For)
    assert mark_replayable_binds(loop.body) == (True, False, False)


# ---- regions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ("A[0, bx * 8, 4], s", "A[0, bx * 8:+8, 4:+16], s[:, :]"),
        ("A[1, bx * 8:(bx + 1) * 8, 0:16], s", "A[1, bx * 8:+8, 0:+16], s[:, :]"),
        ("s, A[bx, 0, 0]", "s[:, :], A[bx, 0:+8, 0:+16]"),
        ("A[0, 0:1, 0:16], s[3, :]", "A[0, 0, 0:+16], s[3, :]"),
        ("A[0, 3, 0], s[3, :]", "A[0, 3, 0:+16], s[3, :]"),
        ("B[bx * 16], s[2:3, :]", "B[bx * 16:+16], s[2, :]"),
        ("A[(0, 0, 0)], s", "A[0, 0:+8, 0:+16], s[:, :]"),
    ],
)
def test_regions(copy: str, expected: str, body: Build) -> None:
    params = 'A: T.Tensor((2, 64, 32), "float16"), B: T.Tensor((64,), "float16")'
    built = body(f's = T.alloc_shared((8, 16), "float16")\nT.copy({copy})', params)
    assert text_of(built) == f"  copy {expected}\n"


def test_every_statement_knows_its_line(body: Build) -> None:
    built = body("for k in T.serial(4):\n    if bx > k:\n        y = Ids[k]", 'Ids: T.Tensor((4,), "int32")')
    assert [s.span.line for s in walk_statements(built.body)] == [6, 7, 8]


def test_indices_that_a_condition_guards_may_look_out_of_range(body: Build) -> None:
    text = """x = T.alloc_fragment((8,), "float32")
for i in T.Parallel(8):
    x[i] = T.if_then_else(i > 0, x[i - 1], 0.0)
    if i < 7:
        x[i + 1] = 2
"""
    assert list(verify_tile(body(text))) == []


# ---- what a kernel uses ----------------------------------------------------------------------------------------------


def test_usage_of_tensors(body: Build) -> None:
    text = """x = T.alloc_fragment((8,), "float32")
T.copy(A, x)
for i in T.Parallel(8):
    B[i] = x[i] + I[i]
    C[i] += 1
    if D[i] > 0:
        x[i] = 0
T.copy(x, E)
"""
    params = ", ".join(f'{name}: T.Tensor((8,), "float32")' for name in "ABCDEFI")
    assert find_tensor_directions(body(text, params)) == {
        "A": "in", "B": "out", "C": "inout", "D": "in", "E": "out", "F": "in", "I": "in",
    }  # fmt: skip


def test_reads_and_writes_of_a_loop(body: Build) -> None:
    built = body(PIPELINE.format("num_stages=2"), 'A: T.Tensor((32, 8), "float16")')
    (loop,) = built.body
    assert [b.name for b in find_reads(loop)] == ["A", "s", "x"]
    assert [b.name for b in find_writes(loop)] == ["s", "x", "A"]


# ---- no mistake gives a traceback ------------------------------------------------------------------------------------

REPLACEMENTS = [
    "T", "A", "bx", "0", "-1", "2.5", '"float16"', "None", "True", "...", "T.copy", "T.serial", "x[i, j]", "A[0:4]",
    "(1, 2)", "[]", "{}", "T.bool", "T.GemmWarpPolicy.Square", "math", "1e400", "1 << 64", "~bx", "T.cast(bx, 'int8')",
    "bx > 1", "T.bool(bx)", "A.shape[0]", "T.abs(bx)", "bx if bx else 1.5", "T.ceildiv(bx, 0)", "bx % 0", "bx and 1",
    "2 ** 64", "float('nan')", "T.log(0)", "C_local[i, j]", "T.max_value('int64')", "T.exp2(bx)", "-T.uint32(bx)",
]  # fmt: skip


@pytest.mark.some(1)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_changed_kernel_compiles_or_is_refused(path: Path) -> None:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    nodes = [
        n for n in ast.walk_nodes(parse_file(source)) if isinstance(n, ast.Expr) and n.span.line == n.span.end_line > 2
    ]
    choose = random.Random(0)
    for _ in range(150):
        span = choose.choice(nodes).span
        lines = list(source.lines)
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + choose.choice(REPLACEMENTS) + line[span.end_column - 1 :]
        changed = SourceFile(path.name, "\n".join(lines))
        try:
            (work,) = engine.read_file(changed, CompileOptions(), Observer(), is_single=True).kernels
        except CompileError:
            continue
        assert list(verify_tile(work.kernel)) == [], changed.text
        folded = engine.advance_kernel(work, Observer(), last="fold-constants")
        assert list(verify_tile(folded.kernel)) == [], changed.text


def test_tile_ops_have_sorted_attributes(kernel: Build) -> None:
    built = kernel(SAMPLES[0].read_text(encoding="utf-8"))
    ops: list[Stmt] = [s for s in walk_statements(built.body) if isinstance(s, TileOp)]
    assert all(list(op.attributes) == sorted(op.attributes, key=lambda a: a[0]) for op in ops if isinstance(op, TileOp))
