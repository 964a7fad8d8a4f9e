"""The examples of the language reference: each entry has one, each compiles, and each computes what numpy does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fenced import ROOT

from tilec.cli.main import main
from tilec.driver.build import Build, Observer, build_kernel, check_file
from tilec.driver.emulation import emulate
from tilec.frontend.examples.read import (
    FOLDER,
    HEAD,
    ExampleKernel,
    find_example,
    list_pages,
    read_kernels,
    read_values,
)
from tilec.frontend.language import list_documented_names
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.types import TYPES_BY_NAME
from tilec.lsp.vocabulary import to_markdown
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

REFERENCE = ROOT / "docs" / "language"
KERNELS = {f"{page}: {kernel.names[0]}": kernel for page in list_pages() for kernel in read_kernels(page)}

SECTIONS = {"Statements", "Expressions", "Python's own functions"}

# What `T.const` names, and sizes that are known at launch.
DEFINES = {"scaled": {"N": 512}}
SIZES = {"of_any_size": {"M": 3, "n": 75}}


def name_of(kernel: ExampleKernel) -> str:
    """The name of the function that is the kernel."""
    return re.findall(r"^@(?:T\.prim_func|tilelang\.jit)\ndef (\w+)", kernel.text, re.MULTILINE)[-1]


def source_of(kernel: ExampleKernel) -> tuple[SourceFile, CompileOptions]:
    options = CompileOptions(defines=tuple(DEFINES.get(name_of(kernel), {}).items()))
    return SourceFile("example.tl", HEAD + kernel.text), replace(options, target=kernel.target or options.target)


# ---- each entry has one ----------------------------------------------------------------------------------------------


def entries(page: str) -> list[tuple[str, ...]]:
    """The names of each entry of a page: of a heading, or of a row of a table."""
    headings = [tuple(re.findall("`(.*?)`", line)) for line in re.findall(r"^### (.*)$", page, re.MULTILINE)]
    rows = [(name,) for name in re.findall(r"^\| `([\w.]+)", page, re.MULTILINE)]
    return headings + rows


def test_each_entry_has_an_example() -> None:
    found = [(path.stem, names) for path in REFERENCE.glob("*.md") for names in entries(path.read_text("utf-8"))]
    assert len(found) > 250
    spelled = {names: tuple(f"T.{n}" if n in TYPES_BY_NAME else n for n in names) for _, names in found}
    assert [names for _, names in found if find_example(*spelled[names]) is None] == []


def test_each_section_shows_an_example() -> None:
    for path in REFERENCE.glob("*.md"):
        _, *found = re.split(r"^##+ ", path.read_text("utf-8"), flags=re.MULTILINE)
        for section in found:
            assert re.search(r"^Example|^\| \| \| example", section, re.MULTILINE), (
                path.name,
                section.partition("\n")[0],
            )


def test_examples_are_of_names_and_use_them() -> None:
    for where, kernel in KERNELS.items():
        for name in set(kernel.names) - SECTIONS:
            assert name in list_documented_names(), where
            spellings = {name, *list_documented_names()[name].names}
            assert any(re.search(rf"{re.escape(n)}\b", kernel.text) for n in spellings), (where, name)
    names = [name for kernel in KERNELS.values() for name in kernel.names]
    assert len(set(names)) == len(names), "no name has two examples"
    functions = [name_of(kernel) for kernel in KERNELS.values()]
    assert len(set(functions)) == len(functions)


def test_explain_and_the_editor_show_the_example(capfd: pytest.CaptureFixture[str]) -> None:
    copy = KERNELS["tiles: T.copy"].text
    assert main(["explain", "T.copy"]) == 0 and main(["explain", "T.fmod"]) == 0
    assert capfd.readouterr().out.count("\nExample:\n\n") == 2
    assert main(["explain", "T.Serial"]) == 0  # another spelling of T.serial
    assert KERNELS["loops: range"].text in capfd.readouterr().out
    assert f"```python\n{copy}```" in to_markdown(list_documented_names()["T.copy"])
    assert read_values()["T.fmod"] in to_markdown(list_documented_names()["T.fmod"])


# ---- each compiles ---------------------------------------------------------------------------------------------------


def test_each_example_compiles() -> None:
    """As `tilec check` sees it; a hint that changes nothing says so."""
    for where, kernel in KERNELS.items():
        source, options = source_of(kernel)
        observer = Observer()
        check_file(source, options, observer)
        assert not [w.title for w in observer.warnings if w.code != "hint-not-used"], where
        without_effect = {"T.func_attr", "T.no_set_max_nreg", "T.WSSchedule"}
        assert not observer.warnings or without_effect & set(kernel.names), where


# ---- values ----------------------------------------------------------------------------------------------------------

FLOATS = {"inf": np.inf}


def test_values_are_what_the_calls_give() -> None:
    """All of them in one kernel, whose PTX is emulated."""
    lines = [line.split("  # ") for line in (FOLDER / "values.txt").read_text("utf-8").splitlines()]
    wanted = [eval(shown, dict(FLOATS)) for _, shown in lines]
    body = ""
    for n, (call, _) in enumerate(lines):
        if isinstance(wanted[n], tuple):
            body += f"        x{n} = {call}\n        I[{n}] = 0\n"
            body += "".join(f"        I[{n}] = I[{n}] * 1000 + x{n}[{place}]\n" for place in range(len(wanted[n])))
        else:
            body += f"        {'F' if isinstance(wanted[n], float) else 'I'}[{n}] = {call}\n"
    text = (
        f"import tilelang\n{HEAD}@T.prim_func\n"
        f'def k(F: T.Tensor(({len(lines)},), "float64"), I: T.Tensor(({len(lines)},), "int64")):\n'
        f"    with T.Kernel(1, threads=32):\n{body}"
    )
    made = build_kernel(SourceFile("values.tl", text), CompileOptions(), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, found)
    for n, (call, shown) in enumerate(lines):
        want = wanted[n]
        if isinstance(want, tuple):
            assert int(found.tensors["I"][n]) == reduce(lambda number, part: number * 1000 + part, want), call
        elif isinstance(want, float):
            assert is_close(call, float(found.tensors["F"][n]), want), (call, shown, found.tensors["F"][n])
        else:
            assert (int(found.tensors["I"][n]) - want) % 2**64 == 0, call


def is_close(call: str, found: float, shown: float) -> bool:
    """Whether a result is the number that is shown: approximations to as many digits as these are, rounding exactly."""
    if "float64" in call:
        return found == shown
    if call.startswith(("T.__", "T.fast_")):
        return bool(np.isclose(found, shown, rtol=3e-6))
    off = abs(int(np.float32(found).view(np.int32)) - int(np.float32(shown).view(np.int32)))
    return off <= (0 if call.startswith(("T.ieee_", "T.float", "T.bfloat")) else 1)


# ---- each computes what numpy does -----------------------------------------------------------------------------------

Inputs = Any
GIVEN: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "looked_up": lambda random: {"places": random.integers(0, 1024, 64)},
    "rows_by_number": lambda rng: {"places": rng.integers(0, 1024, 16)},
    "rows_to_their_places": lambda random: {"places": random.permutation(256)[:64]},
    "mark_present": lambda random: {"items": random.integers(0, 256, 1024)},
    "through_a_table": lambda random: {"A": random.integers(0, 256, 1024)},
    "column_sums": lambda _: {"rows": 256},
    "copied_by_16_bytes": lambda _: {"n": 100},
    "from_a_row_on": lambda _: {"first": 70},
    "expressions": lambda _: {"n": 100},
    "statements": lambda _: {"n": 21},
    "rows_until_stopped": lambda _: {"stop": np.zeros(1, np.int32)},
    "shifted": lambda _: {"shift": 5},
}
"""Arguments that are not drawn as others are, by the name of the kernel."""


def reversed_in(parts: int, x: Any) -> Any:
    return x.reshape(-1, parts)[::-1].reshape(-1)


def quantised(x: Inputs) -> dict[str, Any]:
    scales = np.abs(x.A).max(1) / 127
    return {"B": np.trunc(x.A / scales[:, None] + np.copysign(0.5, x.A)), "scales": scales}


def convolved(x: Inputs) -> dict[str, Any]:
    padded = np.pad(x.images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + 8, j : j + 8].reshape(128, 32) for i in range(3) for j in range(3)]
    return {"result": np.concatenate(taps, 1) @ x.filters}


def bits(flags: Any) -> Any:
    """A word with bit i set where flag i holds."""
    return (flags.astype(np.uint64) << np.arange(flags.shape[-1], dtype=np.uint64)).sum(-1)


def scale_of(words: Any) -> Any:
    """The factors of 128 elements of a row, from its word of four exponents."""
    exponents = words.astype(np.uint32)[:, None] >> np.arange(0, 32, 8, dtype=np.uint32) & 255
    return np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, axis=1)


def from_other_lanes(x: Inputs) -> dict[str, Any]:
    a = x.A
    return {"B": [a + a[np.arange(32) ^ 1], a[[0, *range(31)]], a[[*range(1, 32), 31]], np.full(32, a[0])]}


def stated(x: Inputs) -> dict[str, Any]:
    totals = x.A[0 : x.n : 2, ::128].sum(0)
    return {"B": np.where(np.arange(64)[:, None] < x.n, x.A, np.repeat(totals, 128))}


def expressed(x: Inputs) -> dict[str, Any]:
    row, j = np.arange(64)[:, None], np.arange(128)
    return {"B": np.where((j < x.n) & (j % 2 == 0) & (row // 8 != 3), x.A / 8, -1)}


NUMPY: dict[str, Callable[[Inputs], dict[str, Any]]] = {
    # structure
    "add": lambda x: {"C": x.A + x.B},
    "scaled": lambda x: {"B": 2 * x.A},
    "activated": lambda x: {"B": np.maximum(x.A, 0)},
    "every_third": lambda x: {"B": x.A[::3]},
    "doubled": lambda x: {"B": 2 * x.A},
    "shifted": lambda x: {"B": np.pad(x.A, ((0, 0), (5, 0)))[:, :64]},
    "left_half": lambda x: {"B": x.A},
    "joined": lambda x: {"C": x.table},
    "negated": lambda x: {"B": -x.data},
    "halved": lambda x: {"B": x.address / 2},
    "copied": lambda x: {"B": x.A},
    "in_fours": lambda x: {"B": x.A},
    "product_by_clusters": lambda x: {"C": x.A @ x.B},
    "whole_rows": lambda x: {"C": x.A @ x.B},
    "instructions": lambda x: {"C": x.A @ x.B.T},
    "turned_without_conflicts": lambda x: {"B": x.A.T},
    "row_by_row": lambda x: {"B": 2 * x.A},
    "statements": stated,
    "expressions": expressed,
    # allocation
    "through_shared": lambda x: {"B": x.A.T},
    "softplus": lambda x: {"B": np.log1p(np.exp(x.A))},
    "sum_in_tensor_memory": lambda x: {"C": x.A @ x.B},
    "first_negative": lambda x: {"found": [np.argmax(x.A < 0)]},
    "total_of_all": lambda x: {"total": [x.A.sum()]},
    "row_sums": lambda x: {"sums": x.A.sum(1)},
    "heads_apart": lambda x: {"B": x.A.reshape(64, 4, 64) / 8},
    "signs": lambda x: {"negative": np.signbit(x.A)},
    "reversed_in_eights": lambda x: {"B": x.A.reshape(-1, 8)[:, ::-1].reshape(-1)},
    # loops
    "column_sums": lambda x: {"sums": x.A.sum(0)},
    "products_of_a_thread": lambda x: {"C": np.outer(x.A, x.B).reshape(-1)},
    "polynomial": lambda x: {"B": np.polyval(x.factors, x.A)},
    "loads_ahead": lambda x: {"C": x.A @ x.B},
    "outer_sum": lambda x: {"C": np.add.outer(x.A, x.B)},
    "in_vectors_of_four": lambda x: {"B": 2 * x.A},
    "all_tiles": lambda x: {"B": x.A},
    "tile_after_tile": lambda x: {"B": x.A},
    "length_of_text": lambda x: {"length": [np.argmin(x.text)]},
    # tiles
    "to_half": lambda x: {"B": x.A},
    "loaded_early": lambda x: {"C": np.exp(x.A) + x.B},
    "loaded_by_tma": lambda x: {"B": 2 * x.A},
    "looked_up": lambda x: {"B": x.table[x.places]},
    "rows_by_number": lambda x: {"B": x.table[x.places]},
    "column_statistics": lambda x: {"largest": x.A.max(0), "sums": x.A.sum(0)},
    "rows_of_a_list": lambda x: {"B": np.where(x.rows[:, None] < 0, 0, x.A[x.rows])},
    "convolution": convolved,
    "rows_to_their_places": lambda x: {"B": {int(place): row for place, row in zip(x.places, x.A, strict=True)}},
    "rows_of_the_neighbour": lambda x: {"B": x.A[[1, 0, 3, 2]]},
    "transposed": lambda x: {"B": x.A.T},
    "largest_of_rows": lambda x: {"largest": x.A.max(1)},
    "watched": lambda x: {"B": x.A / x.A.sum(1, keepdims=True)},
    # products
    "product": lambda x: {"C": x.A @ x.B.T},
    "two_products": lambda x: {"C": x.A @ x.B[:, :64], "D": x.A @ x.B[:, 64:]},
    "product_in_tensor_memory": lambda x: {"C": x.A @ x.B.T},
    "scaled_product": lambda x: {"C": (x.A * scale_of(x.A_scales)) @ (x.B * scale_of(x.B_scales)).T},
    "one_arrival_for_two_products": lambda x: {"C": x.A @ x.B.T},
    "dot_products": lambda x: {"C": x.A @ x.B},
    # reductions
    "mean_of_rows": lambda x: {"means": x.A.mean(1)},
    "normalised": lambda x: {"B": x.A / x.A.sum(1, keepdims=True)},
    "largest_so_far": lambda x: {"largest": x.A.max(1)},
    "smallest_of_columns": lambda x: {"smallest": x.A.min(0)},
    "quantised": quantised,
    "one_norms": lambda x: {"norms": np.abs(x.A).sum(1)},
    "flags_of_rows": lambda x: {
        "in_all": np.bitwise_and.reduce(x.flags, axis=1),
        "in_any": np.bitwise_or.reduce(x.flags, axis=1),
        "parity": np.bitwise_xor.reduce(x.flags, axis=1),
    },
    "offsets": lambda x: {"ends": x.lengths.cumsum()},
    "highest_until_now": lambda x: {"highest": np.maximum.accumulate(x.prices, axis=1)},
    # scalars
    "differences": lambda x: {"B": np.diff(x.A, prepend=0), "C": np.maximum(x.A, 0)},
    "two_at_once": lambda x: {
        "C": [x.A + x.B, x.A - x.B, x.A * x.B, x.A * x.B + x.B, np.maximum(x.A, x.B), np.minimum(x.A, x.B), np.abs(x.A)]
    },
    "rows_in_use": lambda x: {"B": np.where(x.mask != 0, x.A, 0), "is_full": (x.mask != 0).all(1)},
    "of_any_size": lambda x: {"B": 2 * x.A},
    "of_three_dimensions": lambda x: {"B": 2 * x.A},
    "biased": lambda x: {"B": x.A / 8 + np.outer(2.0 ** -np.arange(1, 9), np.arange(128))},
    # vectors
    "scaled_in_fours": lambda x: {"B": x.A / 2 + 1},
    "copied_by_words": lambda x: {"B": x.A},
    "counters_up": lambda x: {"B": x.A + 1},
    "copied_by_16_bytes": lambda x: {"B": np.where(np.arange(1024) < 800, x.A, 0)},
    "copied_by_32_bytes": lambda x: {"B": x.A},
    "pairs_reversed": lambda x: {"B": reversed_in(2, x.A)},
    "fours_reversed": lambda x: {"B": reversed_in(4, x.A)},
    "eights_reversed": lambda x: {"B": reversed_in(8, x.A)},
    "through_a_table": lambda x: {"B": x.table[x.A]},
    # atomics
    "histogram": lambda x: {"counts": x.counts + np.bincount(x.values & 15, minlength=16)},
    "extent": lambda x: {
        "largest": np.maximum(x.largest, x.values.max()),
        "smallest": np.minimum(x.smallest, x.values.min()),
    },
    "mark_present": lambda x: {"present": x.present | bits(np.isin(np.arange(256).reshape(8, 32), x.items))},
    "add_in_pairs": lambda x: {"sums": x.sums + x.A.sum(0)},
    "add_in_fours": lambda x: {"sums": x.sums + x.A.sum(0)},
    "rows_until_stopped": lambda x: {"stop": [0], "B": 2 * x.A, "done": np.ones(8)},
    # threads
    "over_the_whole_grid": lambda x: {"B": 2 * x.A},
    "in_two_dimensions": lambda x: {"B": x.A[::-1, ::-1]},
    "row_for_each_warp": lambda x: {"B": 2 * x.A, "group": np.arange(8) // 4},
    "parts_of_a_row": lambda x: {"B": 2 * x.A},
    "one_count_for_each_warp": lambda x: {"warps": x.warps + (x.A.reshape(-1, 32) > 0).any(1).sum()},
    "each_thread_four": lambda x: {"B": 2 * x.A},
    "counted": lambda x: {"count": x.count + (x.A > 0).sum()},
    "from_other_lanes": from_other_lanes,
    "as_tvm_spells_it": lambda x: {
        "B": [np.repeat(x.A[::8], 8), x.A[[0, *range(31)]], x.A[[*range(1, 32), 31]]],
    },
    "second_half_first": lambda x: {"B": np.roll(x.A, 128)},
    "of_each_warp": lambda x: {
        "B": np.stack(
            [
                x.A.sum(1),
                x.A.max(1),
                x.A.min(1),
                np.bitwise_and.reduce(x.A, axis=1),
                np.bitwise_or.reduce(x.A, axis=1),
            ],
            axis=1,
        )
    },
    "votes": lambda x: {
        "B": np.stack(
            [(x.A > 0).any(1), (x.A > 0).all(1), bits(x.A > 0), (x.A > 0).sum(1), np.full(8, 2**32 - 1)], axis=1
        )
    },
    "lanes_alike": lambda x: {
        "same": bits((x.keys & 3)[:, :, None] == (x.keys & 3)[:, None, :]),
        "uniform": np.where(np.ptp(x.keys & 3, axis=1) == 0, 2**32 - 1, 0),
    },
    "of_the_block": lambda x: {"B": [(x.A > 0).sum(), 1, 0]},
    # roles
    "product_by_two_roles": lambda x: {"C": x.A @ x.B},
    "product_by_a_pipeline": lambda x: {"C": x.A @ x.B},
    "one_computes_and_one_stores": lambda x: {"B": np.exp(x.A)},
    # synchronisation
    "handed_over": lambda x: {"B": np.exp(x.A[:, ::-1])},
    "at_one_pace": lambda x: {"B": 2 * x.A},
    "reversed_by_threads": lambda x: {"B": x.A[::-1]},
    "written_with_groups": lambda x: {"B": x.A},
    "second_half_later": lambda x: {"B": x.A},
    "loaded_by_threads": lambda x: {"B": 2 * x.A},
    "announced": lambda x: {"B": x.A.T},
    "two_tiles_at_one_barrier": lambda x: {"C": x.A + x.B.T},
    "stored_by_tma": lambda x: {"B": 2 * x.A},
    "arrive_and_go_on": lambda x: {"B": np.exp(x.A[::-1]), "C": -x.A},
    "exchanged": lambda x: {"B": x.A + x.A[[1, 0, 3, 2]]},
    "exchanged_meanwhile": lambda x: {"B": np.exp(x.A) + x.A[[1, 0, 3, 2]]},
    "share_of_the_total": lambda x: {"B": x.A / x.A.sum()},
    "weighted": lambda x: {"B": x.A * x.weight},
    "registers_for_who_computes": lambda x: {"B": np.exp(x.A)},
    "fewer_for_who_loads": lambda x: {"B": np.exp(x.A)},
    "takes_over_other_blocks": lambda x: {"B": np.exp(x.A)},
    "one_product_under_way": lambda x: {"C": x.A[0] @ x.B[0] + x.A[1] @ x.B[1]},
    # hints
    "blocks_in_panels": lambda x: {"C": x.A @ x.B},
    "swizzled": lambda x: {"B": x.A.T},
    "three_versions": lambda x: {"C": x.A @ x.B},
    "scores_in_halves": lambda x: {"O": np.maximum(x.Q @ x.K.T, 0).astype(np.float16) @ x.V},
    "largest_of_1000": lambda x: {"largest": [x.A.max()]},
    "from_a_row_on": lambda x: {"B": x.A[70:134]},
    "fast_exponentials": lambda x: {"B": np.exp(x.A)},
    "written_for_another_compiler": lambda x: {"B": 2 * x.A},
    "schedule_for_another_compiler": lambda x: {"B": x.A},
    "scale_by_sums": lambda x: {"B": x.A * x.A.reshape(8, 64, 256).sum(1, dtype="float32").repeat(64, 0)},
    "stored_from_shared": lambda x: {"B": 2 * x.A},
    "roles_for_another_compiler": lambda x: {"C": x.A @ x.B},
}
"""What the kernels of these names leave in their tensors; a dictionary of rows has those that are written."""

# Generators, sums rounded down and sparse operands have tests of their own: here they are compared with the reference.
ONLY_REFERENCE = {"random_numbers", "sums_rounded_down", "sparse_product"}


def test_numpy_says_what_each_example_computes() -> None:
    assert {name_of(kernel) for kernel in KERNELS.values()} == NUMPY.keys() | ONLY_REFERENCE
    assert not NUMPY.keys() & ONLY_REFERENCE


@pytest.mark.some(24)
@pytest.mark.parametrize("where", KERNELS)
def test_each_example_computes_what_numpy_does(where: str) -> None:
    kernel = KERNELS[where]
    name = name_of(kernel)
    made = build_kernel(*source_of(kernel), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0, SIZES.get(name))
    dtypes = {tensor.name: TYPES_BY_NAME[tensor.dtype] for tensor in made.manifest.tensors}
    for given, value in GIVEN.get(name, lambda _: {})(np.random.default_rng(0)).items():
        if given in dtypes:
            found.tensors[given][:] = encode_values(value, dtypes[given])
        else:
            found.scalars[given] = value
    before = SimpleNamespace(**numbers(made, found), **found.scalars)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    results = emulate.compare_arguments(made.kernel, made.manifest, found, expected)
    assert results, "the kernel writes nothing"
    for r in results:
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
    if name in ONLY_REFERENCE:
        return
    after = numbers(made, found)
    wanted = NUMPY[name](before)
    assert wanted.keys() == {r.name for r in results}
    for tensor, value in wanted.items():
        rows = list(value) if isinstance(value, dict) else slice(None)
        value = list(value.values()) if isinstance(value, dict) else value
        np.testing.assert_allclose(after[tensor][rows], np.asarray(value, np.float64), rtol=1e-2, atol=1e-2)


def numbers(made: Build, arguments: emulate.KernelArguments) -> dict[str, Any]:
    """The tensors as numpy's numbers."""
    dtypes = {tensor.name: TYPES_BY_NAME[tensor.dtype] for tensor in made.manifest.tensors}
    return {
        name: np.array(decode_values(array, dtypes[name]), np.float64 if dtypes[name].is_float else None)
        for name, array in arguments.tensors.items()
    }
