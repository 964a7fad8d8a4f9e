"""Programs with one piece of their synchronisation missing, or waiting for less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import warp

REMOVED = (
    warp.BarSync,
    warp.WarpgroupSync,
    warp.CpAsyncWait,
    warp.WgmmaWait,
    warp.BulkWait,
    warp.ProxyFence,
    warp.TensorFence,
    warp.TensorWait,
    warp.RingWait,
    warp.RingAcquire,
    warp.RingFill,
    warp.RingRelease,
)
COUNTED = (warp.CpAsyncWait, warp.WgmmaWait, warp.BulkWait)


def mutants(program: warp.Program) -> Iterator[tuple[str, warp.Program]]:
    """Every program that lacks one synchronising operation or has one wait that leaves one more group in flight."""
    for index, role in enumerate(program.roles):
        for what, body in _changed(role.body, role.name):
            roles = (*program.roles[:index], replace(role, body=body), *program.roles[index + 1 :])
            yield what, replace(program, roles=roles)


def _ends_a_piece(op: warp.Operation, last: bool) -> bool:
    """Of a pipeline whose trip count is not known: its steady state, or an epilogue's guard."""
    return op.part == "steady" if isinstance(op, warp.Loop) else last and isinstance(op, warp.Advance)


def _changed(body: tuple[warp.Operation, ...], place: str) -> Iterator[tuple[str, tuple[warp.Operation, ...]]]:
    for i, op in enumerate(body):
        here = f"{place}.{i}"
        before, after = body[:i], body[i + 1 :]
        if isinstance(op, warp.WgmmaWait) and i and _ends_a_piece(body[i - 1], last=not after):
            continue  # there may be nothing in flight; it tells the assembler so
        if isinstance(op, REMOVED):
            yield f"{here} without {type(op).__name__}, line {op.span.line}", (*before, *after)
        if isinstance(op, warp.RingFill | warp.RingRelease) and op.by_tensor_cores:
            early = replace(op, by_tensor_cores=False)
            yield f"{here} {type(op).__name__} by the thread, line {op.span.line}", (*before, early, *after)
        if isinstance(op, COUNTED):
            more = replace(op, pending=op.pending + 1)
            yield f"{here} {type(op).__name__} of {more.pending}, line {op.span.line}", (*before, more, *after)
        for n, phase in enumerate(op.phases if isinstance(op, warp.Loop) else ()):
            for what, inner in _changed(phase.body, f"{here}.phase {n}"):
                phases = (*op.phases[:n], replace(phase, body=inner), *op.phases[n + 1 :])
                yield what, (*before, replace(op, phases=phases), *after)
        if isinstance(op, warp.Loop | warp.Pipeline):
            for what, inner in _changed(op.body, here):
                yield what, (*before, replace(op, body=inner), *after)
        if isinstance(op, warp.Branch):
            for what, inner in _changed(op.then, f"{here}.then"):
                yield what, (*before, replace(op, then=inner), *after)
            for what, inner in _changed(op.orelse, f"{here}.else"):
                yield what, (*before, replace(op, orelse=inner), *after)
