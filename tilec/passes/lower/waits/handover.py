"""Handover between explicit roles: what must be complete before a role arrives at a barrier, and visible after a wait.

An arrival says that all earlier work of the thread is complete. The thread waits for what it has begun itself, but for
products whose wait the kernel writes (T.wgmma_gemm). Whoever releases a stage waits for the products that read that
stage: the kernel has said that it is done with it. Writes by threads that the asynchronous proxy reads in some role are
fenced. Where some threads arrive for others, a barrier of the role comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from tilec.ir import warp
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import Expr
from tilec.passes.lower.waits.numbered import Node, walk_nodes
from tilec.passes.lower.waits.scoreboard import TMA_ORDER, AccessRecord, RoleState
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Handover:
    """Facts about a role's operations, by place. `waited_later`: products that the kernel waits for, with the index
    expressions of the versions that they read. `signals`: the barriers that a copy or a completed product signals.
    `by_async` are the tiles that TMA or tensor cores reach in any role, `answers` those of cluster-launch-control
    answers, `fragments` the registers of the role."""

    waited_later: Mapping[int, frozenset[Expr]]
    signals: dict[int, tuple[str, ...]]
    by_async: frozenset[str]
    answers: frozenset[str]
    fragments: frozenset[str]

    def find_demands(
        self, state: RoleState, together: bool, released: Expr | None
    ) -> Iterator[tuple[AccessRecord, Literal["wait", "fence", "barrier"]]]:
        """Yield, for each recorded access that needs it, the wait, fence or barrier that must precede an arrival. Each
        is looked for once those before it are placed. `together`: some threads arrive for all. `released` is the stage
        that they release, if any."""
        for key, record in ((key, record) for key, kept in state.records.items() for record in kept):
            if key[0] in self.fragments:
                continue
            later = self.waited_later.get(record.place)
            if record.group and (later is None or released in later):
                yield record, "wait"
            if key[0] in self.by_async and self.needs_fence(record):
                yield record, "fence"
            if together and record.met != "role" and record.touch.atomic != TMA_ORDER:
                yield record, "barrier"

    def needs_fence(self, record: AccessRecord) -> bool:
        """Return True if threads wrote, or read an answer, and no proxy fence has followed the recorded access."""
        matters = record.touch.write or record.touch.buffer in self.answers
        return matters and record.touch.proxy == "generic" and not record.fenced

    def forget_signalled(self, state: RoleState, barrier: str) -> None:
        """Drop the records that a wait for this barrier completes: TMA copies that signal it, and tensor-core work."""
        for kept in state.records.values():
            kept[:] = [r for r in kept if barrier not in self.signals.get(r.place, ())]


def forget_copies(state: RoleState) -> None:
    """Drop the records of cp.async writes still in flight, whose arrival at a barrier signals them."""
    for kept in state.records.values():
        kept[:] = [r for r in kept if not (r.queue == "cp_async" and r.group and r.touch.write)]


def prepare_arrivals(program: warp.Program, by_async: frozenset[str]) -> warp.Program:
    """Replace arrivals of cp.async copies in roles without such copies by threads', and fence waits for other arrivals.
    Threads cannot fence copies that arrive by themselves, nor another block's tiles that they store to, so whoever
    waits for them does."""
    program = program.map_roles(lambda role: replace(role, body=_arrive_by_threads(role.body)))
    every = tuple(program.operations())
    waited = {op.barrier.name for op in every if isinstance(op, warp.CopiesArrive)}
    if any(isinstance(op, warp.Elementwise) and op.block is not None for op in every):
        waited |= {op.barrier.name for op in every if isinstance(op, warp.Arrive) and op.block is not None}
    if not waited or not by_async:
        return program
    return program.map_roles(lambda role: replace(role, body=_fence_waits(role.body, frozenset(waited))))


def _arrive_by_threads(body: tuple[warp.Operation, ...]) -> tuple[warp.Operation, ...]:
    """Return a role's operations with arrivals of cp.async copies made by threads, unless it has such copies."""
    if any(_copies_by_cp_async(op) for op in warp.walk_operations(body)):
        return body

    def replace_arrival(op: warp.Operation) -> warp.Operation:
        """Return an arrival of cp.async copies as one of threads; any other operation as it is."""
        if not isinstance(op, warp.CopiesArrive):
            return op
        return warp.Arrive(op.barrier, op.condition, cursors=op.cursors, moment=op.moment, span=op.span)

    return rewrite_statements(body, replace_arrival)


def _copies_by_cp_async(op: warp.Operation) -> bool:
    """Return whether an operation is a copy by cp.async, of a box or by single threads."""
    return isinstance(op, warp.CpAsync) or (isinstance(op, warp.Elementwise) and op.copy_bytes > 0)


def _fence_waits(body: tuple[warp.Operation, ...], barriers: frozenset[str]) -> tuple[warp.Operation, ...]:
    """Add a proxy fence behind each wait for one of the barriers."""

    def add_fence(op: warp.Operation) -> tuple[warp.Operation, ...]:
        """Return the operation, with a proxy fence behind a wait for one of the barriers."""
        waits = isinstance(op, warp.BarrierWait) and op.barrier.name in barriers
        return (op, warp.ProxyFence(span=op.span)) if waits else (op,)

    return rewrite_statements(body, add_fence)


def _find_read_versions(product: warp.Wgmma) -> frozenset[Expr]:
    """Return the index expressions of the versions and region starts of a wgmma product's factors."""
    named = (cursor.index for cursor in product.cursors if cursor.index is not None)
    return frozenset((*named, *product.a.start, *product.b.start))


def build_handover(
    nodes: tuple[Node, ...], by_async: frozenset[str], answers: frozenset[str], fragments: frozenset[str]
) -> Handover:
    """Return the facts about a role's operations that arrivals depend on, collected before anything is placed."""
    every = [(node.place, node.op) for node in walk_nodes(nodes)] if by_async else []
    later = {p: _find_read_versions(op) for p, op in every if isinstance(op, warp.Wgmma) and op.waits_later}
    signals: dict[int, tuple[str, ...]] = {
        p: (op.barrier.name,) for p, op in every if isinstance(op, warp.TmaLoad | warp.TryCancel) and op.barrier
    }
    committed = tuple(dict.fromkeys(op.barrier.name for _, op in every if isinstance(op, warp.TensorArrive)))
    signals |= {p: committed for p, op in every if isinstance(op, warp.TensorMma | warp.TensorCopy)}
    return Handover(later, signals, by_async, answers, frozenset(fragments))
