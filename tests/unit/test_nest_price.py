"""What an elementwise nest is priced at: loads as often as the assembler leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver.build import Observer, plan_kernel
from tilec.ir.tile import Parallel, walk_statements
from tilec.ops.lowering import Demand
from tilec.passes.loop.price.nest_price import count_nest_demands
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T


@T.prim_func
def scaled(A: T.Tensor((64, 64), "float16"), w: T.Tensor((64,), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        A_shared = T.alloc_shared((64, 64), "float16")
        w_shared = T.alloc_shared((64,), "float32")
        C_local = T.alloc_fragment((64, 64), "float32")
        T.copy(A, A_shared)
        T.copy(w, w_shared)
        T.gemm(A_shared, A_shared, C_local, clear_accum=True)
        for i, j in T.Parallel(64, 64):
            {stored}[i, j] = C_local[i, j] * {loaded}
"""


def count_demands(folder: Path, stored: str, loaded: str) -> list[Demand]:
    """Return the demands of the nest that loads `loaded`, by all threads together."""
    path = folder / "scaled.tl"
    path.write_text(KERNEL.format(stored=stored, loaded=loaded))
    found = plan_kernel(SourceFile(str(path), path.read_text()), CompileOptions(target="sm_90a"), Observer())
    nests = [s for s in walk_statements(found.assignment.kernel.body) if isinstance(s, Parallel)]
    nest = next(s for s in nests if "w_shared" in str(s.body))
    return count_nest_demands(nest, found.assignment.nest_layout(nest), 128, False)


def loaded_bytes(folder: Path, stored: str, loaded: str) -> int:
    """By all threads together."""
    demands = count_demands(folder, stored, loaded)
    return sum(int(dict(d.parameters)["bytes"]) for d in demands if d.kind == "ld.shared")


@pytest.mark.parametrize(
    ("loaded", "each"),
    [("w_shared[i]", 2), ("w_shared[j]", 16), ("w_shared[0]", 1)],
    ids=["of a row", "of a column", "one"],
)
def test_a_thread_loads_what_its_elements_have_in_common_once(loaded: str, each: int, tmp_path: Path) -> None:
    """Of an accumulator of 64 × 64 it has two rows and sixteen columns."""
    assert loaded_bytes(tmp_path, "C_local", loaded) == each * 128 * 4


def test_what_is_stored_to_memory_may_be_what_is_loaded_next(tmp_path: Path) -> None:
    assert loaded_bytes(tmp_path, "C", "w_shared[i]") == 64 * 64 * 4


@pytest.mark.parametrize(
    ("function", "operations"), [("T.fast_rcp", 2), ("T.__log2", 2), ("T.__exp", 3), ("T.__log10", 3)]
)
def test_named_approximations_hold_the_unit_of_special_functions(
    function: str, operations: int, tmp_path: Path
) -> None:
    """Beside two products, and a third one where the instruction has another base than the function."""
    found = count_demands(tmp_path, "C_local", f"{function}(C_local[i, j]) * w_shared[i]")
    assert [dict(d.parameters)["elements"] for d in found if d.kind == "mufu"] == [64 * 64]
    assert [dict(d.parameters)["ops"] for d in found if d.kind == "elementwise"] == [operations]
