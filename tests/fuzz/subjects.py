"""What is fuzzed: each reader of foreign text or bytes, with what it is given in good times, and what it may refuse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mutate import changed_inside, mutated, mutated_bytes, mutated_json
from structure import mutated_tree

from tilec.cli.problem import problems_of
from tilec.driver.build import build_all, check_all, legal
from tilec.driver.emulate import RunOptions
from tilec.driver.emulate_ptx import Geometry, arguments, fault_diagnostic, run
from tilec.driver.observer import Observer, Stopped
from tilec.emu import Fault
from tilec.ir import manifest
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ptx.parse import PtxSyntaxError, parse_module
from tilec.ptx.text import print_module
from tilec.sched.bounds import Unschedulable
from tilec.sched.solve import solve
from tilec.support import readers, resources
from tilec.support.diagnostics import CompileError, Diagnostic, InternalError
from tilec.support.options import CompileOptions
from tilec.support.render import render
from tilec.support.sizes import SizeError
from tilec.support.source import SourceFile
from tilec.target import table as target

ROOT = Path(__file__).parents[2]
_OPTIONS = CompileOptions(target="sm_90a")
_FEW = RunOptions(step_limit=2000)


@dataclass(frozen=True)
class Subject:
    """`corpus` makes the good inputs; `mutant` one of them changed, by a seed; `read` returns whether it was accepted:
    True, or False where it was refused as a mistake of the user's. Anything else it raises is a finding."""

    corpus: Callable[[], list[Any]]
    mutant: Callable[[list[Any], str], Any]
    read: Callable[[Any], bool]


def _refused(error: CompileError, source: SourceFile | None) -> bool:
    """A refusal can be shown."""
    assert error.diagnostics, "a refusal without a word"
    for diagnostic in error.diagnostics:
        _shown(diagnostic, source)
    return False


def _shown(diagnostic: Diagnostic, source: SourceFile | None) -> None:
    from tilec.cli.diagnostics import as_github, as_json, as_sarif
    from tilec.driver.explanations import EXPLANATIONS

    assert diagnostic.code in EXPLANATIONS, diagnostic.code
    render(diagnostic, source)
    for write in (as_json, as_github, as_sarif):
        write([(diagnostic, source)]).encode()


# ---- kernel files ----------------------------------------------------------------------------------------------------


@cache
def _kernel_texts() -> list[str]:
    """Most of what the tests of mistakes have is refused as it is: the samples count as often as all of it."""
    samples, mistakes = (
        [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))]
        for pattern in ("samples/**/*.tl", "tests/errors/*.tl")
    )
    return samples * (len(mistakes) // len(samples)) + mistakes


def _read_kernel_file(text: str) -> bool:
    return _of_kernel_file(text, lambda source: check_all(source, _OPTIONS, Observer()))


def _check_kernel_file(text: str) -> bool:
    return _of_kernel_file(text, lambda source: legal(source, _OPTIONS, Observer()))


def _build_kernel_file(text: str) -> bool:
    options = CompileOptions(target="sm_90a", scheduler="heuristic")
    return _of_kernel_file(text, lambda source: build_all(source, options, Observer()))


def _of_kernel_file(text: str, read: Callable[[SourceFile], object]) -> bool:
    source = SourceFile("mutant.tl", text)
    try:
        read(source)
    except CompileError as error:
        return _refused(error, source)
    return True


# ---- what else is read -----------------------------------------------------------------------------------------------


@cache
def _target_texts() -> list[str]:
    return [resources.target_text(name) for name in resources.target_names()]


def _read_target(text: str) -> bool:
    try:
        target.parse(text, "mutant.toml")
    except CompileError as error:
        return _refused(error, None)
    return True


SMALL = """import tilelang.language as T

@T.prim_func
def main(A: T.Tensor((256, 256), "float16"), B: T.Tensor((256, 128), "float16"), C: T.Tensor((256, 128), "float32")):
    with T.Kernel(2, threads=128) as bx:
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        C_l = T.alloc_fragment((128, 128), "float32")
        T.clear(C_l)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[bx * 128, k * 64], A_s)
            T.copy(B[k * 64, 0], B_s)
            T.gemm(A_s, B_s, C_l)
        T.copy(C_l, C[bx * 128, 0])
"""


@cache
def _small() -> dict[str, bytes]:
    """Every stage's text of a small kernel."""
    observer = Observer(keep=("tile", "problem", "schedule", "ptx", "cubin"))
    build_all(SourceFile("small.tl", SMALL), CompileOptions(target="sm_90a", scheduler="heuristic"), observer)
    return dict(observer.texts)


def _texts(stage: str) -> list[str]:
    return [_small()[stage].decode()]


@cache
def _tile_texts() -> list[str]:
    return _texts("tile") + [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tests/golden/tile/*.txt"))]


def _read_tile(text: str) -> bool:
    try:
        read_kernel(text)
    except CompileError as error:
        return _refused(error, SourceFile("mutant.tile", text))
    return True


def _read_trace(text: str) -> bool:
    options = CompileOptions(target="sm_90a", schedule=text)
    source = SourceFile("small.tl", SMALL)
    try:
        build_all(source, options, Observer(stop_after="schedule"))
    except CompileError as error:
        return _refused(error, source)
    except Stopped:
        pass
    return True


def _read_problem(text: str) -> bool:
    try:
        problems_of(text, "mutant.json")
    except CompileError as error:
        return _refused(error, None)
    return True


def _ptx_texts() -> list[str]:
    return [*_texts("ptx"), *(_PTX_FRAME % body for body in _PTX_BODIES)]


_PTX_FRAME = """.version 8.6
.target sm_90a
.address_size 64
.file 1 "kernel.tl"
.visible .entry k(.param .u64 out)
{
    .reg .b32 %%r<8>;
    .reg .b64 %%rd<8>;
    .reg .pred %%p<2>;
    %s
    ret;
}
"""
_PTX_BODIES = (
    "ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; "
    "st.global.u32 [%rd1], %r1;",
    "mov.u32 %r1, 3; again: add.s32 %r1, %r1, -1; setp.ne.s32 %p1, %r1, 0; @%p1 bra again; bar.sync 0; "
    "bar.warp.sync 0xffffffff;",
    "{ .reg .b32 %x; .shared .align 16 .b8 s[256]; mov.u32 %x, s; st.shared.v4.u32 [%x], {%r1, %r1, %r2, %r3}; }",
)  # fmt: skip


def _read_ptx(text: str) -> bool:
    source = SourceFile("mutant.ptx", text)
    try:
        run(
            source, None, Geometry((1, 1, 1), (32, 1, 1), (1, 1, 1), 1024), arguments(["zeros:uint32:64"]), options=_FEW
        )
    except CompileError as error:
        return _refused(error, source)
    except Fault as fault:
        _shown(fault_diagnostic(fault, source), source)
    return True


def _manifests() -> list[str]:
    return [manifest.to_json(found) for found in manifest.extract(_small()["cubin"])]


def _read_manifest(text: str) -> bool:
    try:
        found = manifest.from_json(text)
    except CompileError as error:
        return _refused(error, None)
    manifest.summary(found)
    manifest.to_json(found).encode()
    with suppress(SizeError):
        found.blocks(found.sizes({}, {s.name: 100 for s in found.scalars}))
    return True


def _cubins() -> list[bytes]:
    return [_small()["cubin"]]


def _mutated_cubin(corpus: list[bytes], seed: str) -> bytes:
    return mutated_bytes(random.Random(seed).choice(corpus), seed)


def _read_cubin(data: bytes) -> bool:
    try:
        for found in manifest.extract(data):
            manifest.summary(found)
            manifest.to_json(found)
    except CompileError as error:
        return _refused(error, None)
    return True


# ---- what has a structure --------------------------------------------------------------------------------------------


def _of_structure(parse: Callable[[str], Any], show: Callable[[Any], str]) -> Callable[[list[Any], str], Any]:
    """Mutants of what a text says, as texts again. What is broken already, or cannot be printed, is left as it is."""

    def mutant(corpus: list[Any], seed: str) -> str:
        chance = random.Random(seed)
        text = str(chance.choice(corpus))
        try:
            value = parse(text)
        except (CompileError, PtxSyntaxError):
            return text
        for _ in range(20):
            with suppress(ValueError, TypeError, AttributeError, AssertionError, KeyError, InternalError):
                return show(mutated_tree(value, chance))
        return text

    return mutant


def _build_tile(text: str) -> bool:
    """As far as PTX: what comes behind the reader trusts what it has let through."""
    source = SourceFile("mutant.tile", text)
    target = ("sm_80", "sm_90a", "sm_100a")[len(text) % 3]
    try:
        build_all(source, CompileOptions(target=target, scheduler="heuristic"), Observer(stop_after="ptx"))
    except CompileError as error:
        return _refused(error, source)
    except Stopped:
        pass
    return True


def _solve_problem(text: str) -> bool:
    try:
        problems, _ = problems_of(text, "mutant.json")
        for problem in problems:
            solve(problem, effort=0.01, scheduler=("heuristic", "exact")[len(text) % 2 == 0])
    except CompileError as error:
        return _refused(error, None)
    except Unschedulable:
        return False
    return True


_EXCHANGED = json.dumps(
    {
        "name": "three",
        "ops": [
            {"name": n, "resource": r, "duration": d} for n, r, d in (("a", "r", 2), ("b", "s", 1), ("c", None, 0))
        ],
        "edges": [[0, 1, 3, 0], [1, 0, 2, 1]],
        "limits": {"r": 1, "s": None},
    }
)


def _json_mutant(corpus: list[Any], seed: str) -> str:
    return _of_tables(corpus, seed, json.loads, json.dumps)


def _toml_mutant(corpus: list[Any], seed: str) -> str:
    return _of_tables(corpus, seed, readers.toml_table, lambda table: "".join(_toml(table, "")))


def _of_tables(corpus: list[Any], seed: str, parse: Callable[[str], Any], show: Callable[[Any], str]) -> str:
    chance = random.Random(seed)
    text = str(chance.choice(corpus))
    try:
        value = parse(text)
    except ValueError:
        return text
    for _ in range(chance.choice((1, 1, 2, 3))):
        changed_inside(value, chance)
    return show(value)


def _toml(table: dict[str, Any], place: str) -> Iterator[str]:
    """A table and those within it. What TOML has no words for is left out."""
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    for name, value in table.items():
        if name not in inner and value is not None:
            yield f"{json.dumps(name)} = {_toml_value(value)}\n"
    for name, value in inner.items():
        below = f"{place}.{json.dumps(name)}" if place else json.dumps(name)
        yield f"[{below}]\n"
        yield from _toml(value, below)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(member) for member in value if member is not None) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def _price_target(text: str) -> bool:
    """Each of its instructions for small and large statements: what a kernel may ask."""
    try:
        machine = target.parse(text, "mutant.toml")
    except CompileError as error:
        return _refused(error, None)
    for kind in machine.kinds:
        for size in (1, 3, 64, 1 << 20):
            machine.price(kind.name, **dict.fromkeys(kind.parameters, size))
    return True


SUBJECTS = {
    "kernels": Subject(_kernel_texts, mutated, _read_kernel_file),
    "checks": Subject(_kernel_texts, mutated, _check_kernel_file),
    "builds": Subject(_kernel_texts, mutated, _build_kernel_file),
    "targets": Subject(_target_texts, mutated, _read_target),
    "tiles": Subject(_tile_texts, mutated, _read_tile),
    "traces": Subject(lambda: _texts("schedule"), mutated_json, _read_trace),
    "problems": Subject(lambda: _texts("problem"), mutated_json, _read_problem),
    "ptx": Subject(_ptx_texts, mutated, _read_ptx),
    "manifests": Subject(_manifests, mutated_json, _read_manifest),
    "cubins": Subject(_cubins, _mutated_cubin, _read_cubin),
    "tile-trees": Subject(_tile_texts, _of_structure(read_kernel, print_kernel), _build_tile),
    "ptx-trees": Subject(_ptx_texts, _of_structure(parse_module, print_module), _read_ptx),
    "problem-trees": Subject(lambda: [*_texts("problem"), _EXCHANGED], _json_mutant, _solve_problem),
    "trace-trees": Subject(lambda: _texts("schedule"), _json_mutant, _read_trace),
    "target-trees": Subject(_target_texts, _toml_mutant, _price_target),
}
