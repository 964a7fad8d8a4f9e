"""The waits and fences of tensor memory: placed by one pass, missed by the verifier where they are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver import engine
from tilec.driver.observer import Observer
from tilec.ir import warp
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_verify.verify import program_violations
from tilec.support import files
from tilec.support.options import CompileOptions

TESTS = Path(__file__).parents[1]
KERNELS = {
    "the compiler's roles": (TESTS.parent / "samples" / "gemm" / "gemm_sm100.tl", None),
    "the kernel's roles": (TESTS / "kernels" / "tensor_roles.tl", "three_roles"),
}


def synchronised(whose: str) -> Program:
    path, entry = KERNELS[whose]
    options = CompileOptions(target="sm_100a", entry=entry)
    file = engine.read_file(files.read_source(str(path)), options, Observer(), is_single=True)
    return engine.advance_kernels(file, Observer(), last="insert-sync").kernels[0].program


def without(program: Program, is_dropped: Callable[[Operation], bool]) -> Program:
    def body(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        made = []
        for op in operations:
            match op:
                case warp.Loop() | warp.Forever() | warp.Pipeline():
                    made.append(replace(op, body=body(op.body)))
                case warp.Branch():
                    made.append(replace(op, then=body(op.then), orelse=body(op.orelse)))
                case _ if not is_dropped(op):
                    made.append(op)
                case _:
                    pass
        return tuple(made)

    common = None if program.common is None else replace(program.common, body=body(program.common.body))
    return replace(program, roles=tuple(replace(r, body=body(r.body)) for r in program.roles), common=common)


def _is_fence(what: str) -> Callable[[Operation], bool]:
    return lambda op: isinstance(op, warp.TensorFence) and op.what == what


def _is_wait(op: Operation) -> bool:
    return isinstance(op, warp.TensorWait)


@pytest.mark.parametrize("whose", KERNELS)
def test_what_is_missing_is_found_out(whose: str) -> None:
    program = synchronised(whose)
    assert list(program_violations(program)) == []
    for is_dropped, expected in (
        (_is_fence("before"), "has no fence of tensor memory behind TensorLoad"),
        (_is_fence("after"), "has no fence of tensor memory after"),
        (_is_wait, "TensorLoad"),
    ):
        assert any(map(is_dropped, program.operations()))
        assert expected in "\n".join(program_violations(without(program, is_dropped)))
