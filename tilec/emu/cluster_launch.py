"""`clusterlaunchcontrol`: a block asks for the work of one that has not started.

Blocks here are never waiting when another one runs out of work, so that every request is refused, as a machine may
refuse any of them; the answer arrives like a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.bulk import in_block, issue_load
from tilec.emu.decode import Form, semantics
from tilec.emu.fault import Fault
from tilec.emu.mbarrier import shared_address
from tilec.emu.numbers import Array
from tilec.ptx.module import Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

_ANSWER_BYTES = 16
_CANCELLED = np.uint64(1)


@semantics("clusterlaunchcontrol.try_cancel", accepts="async shared::cta mbarrier::complete_tx::bytes b128")
def _try_cancel(form: Form) -> None:
    answer, barrier = form.address(form.operands[0]), form.address(form.operands[1])
    to_all = form.has("multicast::cluster::all")
    line = form.step.instruction.line

    def refusal() -> Array:
        return np.zeros((1, _ANSWER_BYTES), np.uint8)

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads].tolist()
        places, bars = answer(cta, threads).tolist(), barrier(cta, threads).tolist()
        for thread, place, bar in zip(members, places, bars, strict=True):
            address = shared_address(place)
            if address % _ANSWER_BYTES:
                raise Fault("misaligned", f"an answer at shared address {address:#x}, which is not a multiple of 16")
            for target in cta.cluster.ctas if to_all else [cta]:
                target.shared.offset(address, _ANSWER_BYTES, "the answer")
                rows = np.array([address // 16])
                bar_at = in_block(target, cta.peer(shared_address(bar))[1])
                issue_load(cta, thread, target, address, rows, bar_at, line, refusal, -1)

    form.step.run = run


@semantics("clusterlaunchcontrol.query_cancel", accepts="b128")
def _query(form: Form) -> None:
    asked = form.first("is_canceled", "get_first_ctaid", *(f"get_first_ctaid::{axis}" for axis in "xyz"))
    destination, source = form.operands
    if not asked or not isinstance(source, Vector) or len(source.items) != 2:
        raise form.unsupported("this question")
    low = form.read(source.items[0], "u64")
    form.understood.update(("v4", "b32", "pred"))
    items = destination.items if isinstance(destination, Vector) else (destination,)
    targets = [form.write(item, "pred" if asked == "is_canceled" else "b32") for item in items]

    def run(cta: Cta, threads: Threads) -> None:
        cancelled = (cta.views[low][threads] & _CANCELLED) != 0
        if asked != "is_canceled" and not cancelled.all():
            raise Fault("bad-descriptor", "the first block is asked for of an answer that refuses")
        for target in targets:
            cta.views[target][threads] = cancelled

    form.step.run = run
