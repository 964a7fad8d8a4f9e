"""Decoders of warp-wide operations: shuffles, votes, matches, reductions and elections."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import REDUCTIONS, Array
from tilec.emu.scalar.semantics import read_predicate, select_float_extreme
from tilec.ptx.module import Imm, Operand, Pair

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

_FULL = 0xFFFFFFFF


def gather_masked_lanes(form: Form, operand: Operand) -> int:
    """Return the slot of a lane mask, and make the step wait for the lanes that it names."""
    form.step.gather = 32
    form.step.exchanged_slots = ((), ())
    slot = form.read(operand, "u32")
    if operand not in (Imm(-1), Imm(_FULL)):
        form.step.mask = slot
    return slot


@register_decoder("shfl.sync")
def _decode_shfl(form: Form) -> None:
    """Decode `shfl.sync` into a step that reads each lane's partner: by index, up, down or butterfly."""
    mode = form.find_modifier("idx", "up", "down", "bfly")
    result_slot, valid_slot = form.write_pair(form.operands[0], "b32")
    source_slot, by_slot, clamp_slot = (form.read(operand, "u32") for operand in form.operands[1:4])
    gather_masked_lanes(form, form.operands[4])

    @form.set_run
    def run_shfl(cta: Cta, threads: Threads) -> None:
        """Write the value of each lane's partner, its own where there is none in its segment, and whether there is
        one."""
        members = cta.thread_ids[threads]
        lane = members & 31
        by = cta.views[by_slot][threads].astype(np.int64) & 31
        packed = cta.views[clamp_slot][threads].astype(np.int64)
        segment, clamp = (packed >> 8) & 31, packed & 31
        top = (lane & segment) | (clamp & ~segment)
        bottom = lane & segment
        if mode == "idx":
            partner = bottom | (by & ~segment & 31)
        elif mode == "bfly":
            partner = lane ^ by
        else:
            partner = lane + (by if mode == "down" else -by)
        valid = partner >= top if mode == "up" else partner <= top
        partner = np.where(valid, partner, lane)
        values = cta.views[source_slot]
        chosen = np.minimum(members - lane + partner, cta.thread_count - 1)
        cta.views[result_slot][threads] = values[chosen]
        if valid_slot >= 0:
            cta.views[valid_slot][threads] = valid


def _number_lane_groups(members: Array, masks: Array | None) -> Array:
    """Return a number for each thread's lane group: the lanes of one warp with the same mask, or all lanes without
    masks."""
    keys = (members >> 5) << 32
    if masks is not None:
        keys = keys | masks
    positions: Array = np.unique(keys, return_inverse=True)[1]
    return positions


def _ballot_lanes(members: Array, lane_groups: Array, values: Array) -> Array:
    """Return, for each thread, the mask of lanes of its lane group whose value is true."""
    masks = np.zeros(int(lane_groups.max()) + 1, np.int64)
    np.bitwise_or.at(masks, lane_groups, np.where(values, np.left_shift(np.int64(1), members & 31), 0))
    ballot: Array = masks[lane_groups]
    return ballot


@register_decoder("vote.sync", "vote")
def _decode_vote(form: Form) -> None:
    """Decode `vote` and `vote.sync` into a step that combines a predicate of the lanes: all, any, uni or ballot."""
    mode = form.find_modifier("all", "any", "uni", "ballot")
    result_slot = form.write(form.operands[0], "b32" if mode == "ballot" else "pred")
    value_slot, is_negated = read_predicate(form, form.operands[1])
    form.step.is_inverted = is_negated
    mask_slot = gather_masked_lanes(form, form.operands[2]) if form.stem == "vote.sync" else -1

    @form.set_run
    def run_vote(cta: Cta, threads: Threads) -> None:
        """Write the vote on the predicate of the lanes with the same mask: all, any, uni, or the mask of those where it
        is true."""
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads] ^ is_negated
        lane_groups = _number_lane_groups(members, cta.views[mask_slot][threads] if mask_slot >= 0 else None)
        ballot = _ballot_lanes(members, lane_groups, values)
        everyone = _ballot_lanes(members, lane_groups, np.ones(len(members), np.bool_))
        is_all, is_any = ballot == everyone, ballot != 0
        results = {"ballot": ballot, "all": is_all, "any": is_any, "uni": is_all | ~is_any}
        cta.views[result_slot][threads] = results[mode]


@register_decoder("match.any.sync")
def _decode_match_any(form: Form) -> None:
    """Decode `match.any.sync` into a step that finds, for each lane, the lanes with the same value."""
    result_slot = form.write(form.operands[0], "b32")
    value_slot = form.read(form.operands[1], form.types[-1])
    mask_slot = gather_masked_lanes(form, form.operands[2])

    @form.set_run
    def run_match_any(cta: Cta, threads: Threads) -> None:
        """Write, for each lane, the mask of lanes of its group with the same value."""
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads]
        lane_groups = _number_lane_groups(members, cta.views[mask_slot][threads])
        same = (values[:, None] == values[None, :]) & (lane_groups[:, None] == lane_groups[None, :])
        bits = np.left_shift(np.int64(1), members & 31)
        cta.views[result_slot][threads] = np.where(same, bits[None, :], 0).sum(axis=1)


@register_decoder("match.all.sync")
def _decode_match_all(form: Form) -> None:
    """Decode `match.all.sync` into a step that finds whether all lanes have the same value."""
    result_slot, same_slot = form.write_pair(form.operands[0], "b32")
    value_slot = form.read(form.operands[1], form.types[-1])
    mask_slot = gather_masked_lanes(form, form.operands[2])

    @form.set_run
    def run_match_all(cta: Cta, threads: Threads) -> None:
        """Write the mask of the lane group where all its values are the same, 0 elsewhere, and whether they are."""
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads]
        lane_groups = _number_lane_groups(members, cta.views[mask_slot][threads])
        first = np.full(int(lane_groups.max()) + 1, len(members), np.int64)
        np.minimum.at(first, lane_groups, np.arange(len(members)))
        everyone = _ballot_lanes(members, lane_groups, np.ones(len(members), np.bool_))
        same = _ballot_lanes(members, lane_groups, values == values[first[lane_groups]]) == everyone
        cta.views[result_slot][threads] = np.where(same, everyone, 0)
        if same_slot >= 0:
            cta.views[same_slot][threads] = same


@register_decoder("redux.sync")
def _decode_redux(form: Form) -> None:
    """Decode `redux.sync` into a step that reduces the lanes' integers or, by min and max only, floats; refuse the
    rest."""
    operation = form.find_modifier("add", "min", "max", "and", "or", "xor")
    result_slot = form.write(form.operands[0], form.types[-1])
    value_slot = form.read(form.operands[1], form.types[-1])
    mask_slot = gather_masked_lanes(form, form.operands[2])
    is_float = form.types[-1] == "f32"
    propagates, is_magnitude = form.has("NaN"), form.has("abs")
    if is_float and operation not in ("min", "max"):
        raise form.unsupported("this operation on floats")
    reduce: Callable[[Array], Any] = REDUCTIONS[operation].reduce
    if is_float:
        pick = select_float_extreme(operation, propagates)
        reduce = lambda values: functools.reduce(pick, values)  # noqa: E731

    @form.set_run
    def run_redux(cta: Cta, threads: Threads) -> None:
        """Write to each lane the reduction of the values, or of their magnitudes, of the lanes with the same mask in
        its warp."""
        members = cta.thread_ids[threads]
        values = np.abs(cta.views[value_slot][threads]) if is_magnitude else cta.views[value_slot][threads]
        result = values.copy()
        lane_groups = _number_lane_groups(members, cta.views[mask_slot][threads])
        for lane_group in range(int(lane_groups.max()) + 1):
            lanes = lane_groups == lane_group
            result[lanes] = reduce(values[lanes])
        cta.views[result_slot][threads] = result


@register_decoder("activemask")
def _decode_activemask(form: Form) -> None:
    """Decode `activemask` into a step that writes the lanes of each warp that run it together."""
    result_slot = form.write(form.operands[0], "b32")

    @form.set_run
    def run_activemask(cta: Cta, threads: Threads) -> None:
        """Write, for each lane, the mask of the lanes of its warp that run this step together."""
        members = cta.thread_ids[threads]
        lane_groups = _number_lane_groups(members, None)
        cta.views[result_slot][threads] = _ballot_lanes(members, lane_groups, np.ones(len(members), np.bool_))


@register_decoder("elect.sync")
def _decode_elect(form: Form) -> None:
    """Decode `elect.sync` into a step that elects the lowest lane that a mask names; unsupported without a
    predicate."""
    destination = form.operands[0]
    if not isinstance(destination, Pair):
        raise form.unsupported("elect.sync without a predicate")
    lane_slot = form.write(destination.first, "b32")
    elected_slot = form.write(destination.second, "pred")
    mask_slot = gather_masked_lanes(form, form.operands[1])

    @form.set_run
    def run_elect(cta: Cta, threads: Threads) -> None:
        """Write the lowest lane that the mask names and that runs this step, and whether the thread is that one."""
        members = cta.thread_ids[threads]
        named = (cta.views[mask_slot][threads] >> (members & 31).astype(np.uint32)) & 1
        ballot = _ballot_lanes(members, _number_lane_groups(members, None), named == 1)
        lowest = np.log2((ballot & -ballot).astype(np.float64)).astype(np.int64)
        cta.views[lane_slot][threads] = lowest
        cta.views[elected_slot][threads] = (members & 31) == lowest


@register_decoder("bar.warp.sync")
def _decode_warp_sync(form: Form) -> None:
    """Decode `bar.warp.sync` into a step that synchronises the lanes that a mask names."""
    mask_slot = gather_masked_lanes(form, form.operands[0])

    @form.set_run
    def run_warp_sync(cta: Cta, threads: Threads) -> None:
        """Let the lanes with one mask know what each other knows, if races are watched."""
        if cta.order is None:
            return
        actors = cta.actors[threads]
        lane_groups = _number_lane_groups(cta.thread_ids[threads], cta.views[mask_slot][threads])
        for lane_group in range(int(lane_groups.max()) + 1):
            cta.order.sync_warps(actors[lane_groups == lane_group])
