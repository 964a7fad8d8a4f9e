"""What a role hands on at a barrier that the kernel itself arrives at, and what it takes over behind a wait.

A thread that arrives says that what it has done so far is complete. What it has begun itself it waits for, but for the
products of which the kernel says when they are (T.wgmma_gemm). Of these, whoever releases a stage of a pipeline waits
for those that read that stage: the kernel has said that it is done with it. What a thread has written and the
asynchronous proxy reads in some role, it fences; and where some threads arrive for others, these have come so far too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from tilec.ir import warp
from tilec.ir.rewrite import rewrite
from tilec.ir.tile import Expr
from tilec.passes.lower.numbered import Node, flat
from tilec.passes.lower.scoreboard import BY_TMA, Key, Record, State
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Handover:
    """By place in the role: products that the kernel waits for, with the versions that they read as the kernel names
    them, and the barriers that a copy, or the tensor cores when
    they are done with a product, signal. `by_async` are the tiles that TMA or the tensor cores reach, in any role, and
    `answers` those that requests for other blocks' work do; `fragments` are nobody else's."""

    waited_later: Mapping[int, frozenset[Expr]]
    signals: dict[int, tuple[str, ...]]
    by_async: frozenset[str]
    answers: frozenset[str]
    fragments: frozenset[str]

    def demands(
        self, state: State, together: bool, released: Expr | None
    ) -> Iterator[tuple[Record, Literal["wait", "fence", "barrier"]]]:
        """What must stand in front of an arrival, one after the other: each is looked for once those before it are
        there. `together`: some threads arrive for all. `released` is the stage that they give back, if any."""
        for key, record in _records(state):
            if key[0] in self.fragments:
                continue
            later = self.waited_later.get(record.place)
            if record.group and (later is None or released in later):
                yield record, "wait"
            if key[0] in self.by_async and self.is_to_be_fenced(record):
                yield record, "fence"
            if together and record.met != "role" and record.touch.atomic != BY_TMA:
                yield record, "barrier"

    def is_to_be_fenced(self, record: Record) -> bool:
        """Whether the asynchronous proxy does not know of the access: threads have written, or have read an answer that
        the next one comes over (PTX ISA, clusterlaunchcontrol.try_cancel, example)."""
        matters = record.touch.write or record.touch.buffer in self.answers
        return matters and record.touch.proxy == "generic" and not record.fenced

    def take_over(self, state: State, barrier: str) -> None:
        """Behind the wait all threads see what TMA has copied that signals this barrier, and all that the tensor cores
        have done."""
        for kept in state.records.values():
            kept[:] = [r for r in kept if barrier not in self.signals.get(r.place, ())]


def forget_copies(state: State) -> None:
    """Copies by cp.async that arrive by themselves: whoever waits for them has waited for the barrier."""
    for kept in state.records.values():
        kept[:] = [r for r in kept if not (r.queue == "cp_async" and r.group and r.touch.write)]


def _records(state: State) -> Iterator[tuple[Key, Record]]:
    for key, kept in state.records.items():
        for record in kept:
            yield key, record


def prepared(program: warp.Program, by_async: frozenset[str]) -> warp.Program:
    """Arrivals for copies by cp.async, where a role has such copies: else threads have stored what they hand on, and
    arrive as ever. Threads cannot fence copies that arrive by themselves: who waits for them does."""
    roles = tuple(replace(role, body=_by_threads(role.body)) for role in program.roles)
    every = (op for role in roles for op in warp.walk(role.body))
    copied = frozenset(op.barrier.name for op in every if isinstance(op, warp.CopiesArrive))
    if copied and by_async:
        roles = tuple(replace(role, body=_fenced(role.body, copied)) for role in roles)
    return replace(program, roles=roles)


def _by_threads(body: tuple[warp.Operation, ...]) -> tuple[warp.Operation, ...]:
    if any(isinstance(op, warp.CpAsync) for op in warp.walk(body)):
        return body

    def arrive(op: warp.Operation) -> tuple[warp.Operation, ...]:
        if not isinstance(op, warp.CopiesArrive):
            return (op,)
        return (warp.Arrive(op.barrier, op.condition, cursors=op.cursors, moment=op.moment, span=op.span),)

    return rewrite(body, arrive)


def _fenced(body: tuple[warp.Operation, ...], copied: frozenset[str]) -> tuple[warp.Operation, ...]:
    def fence(op: warp.Operation) -> tuple[warp.Operation, ...]:
        waits = isinstance(op, warp.BarrierWait) and op.barrier.name in copied
        return (op, warp.ProxyFence(span=op.span)) if waits else (op,)

    return rewrite(body, fence)


def _versions_read(product: warp.Wgmma) -> frozenset[Expr]:
    """By which expressions the kernel names the versions of its factors."""
    named = (cursor.index for cursor in product.cursors if cursor.index is not None)
    return frozenset((*named, *product.a.start, *product.b.start))


def handover_of(
    nodes: tuple[Node, ...], by_async: frozenset[str], answers: frozenset[str], fragments: frozenset[str]
) -> Handover:
    """What is known of the operations of a role before anything is placed: see `Handover`."""
    every = [(node.place, node.op) for node in flat(nodes)] if by_async else []
    later = {p: _versions_read(op) for p, op in every if isinstance(op, warp.Wgmma) and op.waits_later}
    signals: dict[int, tuple[str, ...]] = {}
    signals |= {
        p: (op.barrier.name,) for p, op in every if isinstance(op, warp.TmaLoad | warp.TryCancel) and op.barrier
    }
    committed = tuple(dict.fromkeys(op.barrier.name for _, op in every if isinstance(op, warp.TensorArrive)))
    signals |= {p: committed for p, op in every if isinstance(op, warp.TensorMma | warp.TensorCopy)}
    return Handover(later, signals, by_async, answers, frozenset(fragments))
