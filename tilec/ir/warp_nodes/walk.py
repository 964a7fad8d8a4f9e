"""Traversal of warp operations, and their static properties."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.parts import statement_lists
from tilec.ir.warp_nodes import operations, waits
from tilec.ir.warp_nodes.memory import Barrier
from tilec.ir.warp_nodes.operations import Branch, CpAsync, Let, Loop, Operation, Wgmma


def static_trip_count(loop: Loop) -> int | None:
    """Return the loop's trip count; None where a bound is no constant, or each iteration computes the next."""
    if isinstance(loop.start, tile.Const) and isinstance(loop.stop, tile.Const) and loop.following is None:
        return len(range(int(loop.start.value), int(loop.stop.value), loop.step))
    return None


def final_guard(loop: Loop) -> Branch | None:
    """Return the branch around a loop's body, `Let`s before it aside, whose condition, once false, stays false; else
    None. The condition compares the loop's variable with an upper bound that does not change with it.
    """
    if not loop.body:
        return None
    *before, guard = loop.body
    if not isinstance(guard, Branch) or guard.orelse or guard.part or not all(isinstance(op, Let) for op in before):
        return None
    condition = guard.condition
    for let in reversed(before):
        assert isinstance(let, Let)
        condition = tile.substitute_variables(condition, {let.var: let.value})
    if not isinstance(condition, tile.Binary) or condition.op not in ("lt", "le"):
        return None
    if any(isinstance(e, tile.Load) for e in tile.walk_expr(condition)):
        return None
    terms = dict(affine_form(condition.a).terms)
    still = [condition.b, *(atom for atom in terms if atom != loop.var)]
    rises = terms.get(loop.var, 0) > 0 and not any(loop.var in tile.walk_expr(e) for e in still)
    return guard if rises else None


def scalar_reads(op: Operation) -> tuple[str, ...]:
    """Return the names of the buffers whose elements each thread reads for an operation's scalars or indices; none for
    nests.
    """
    exprs: tuple[tile.Expr, ...]
    match op:
        case Let(value=value):
            exprs = (value,)
        case Loop(start=start, stop=stop):
            exprs = (start, stop)
        case Branch(condition=condition):
            exprs = (condition,)
        case operations.Mma(a=a, b=b) | Wgmma(a=a, b=b):
            exprs = (*a.start, *b.start)
        case operations.LoadMatrix(source=source):
            exprs = source.start
        case CpAsync(source=tile.Region(start=starts), destination=destination):
            exprs = (*starts, *destination.start)
        case operations.TmaStore(start=starts, four=four):
            exprs = starts if four is None else (*starts, *four.rows, four.at)
        case CpAsync(source=operations.Gather(indices=indices, condition=condition)):
            exprs = (*indices, condition)
        case operations.TmaLoad(start=starts, column=column) if column is not None:
            exprs = (*starts, column)
        case operations.TmaLoad(start=starts, tap=tap, four=four):
            exprs = (*starts, *tap) if four is None else (*starts, *four.rows, four.at)
        case operations.TensorMma(clear=clear, scales=scales):
            exprs = (clear,) if scales is None else (clear, scales.start)
        case operations.TensorLoad(column=column) | operations.TensorStore(column=column):
            exprs = (column,)
        case waits.TensorArrive(barrier=barrier) | waits.TryCancel(barrier=Barrier() as barrier):
            exprs = (barrier.index,)
        case waits.BarrierWait(barrier=barrier, parity=parity, unless=unless):
            exprs = (barrier.index, parity) if unless is None else (barrier.index, parity, unless)
        case waits.Arrive(barrier=barrier, condition=asked, block=block):
            exprs = tuple(e for e in (barrier.index, asked, block) if e is not None)
        case waits.CopiesArrive(barrier=barrier, condition=asked):
            exprs = (barrier.index,) if asked is None else (barrier.index, asked)
        case _:
            return ()
    return tuple(dict.fromkeys(e.buffer.name for x in exprs for e in tile.walk_expr(x) if isinstance(e, tile.Load)))


def tiles_read_by_own_rows(op: Wgmma) -> tuple[str, ...]:
    """Return the name of a wgmma's A if each warpgroup reads only its own rows of that shared tile; else nothing."""
    shared_tile = op.a.buffer
    is_all_rows = len(shared_tile.shape) == 2 and op.a.extent[0] == shared_tile.shape[0]
    return (shared_tile.name,) if is_all_rows and not op.transpose_a and shared_tile != op.b.buffer else ()


def nested_bodies(op: Operation) -> tuple[tuple[Operation, ...], ...]:
    """Return the operation lists directly inside an operation, in execution order; empty if it has none."""
    return statement_lists(op)


def walk_operations(body: tuple[Operation, ...]) -> Iterator[Operation]:
    """Yield every operation, in program order, parents first."""
    for op in body:
        yield op
        for inner in nested_bodies(op):
            yield from walk_operations(inner)
