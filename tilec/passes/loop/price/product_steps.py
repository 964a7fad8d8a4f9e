"""Waits of products by mma.sync for operands that ldmatrix reads from shared memory, step by step along K.

The steps of a product are unrolled, and the assembler reads one step early within them. But nothing is read before the
iteration's barrier: the first step waits for its operands unless they are prefetched (`loop.stages.register_stages`).
The instructions of a prefetch issue between those of the product before, so that they hold its units but delay nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.analysis.fragment_prefetch import find_first_use, is_interleaved_load
from tilec.ir.tile import Stmt
from tilec.ops.lowering import Demand
from tilec.ops.products.gemm import Gemm, get_gemm_shape
from tilec.sched.problem import Op, Use
from tilec.support.records import dataclass
from tilec.target.names import InstructionKind
from tilec.target.table import Target

STEP_BITS = 256
"""The bits of K that one instruction multiplies."""
_READ_KIND: InstructionKind = "ldmatrix"
_MULTIPLY_KIND: InstructionKind = "mma.sync"
_ISSUE_SLOT = "issue"  # the slot of the warp schedulers


@dataclass(frozen=True, slots=True)
class ProductSteps:
    """The steps of a product, in cycles: `latency` until the first bytes of a step arrive; `transfer`, for which its
    operands occupy the path; and `use`, for which it holds the tensor cores."""

    count: int
    latency: int
    transfer: int
    use: int

    @property
    def exposed_cycles(self) -> int:
        """Return the cycles for which an iteration waits for the operands of its first step."""
        return self.latency + self.transfer


def count_steps_along_k(product: Gemm) -> int:
    """Return the number of steps of 256 bits along K of a product, at least 1."""
    return max(get_gemm_shape(product)[2] * product.regions[0].buffer.dtype.bits // STEP_BITS, 1)


def price_product_steps(product: Stmt, demands: Sequence[Demand], target: Target) -> ProductSteps | None:
    """Return the steps along K of an mma.sync product whose operands ldmatrix reads; None for other statements."""
    prices = {d.kind: target.price(d.kind, **dict(d.parameters)) for d in demands}
    if not isinstance(product, Gemm) or set(prices) != {_READ_KIND, _MULTIPLY_KIND}:
        return None
    read, compute = prices[_READ_KIND], prices[_MULTIPLY_KIND]
    transfer_cycles = max((cycles for _, cycles, _ in read.uses), default=0)
    use = max((cycles for _, cycles, _ in compute.uses), default=0)
    count = count_steps_along_k(product)
    return ProductSteps(count, read.latency - transfer_cycles, -(-transfer_cycles // count), -(-use // count))


def add_first_step_wait(op: Op, steps: ProductSteps, demands: Sequence[Demand], target: Target) -> Op:
    """Return a product's op with the wait for its first operands added: busy longer, tensor cores in use later."""
    products = [target.price(d.kind, **dict(d.parameters)) for d in demands if d.kind == _MULTIPLY_KIND]
    computes = {slot for timing in products for slot, _, _ in timing.uses} - {_ISSUE_SLOT}
    uses, wait = [], steps.exposed_cycles
    for use in op.uses:
        if use.slot >= len(target.slots):  # an issue slot of a role
            use = replace(use, cycles=use.cycles + wait)
        elif target.slots[use.slot].name in computes:
            use = replace(use, offset=use.offset + wait)
        uses.append(use)
    return replace(op, uses=tuple(uses), issue=op.issue + wait, latency=op.latency + wait)


def move_loads_into_products(ops: tuple[Op, ...], statements: Sequence[Stmt], target: Target) -> tuple[Op, ...]:
    """Return the ops with the units of interleaved prefetches moved to their products; the prefetches only issue."""
    made = list(ops)
    for at, op in enumerate(ops):
        if not is_interleaved_load(statements, at):
            continue
        own = [use for use in op.uses if use.slot < len(target.slots)]
        schedulers = next((use for use in own if target.slots[use.slot].name == _ISSUE_SLOT), None)
        if schedulers is None:
            continue
        issue = schedulers.cycles
        warps = tuple(replace(u, cycles=issue) for u in op.uses if u.slot >= len(target.slots))
        made[at] = replace(op, uses=(schedulers, *warps), issue=issue)
        product = find_first_use(statements, at)
        unit_uses = [use for use in own if use != schedulers]
        made[product] = replace(made[product], uses=_merge_uses((*made[product].uses, *unit_uses)))
    return tuple(made)


def _merge_uses(uses: Sequence[Use]) -> tuple[Use, ...]:
    """Return the uses with those of one slot merged: their cycles summed, from the first offset on."""
    merged: dict[int, Use] = {}
    for use in sorted(uses, key=lambda use: (use.slot, use.offset)):
        known = merged.get(use.slot)
        merged[use.slot] = use if known is None else replace(known, cycles=known.cycles + use.cycles)
    return tuple(merged.values())
