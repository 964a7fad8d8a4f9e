"""What a warp program speaks of and does not have is found out before waits are placed in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver import engine
from tilec.driver.observer import Observer
from tilec.ir import tile, warp
from tilec.ir.tile import Var, int32_const
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_verify.declarations import declaration_violations
from tilec.support import files
from tilec.support.options import CompileOptions

TESTS = Path(__file__).parents[1]


def expanded(path: Path, target: str) -> Program:
    """The program of a kernel before any wait is placed in it."""
    source = files.read_source(str(path))
    file = engine.read_file(source, CompileOptions(target=target), Observer(), is_single=True)
    return engine.advance_kernels(file, Observer(), last="expand-schedules").kernels[0].program


@pytest.fixture(scope="module")
def program() -> Program:
    return expanded(TESTS.parent / "samples" / "gemm.tl", "sm_90a")


def every(program: Program, change: Callable[[Operation], Operation | None]) -> Program:
    """The program with other operations; None leaves one out."""

    def body(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        made = []
        for op in operations:
            match op:
                case warp.Loop() | warp.Forever() | warp.Pipeline():
                    op = replace(op, body=body(op.body))
                case warp.Branch():
                    op = replace(op, then=body(op.then), orelse=body(op.orelse))
                case _:
                    pass
            if (new := change(op)) is not None:
                made.append(new)
        return tuple(made)

    return replace(program, roles=tuple(replace(role, body=body(role.body)) for role in program.roles))


def said(program: Program) -> str:
    return "\n".join(declaration_violations(program))


def test_what_is_expanded_keeps_the_promises(program: Program) -> None:
    assert len(program.roles) > 1 and program.rings
    assert said(program) == ""


def _without(kind: type[Operation]) -> Callable[[Program], Program]:
    return lambda program: every(program, lambda op: None if isinstance(op, kind) else op)


def _one_cursor(program: Program) -> Program:
    """Whoever waits moves where the one stands who fills."""
    filling = {op.cursor.ring: op.cursor for op in program.operations() if isinstance(op, warp.RingAcquire)}
    return every(
        program, lambda op: replace(op, cursor=filling[op.cursor.ring]) if isinstance(op, warp.RingWait) else op
    )


def _of_no_ring(op: Operation) -> Operation:
    return replace(op, cursor=replace(op.cursor, ring="none")) if isinstance(op, warp.Advance) else op


def _backwards(op: Operation) -> Operation:
    return replace(op, step=0) if isinstance(op, warp.Loop) else op


def _elsewhere(op: Operation) -> Operation:
    return replace(op, start=(Var("elsewhere"), int32_const(0))) if isinstance(op, warp.TmaLoad) else op


def _of_a_table(op: Operation) -> Operation:
    if not isinstance(op, warp.TmaLoad):
        return op
    return replace(op, map=replace(op.map, tensor=replace(op.map.tensor, table_rank=1)))


FAULTS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "a role moved": (
        lambda p: replace(p, roles=(p.roles[0], replace(p.roles[1], first_warp=p.roles[1].first_warp + 1))),
        "the one before ends at",
    ),
    "no versions": (lambda p: replace(p, rings=(replace(p.rings[0], depth=0), *p.rings[1:])), "has 0 versions"),
    "fewer versions than the tile": (
        lambda p: replace(p, rings=tuple(replace(r, depth=r.depth + 1) for r in p.rings)),
        "versions, its ring",
    ),
    "a ring of nothing": (
        lambda p: replace(p, rings=(replace(p.rings[0], buffers=("none",)), *p.rings[1:])),
        "which the program does not declare",
    ),
    "a tile in two rings": (
        lambda p: replace(p, rings=(*p.rings, replace(p.rings[0], name="again"))),
        "is in two rings",
    ),
    "a ring twice": (lambda p: replace(p, rings=(*p.rings, p.rings[0])), "two rings are called"),
    "nobody waits": (_without(warp.RingWait), "committed without RingWait"),
    "nobody releases": (_without(warp.RingRelease), "committed without RingRelease"),
    "nobody acquires": (_without(warp.RingAcquire), "committed without RingAcquire"),
    "a cursor of two roles": (_one_cursor, "move one cursor"),
    "a cursor of no ring": (lambda p: every(p, _of_no_ring), "which is not a ring"),
    "a tile that is not there": (lambda p: replace(p, fragments=()), "which the program does not declare"),
    "a tensor map that is not there": (lambda p: replace(p, maps=()), "which the program does not declare"),
    "a tensor map of a table": (lambda p: every(p, _of_a_table), "which is a table of addresses"),
    "a loop that stands": (lambda p: every(p, _backwards), "has step 0"),
    "a variable that is not there": (lambda p: every(p, _elsewhere), "uses elsewhere, which is not declared there"),
    "a block without its index": (lambda p: replace(p, block_vars=()), "which is not declared there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, program: Program) -> None:
    planted, expected = FAULTS[fault]
    assert expected in said(planted(program))


@pytest.mark.parametrize("twice", ["x", "i", "bx"])
def test_a_name_that_a_nest_declares_stands_for_one_value(twice: str) -> None:
    program = expanded(TESTS / "kernels" / "binds.tl", "sm_80")
    assert said(program) == ""

    def changed(op: Operation) -> Operation:
        if not isinstance(op, warp.Elementwise):
            return op
        first = op.nest.vars[0].name
        name = {"i": first, "bx": program.block_vars[0].name}.get(twice, twice)
        binds = tuple(tile.Bind(Var(name), int32_const(n)) for n in range(2))
        return replace(op, nest=replace(op.nest, body=(*binds, *op.nest.body)))

    assert "has another value there" in said(every(program, changed))


def test_pipelines() -> None:
    """Of a trip count that is known only at run time."""
    dynamic = expanded(TESTS / "kernels" / "dynamic_gemm_depth.tl", "sm_80")
    assert any(isinstance(op, warp.Pipeline) for op in dynamic.operations())
    assert said(dynamic) == ""
    steady = every(dynamic, lambda op: None if isinstance(op, warp.Loop) and op.part == "steady" else op)
    assert "has 0 steady states" in said(steady)
    guarded = every(dynamic, lambda op: replace(op, least=99) if isinstance(op, warp.Branch) else op)
    assert "has a guard for 99 iterations" in said(guarded)
