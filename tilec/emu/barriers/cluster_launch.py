"""`clusterlaunchcontrol`: a block takes over the work of a cluster that has not started.

A request cancels the next cluster of the grid, which then never runs: the requesting block does its work. The request
is refused where none is left, and at times by an adversary, since a machine may have begun the rest elsewhere. The
answer arrives like a copy. (PTX ISA, clusterlaunchcontrol.try_cancel: no two answers name one cluster; and a block that
has observed a refusal must not ask again.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import to_shared_address
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import build_thread_step
from tilec.emu.numbers import Array
from tilec.emu.races.answers import LaunchControlAnswers
from tilec.emu.tma.bulk import issue_load
from tilec.ptx.module import Vector

if TYPE_CHECKING:
    from tilec.emu.machine.cluster import LaunchState
    from tilec.emu.machine.machine import Cta, Threads

_ANSWER_BYTES = 16
_CANCELLED_BIT = 1
_REFUSAL_PERIOD = 4
"""An adversary refuses one request in this many."""
_HIGH_SHIFT = np.uint64(32)


@register_decoder("clusterlaunchcontrol.try_cancel", accepts="async shared::cta mbarrier::complete_tx::bytes b128")
def _decode_try_cancel(form: Form) -> None:
    """Decode `clusterlaunchcontrol.try_cancel` into a step by which each thread requests the next cluster; a copy
    answers."""
    answer, barrier = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    to_all = form.has("multicast::cluster::all")

    def request_cancel(cta: Cta, thread: int, place: int, bar: int) -> None:
        """Request the next cluster, and start the copy of the answer to this block or all; fault after an observed
        refusal."""
        if cta.knows_of_refusal:
            raise Fault("bad-descriptor", "try_cancel after the block has observed that an earlier request was refused")
        address = to_shared_address(place)
        if address % _ANSWER_BYTES:
            raise Fault("misaligned", f"an answer at shared address {address:#x}, which is not a multiple of 16")
        answer_bytes = _cancel_next_cluster(cta.launch)
        for target in cta.cluster.ctas if to_all else [cta]:
            target.shared.find_offset(address, _ANSWER_BYTES, "the answer")
            if target.shared.answers is None:
                target.shared.answers = LaunchControlAnswers()
            target.shared.answers.expect_answer(address // 16, address, target.shared.race_detector)
            rows = np.array([address // 16])
            local = cta.find_peer(to_shared_address(bar))[1]
            issue_load(form, cta, thread, target, address, rows, target, local, lambda: answer_bytes)

    form.step.run = build_thread_step(request_cancel, answer, barrier)


def _cancel_next_cluster(launch: LaunchState) -> Array:
    """Cancel the next cluster and return the 16 bytes of the answer: a flag and its first block's position, or zeros.
    Zeros are a refusal: no cluster is left, every cluster begins by itself, or an adversary refuses."""
    words = np.zeros(4, np.uint32)
    is_refused = launch.random is not None and launch.random.randrange(_REFUSAL_PERIOD) == 0
    if launch.waiting and not launch.all_begin and not is_refused:
        _, positions = launch.waiting.take()
        launch.blocks_done += len(positions)
        words[:] = (_CANCELLED_BIT, *positions[0])
    return words.view(np.uint8).reshape(1, _ANSWER_BYTES)


@register_decoder("clusterlaunchcontrol.query_cancel", accepts="b128")
def _decode_query_cancel(form: Form) -> None:
    """Decode `clusterlaunchcontrol.query_cancel` into a step that reads whether an answer cancelled, or its block
    position. Other forms are unsupported."""
    question = form.find_modifier("is_canceled", "get_first_ctaid", *(f"get_first_ctaid::{axis}" for axis in "xyz"))
    destination, source = form.operands
    if not question or not isinstance(source, Vector) or len(source.items) != 2:
        raise form.unsupported("this form")
    low, high = (form.read(item, "u64") for item in source.items)
    form.understood.update(("v4", "b32", "pred"))
    items = destination.items if isinstance(destination, Vector) else (destination,)
    targets = [form.write(item, "pred" if question == "is_canceled" else "b32") for item in items]

    @form.set_run
    def run_query_cancel(cta: Cta, threads: Threads) -> None:
        """Write the flag or the block position of each thread's answer; a position of an answer that refuses is a
        fault. A refusal that `is_canceled` reads is noted for the block."""
        first, second = cta.views[low][threads], cta.views[high][threads]
        cancelled = (first & np.uint64(_CANCELLED_BIT)) != 0
        if question == "is_canceled":
            cta.knows_of_refusal |= not cancelled.all()
            cta.views[targets[0]][threads] = cancelled
            return
        if not cancelled.all():
            raise Fault("bad-descriptor", "get_first_ctaid of an answer that refuses the request")
        position = [first >> _HIGH_SHIFT, second & np.uint64(0xFFFFFFFF), second >> _HIGH_SHIFT, np.zeros_like(first)]
        chosen = position if question == "get_first_ctaid" else [position["xyz".index(question[-1])]]
        for target, value in zip(targets, chosen, strict=True):
            cta.views[target][threads] = value.astype(np.uint32)
