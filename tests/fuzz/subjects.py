"""What is fuzzed: each reader of foreign text or bytes, with what it is given in good times, and what it may refuse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from file_subjects import FILES, SMALL
from mutate import mutated, mutated_bytes, mutated_json
from structure import mutated_tree
from subject import Subject, json_mutant, refused, shown, toml_mutant

from tilec.cli.commands.problem import read_problems
from tilec.driver.build import build_library, check_file, load_kernels
from tilec.driver.emulation.emulate import RunOptions
from tilec.driver.emulation.emulate_ptx import (
    LaunchGeometry,
    build_ptx_fault_diagnostic,
    emulate_ptx_file,
    parse_arguments,
)
from tilec.driver.observer import Observer, PipelineStopped
from tilec.emu import Fault
from tilec.ir import manifest
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ptx.parse import PtxSyntaxError, parse_module
from tilec.ptx.text import print_module
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.solve import solve_problem
from tilec.support import resources
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.options import CompileOptions
from tilec.support.sizes import SizeError
from tilec.support.source import SourceFile
from tilec.target import table as target

ROOT = Path(__file__).parents[2]
_OPTIONS = CompileOptions(target="sm_90a")
_FEW = RunOptions(step_limit=2000)


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
    return _of_kernel_file(text, lambda source: load_kernels(source, _OPTIONS, Observer()))


def _check_kernel_file(text: str) -> bool:
    return _of_kernel_file(text, lambda source: check_file(source, _OPTIONS, Observer()))


def _build_kernel_file(text: str) -> bool:
    options = CompileOptions(target="sm_90a", scheduler="heuristic")
    return _of_kernel_file(text, lambda source: build_library(source, options, Observer()))


def _of_kernel_file(text: str, read: Callable[[SourceFile], object]) -> bool:
    source = SourceFile("mutant.tl", text)
    try:
        read(source)
    except CompileError as error:
        return refused(error, source)
    return True


# ---- what else is read -----------------------------------------------------------------------------------------------


@cache
def _target_texts() -> list[str]:
    return [resources.target_text(name) for name in resources.target_names()]


def _read_target(text: str) -> bool:
    try:
        target.parse_target(text, "mutant.toml")
    except CompileError as error:
        return refused(error, None)
    return True


@cache
def _small() -> dict[str, bytes]:
    """Every stage's text of a small kernel."""
    observer = Observer(keep=("tile", "problem", "schedule", "ptx", "cubin"))
    build_library(SourceFile("small.tl", SMALL), CompileOptions(target="sm_90a", scheduler="heuristic"), observer)
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
        return refused(error, SourceFile("mutant.tile", text))
    return True


def _read_trace(text: str) -> bool:
    options = CompileOptions(target="sm_90a", schedule=text)
    source = SourceFile("small.tl", SMALL)
    try:
        build_library(source, options, Observer(stop_after="schedule"))
    except CompileError as error:
        return refused(error, source)
    except PipelineStopped:
        pass
    return True


def _read_problem(text: str) -> bool:
    try:
        read_problems(text, "mutant.json")
    except CompileError as error:
        return refused(error, None)
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
        emulate_ptx_file(
            source,
            None,
            LaunchGeometry((1, 1, 1), (32, 1, 1), (1, 1, 1), 1024),
            parse_arguments(["zeros:uint32:64"]),
            options=_FEW,
        )
    except CompileError as error:
        return refused(error, source)
    except Fault as fault:
        shown(build_ptx_fault_diagnostic(fault, source), source)
    return True


def _manifests() -> list[str]:
    return [manifest.to_json(found) for found in manifest.extract_from_cubin(_small()["cubin"])]


def _read_manifest(text: str) -> bool:
    try:
        found = manifest.from_json(text)
    except CompileError as error:
        return refused(error, None)
    manifest.summarise_manifest(found)
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
        for found in manifest.extract_from_cubin(data):
            manifest.summarise_manifest(found)
            manifest.to_json(found)
    except CompileError as error:
        return refused(error, None)
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
        build_library(source, CompileOptions(target=target, scheduler="heuristic"), Observer(stop_after="ptx"))
    except CompileError as error:
        return refused(error, source)
    except PipelineStopped:
        pass
    return True


def _solve_problem(text: str) -> bool:
    try:
        problems, _ = read_problems(text, "mutant.json")
        for problem in problems:
            solve_problem(problem, effort=0.01, scheduler=("heuristic", "exact")[len(text) % 2 == 0])
    except CompileError as error:
        return refused(error, None)
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


def _price_target(text: str) -> bool:
    """Each of its instructions for small and large statements: what a kernel may ask."""
    try:
        machine = target.parse_target(text, "mutant.toml")
    except CompileError as error:
        return refused(error, None)
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
    "manifest-trees": Subject(_manifests, json_mutant, _read_manifest),
    "cubins": Subject(_cubins, _mutated_cubin, _read_cubin),
    "tile-trees": Subject(_tile_texts, _of_structure(read_kernel, print_kernel), _build_tile),
    "ptx-trees": Subject(_ptx_texts, _of_structure(parse_module, print_module), _read_ptx),
    "problem-trees": Subject(lambda: [*_texts("problem"), _EXCHANGED], json_mutant, _solve_problem),
    "trace-trees": Subject(lambda: _texts("schedule"), json_mutant, _read_trace),
    "target-trees": Subject(_target_texts, toml_mutant, _price_target),
    **FILES,
}
