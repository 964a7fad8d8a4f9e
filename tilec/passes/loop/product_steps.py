"""Waits of products by mma.sync for operands that ldmatrix reads from shared memory, step by step along K.

The steps of a product are unrolled, and the assembler reads one step early within them. But nothing is read before the
iteration's barrier: the first step waits for its operands unless they are prefetched (`loop.register_stages`). The
instructions of a prefetch issue between those of the product before, so that they hold its units but delay nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.tile import Stmt
from tilec.ops.gemm import Gemm, gemm_shape
from tilec.ops.lowering import Demand
from tilec.passes.analysis.fragment_prefetch import is_between, use_of
from tilec.sched.problem import Op, Use
from tilec.support.records import dataclass
from tilec.target.kinds import InstructionKind
from tilec.target.table import Target

STEP_BITS = 256
"""The bits of K that one instruction multiplies."""
_READ: InstructionKind = "ldmatrix"
_MULTIPLY: InstructionKind = "mma.sync"
_SCHEDULERS = "issue"  # the slot of the warp schedulers


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a product, in cycles: `latency` until the first bytes of a step arrive; `transfer`, for which its
    operands occupy the path; and `use`, for which it holds the tensor cores."""

    count: int
    latency: int
    transfer: int
    use: int

    @property
    def exposed(self) -> int:
        """The cycles for which an iteration waits for the operands of its first step."""
        return self.latency + self.transfer


def steps_along_k(product: Gemm) -> int:
    return max(gemm_shape(product)[2] * product.regions[0].buffer.dtype.bits // STEP_BITS, 1)


def product_steps(product: Stmt, demands: Sequence[Demand], target: Target) -> Steps | None:
    """Price the steps of an mma.sync product that reads an operand from shared memory; None for other statements."""
    prices = {d.kind: target.price(d.kind, **dict(d.parameters)) for d in demands}
    if not isinstance(product, Gemm) or set(prices) != {_READ, _MULTIPLY}:
        return None
    read, compute = prices[_READ], prices[_MULTIPLY]
    transfer_cycles = max((cycles for _, cycles, _ in read.uses), default=0)
    use = max((cycles for _, cycles, _ in compute.uses), default=0)
    count = steps_along_k(product)
    return Steps(count, read.latency - transfer_cycles, -(-transfer_cycles // count), -(-use // count))


def waiting(op: Op, steps: Steps, demands: Sequence[Demand], target: Target) -> Op:
    """Add the wait for the first step to a product's op: its warps are busy, its tensor cores not yet."""
    computes = {
        slot
        for d in demands
        for slot, _, _ in target.price(d.kind, **dict(d.parameters)).uses
        if d.kind == _MULTIPLY and slot != _SCHEDULERS
    }
    uses = []
    for use in op.uses:
        if use.slot >= len(target.slots):  # an issue slot of a role
            use = replace(use, cycles=use.cycles + steps.exposed)
        elif target.slots[use.slot].name in computes:
            use = replace(use, offset=use.offset + steps.exposed)
        uses.append(use)
    return replace(op, uses=tuple(uses), issue=op.issue + steps.exposed, latency=op.latency + steps.exposed)


def with_loads_between(ops: tuple[Op, ...], statements: Sequence[Stmt], target: Target) -> tuple[Op, ...]:
    """Move the unit use of prefetches to the products that they run beside; the prefetches themselves only issue."""
    made = list(ops)
    for at, op in enumerate(ops):
        if not is_between(statements, at):
            continue
        schedulers = next((u for u in op.uses if u.slot < len(target.slots) and _is_issue(target, u.slot)), None)
        if schedulers is None:
            continue
        issue = schedulers.cycles
        warps = tuple(replace(u, cycles=issue) for u in op.uses if u.slot >= len(target.slots))
        made[at] = replace(op, uses=(schedulers, *warps), issue=issue)
        product = use_of(statements, at)
        unit_uses = [u for u in op.uses if u.slot < len(target.slots) and u != schedulers]
        made[product] = replace(made[product], uses=_together((*made[product].uses, *unit_uses)))
    return tuple(made)


def _is_issue(target: Target, slot: int) -> bool:
    return target.slots[slot].name == _SCHEDULERS


def _together(uses: Sequence[Use]) -> tuple[Use, ...]:
    """Merge uses of the same slot, one behind the other."""
    merged: dict[int, Use] = {}
    for use in sorted(uses, key=lambda use: (use.slot, use.offset)):
        known = merged.get(use.slot)
        merged[use.slot] = use if known is None else replace(known, cycles=known.cycles + use.cycles)
    return tuple(merged.values())
