"""Products of shared tiles rewritten as loops that load fragments and multiply them, so that fragments can have stages.

    for k0: load A_shared, B_shared             for k0: load A_shared, B_shared
        T.gemm(A_shared, B_shared, C)     →         for k1 in range(0, 64, 16):
                                                        A_shared.registers = A_shared[:, k1 : k1 + 16]
                                                        B_shared.registers = B_shared[k1 : k1 + 16, :]
                                                        T.gemm(A_shared.registers, B_shared.registers, C)

`loop.stages.register_stages` pipelines such a loop like one in the kernel's text: with two stages, the fragments of an
iteration's first step are loaded during the last step of the iteration before. `choices.choose_register_stages` decides
whether it pays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace

from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.trip_count import get_static_trip_count
from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.types import INT32
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm, get_gemm_shape
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.fragments.convert_layouts import cover_buffer, slice_region
from tilec.passes.loop.price.product_steps import count_steps_along_k
from tilec.passes.loop.stages.register_stages import (
    MAX_UNROLLED_STATEMENTS,
    apply_register_stages,
    find_loaded_fragment,
)
from tilec.passes.loop.stages.requested_stages import StageRequest
from tilec.support.diagnostics import RAISE_FIRST, CompileError
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

REGISTER_STAGES = 2
_STATEMENTS_PER_STEP = 3  # two loads and a product


@dataclass(frozen=True, slots=True)
class ProductLoop:
    """A product by mma.sync that could load its fragments early. It stands directly in a pipelined loop, with an
    operand in shared memory, or in an `inner` loop of the text that loads fragments and multiplies them. `number` is
    its index among the kernel's products: a macro can make several with one span. `steps` is the number of steps along
    K, 0 where it is not possible, and `why`."""

    loop: tile.For
    product: tile.TileOp
    number: int
    steps: int
    why: str = ""
    inner: tile.For | None = None


def find_product_loops(kernel: tile.Kernel, assignment: LayoutAssignment, is_asked: bool) -> tuple[ProductLoop, ...]:
    """Return an unspecialised kernel's mma.sync products with the steps in which they can prefetch fragments, or why
    not. If `is_asked`, a trip count known only at launch is no obstacle."""
    numbers: dict[IdentityKey[tile.TileOp], int] = {
        IdentityKey(product): number for number, product in enumerate(_find_products(assignment.kernel))
    }
    if assignment.form != "unspecialised" or len(numbers) != len(list(_find_products(kernel))):
        return ()
    written = {buffer.name for buffer in kernel.buffers}
    statements = ((loop, stmt) for loop in find_pipelined_loops(assignment.kernel.body) for stmt in loop.body)
    found = (_match_product_loop(*each, numbers, written, is_asked) for each in statements)
    return tuple(_check_product_loop(kernel, one) for one in found if one is not None)


def _find_products(kernel: tile.Kernel) -> Iterator[Gemm]:
    return (s for s in tile.walk_statements(kernel.body) if isinstance(s, Gemm))


def _match_product_loop(
    loop: tile.For,
    stmt: tile.Stmt,
    numbers: Mapping[IdentityKey[tile.TileOp], int],
    written: AbstractSet[str],
    is_asked: bool,
) -> ProductLoop | None:
    """Return the product loop that a statement of the loop is or has inside, or None. `written` are the buffers of the
    text."""
    match stmt:
        case Gemm() if _is_by_mma(stmt) and any(r.buffer.scope == "shared" for r in stmt.regions[:2]):
            return ProductLoop(loop, stmt, numbers[IdentityKey(stmt)], *_count_steps(loop, stmt, is_asked))
        case tile.For(kind="serial", num_stages=None):
            loaded = {fragment for s in stmt.body if (fragment := find_loaded_fragment(s))}
            for product in stmt.body:
                if not isinstance(product, tile.TileOp) or not _is_by_mma(product):
                    continue
                if loaded.intersection(operand.buffer.name for operand in product.regions[:2]):
                    steps, why = _count_written_steps(loop, stmt, is_asked)
                    if not loaded <= written:
                        steps, why = 0, "a fragment that it loads needs another layout for the product"
                    return ProductLoop(loop, product, numbers[IdentityKey(product)], steps, why, stmt)
    return None


def _check_product_loop(kernel: tile.Kernel, candidate: ProductLoop) -> ProductLoop:
    """Return the candidate, with 0 steps and the error's title if prefetching it alone raises an error."""
    if not candidate.steps:
        return candidate
    try:
        prefetch_product_fragments(kernel, (candidate,))
    except CompileError as error:
        return replace(candidate, steps=0, why=error.diagnostics[0].title)
    return candidate


def _is_by_mma(op: tile.TileOp) -> bool:
    return isinstance(op, Gemm) and op.via == "mma"


def _count_written_steps(loop: tile.For, inner: tile.For, is_asked: bool) -> tuple[int, str]:
    """Return the trip count of an inner loop of the text; 0 and the reason if its fragments cannot be prefetched.
    `apply_register_stages` finds further obstacles."""
    steps = get_static_trip_count(inner)
    if why := _why_loop_unsuitable(loop, inner, is_asked):
        return 0, why
    if steps is None:
        return 0, "its number of steps is known only at launch"
    return steps, ""


def _why_loop_unsuitable(loop: tile.For, use: tile.Stmt, is_asked: bool) -> str:
    """Return why the loop cannot prefetch fragments for `use`, "" if it can; `is_asked` allows an unknown trip
    count. Besides `use` it may only load."""
    others = [
        s for s in find_scheduled_statements(loop) if s is not use and not (isinstance(s, tile.TileOp) and is_load(s))
    ]
    trip_count = get_static_trip_count(loop)
    reasons = (
        (loop.stage is not None, "the loop has a manual schedule"),
        (bool(others), f"the loop does more than load and multiply: {others[0].span.place}" if others else ""),
        (trip_count is None and not is_asked, "the trip count of the loop is known only at launch"),
        (trip_count is not None and trip_count < 2, f"the loop runs {trip_count} iteration{'s' * (trip_count != 1)}"),
    )
    return next((why for is_so, why in reasons if is_so), "")


def _count_steps(loop: tile.For, product: Gemm, is_asked: bool) -> tuple[int, str]:
    """Return into how many steps along K the product can be unrolled; 0 and the reason where it cannot."""
    a, b, c, *metadata = product.regions
    steps = count_steps_along_k(product)
    if around := _why_loop_unsuitable(loop, product, is_asked):
        return 0, around
    in_registers = next((r.buffer.name for r in (a, b) if r.buffer.scope == "fragment"), None)
    reasons = (
        (in_registers is not None, f"{in_registers} is a fragment already"),
        (bool(metadata) or product.nibbles is not None, "its operands are packed"),
        (a.buffer.dtype.bits != 16, f"ldmatrix fills fragments of 16 bits an element, and these have {a.buffer.dtype}"),
        (product.transpose_A, f"{a.buffer.name} is stored along M, and fragments need K"),
        (product.clear_accum, f"it clears {c.buffer.name} in each iteration"),
        (steps == 1, "it has only one step along K"),
    )  # fmt: skip
    if why := next((why for is_so, why in reasons if is_so), None):
        return 0, why
    # A step takes several instructions along K if there would be too many statements to schedule.
    counts = range(MAX_UNROLLED_STATEMENTS // _STATEMENTS_PER_STEP, 1, -1)
    fitting = (n for n in counts if steps % n == 0 and n % REGISTER_STAGES == 0)
    if (count := next(fitting, None)) is None:
        return 0, f"{REGISTER_STAGES} stages do not divide its {steps} steps along K"
    return count, ""


def prefetch_product_fragments(kernel: tile.Kernel, chosen: Sequence[ProductLoop]) -> tile.Kernel:
    """Return the kernel, before layout assignment, with these products reading prefetched fragments in two stages."""
    wanted = {one.number: one.steps for one in chosen if one.inner is None}
    variables = (var for stmt in tile.walk_statements(kernel.body) for var in tile.declared_variables(stmt))
    names = {named.name for named in (*kernel.buffers, *kernel.params, *kernel.block_vars, *variables)}
    writer = _ProductLoopWriter(wanted, names)
    body = rewrite_statements(kernel.body, writer.rewrite_statement)
    looped = replace(kernel, body=body, buffers=(*kernel.buffers, *(one.tile for one in writer.asked)))
    tiles = {buffer.name: buffer for buffer in kernel.buffers}
    written = []
    for one in chosen:
        loaded = filter(None, map(find_loaded_fragment, () if one.inner is None else one.inner.body))
        written += [StageRequest(tiles[fragment], REGISTER_STAGES, one.product.span) for fragment in loaded]
    return apply_register_stages(looped, (*writer.asked, *written), RAISE_FIRST)


class _ProductLoopWriter:
    def __init__(self, wanted: Mapping[int, int], used_names: set[str]) -> None:
        self.wanted, self.taken = wanted, used_names
        self.asked: list[StageRequest] = []
        self.products = 0

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Return a wanted product, known by its number in program order, as a loop; other statements as they are."""
        if not isinstance(stmt, Gemm):
            return stmt
        steps = self.wanted.get(self.products)
        self.products += 1
        return stmt if steps is None else self.build_loop(stmt, steps)

    def build_loop(self, product: Gemm, steps: int) -> tile.For:
        """Return the loop that multiplies in `steps` steps along K, and record stage requests for its fragments."""
        a, b = product.a, product.b
        size = get_gemm_shape(product)[2] // steps
        var = tile.Var(self.take_name("step"), INT32)
        along = (-1, -1 if product.transpose_B else -2)
        loads, fragments = [], []
        for operand, dimension in zip((a, b), along, strict=True):
            part = slice_region(operand, dimension, var, size)
            shared = operand.buffer
            name = self.take_name(f"{shared.name}.registers")
            buffer = tile.Buffer(name, part.extent[-2:], shared.dtype, "fragment", shared.span)
            self.asked.append(StageRequest(buffer, REGISTER_STAGES, product.span))
            whole = cover_buffer(buffer, operand.span)
            loads.append(Copy(part, whole, span=product.span))
            fragments.append(whole)
        multiply = replace(product, a=fragments[0], b=fragments[1])
        start, stop = tile.int32_const(0), tile.int32_const(steps * size)
        return tile.For("serial", var, start, stop, size, (*loads, multiply), span=product.span)

    def take_name(self, wanted: str) -> str:
        """Return the wanted name, or one with the first number that makes it new, and mark it as taken."""
        names = itertools.chain((wanted,), (f"{wanted}{number}" for number in itertools.count(2)))
        name = next(name for name in names if name not in self.taken)
        self.taken.add(name)
        return name
