"""Fragments of small floats held in packed words, as tensor cores take them: operands and accumulators.

Operands that only tensor cores read are filled by whole words, several elements at a time. Otherwise each element would
occupy a register and be packed before each product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilec.analysis.usage import find_reads
from tilec.codegen.state import State
from tilec.ir import warp
from tilec.ir.layout import Fragment
from tilec.ir.tile import Bind, Buffer, Parallel, Store
from tilec.ir.types import FLOAT16
from tilec.passes.lower.waits.touches import find_touches
from tilec.ptx.module import Reg, Vector

_WORD_BYTES = 4


def count_per_word(buffer: Buffer) -> int:
    """Return the number of the buffer's elements in a 32-bit word, at least 1."""
    return max(1, _WORD_BYTES // buffer.dtype.bytes)


def find_word_fragments(
    role: warp.Role, layouts: Mapping[str, Fragment], tensor: Sequence[warp.TensorTile]
) -> frozenset[Buffer]:
    """Return the role's small-float operands of products or tensor stores that are filled and used by whole words."""
    packed = {tile.buffer for tile in tensor if tile.per_column > 1}
    factors: set[Buffer] = set()
    one_by_one: set[str] = set()
    for op in warp.walk_operations(role.body):
        by_word: tuple[str, ...] = ()
        match op:
            case warp.Mma(a=a, b=b) | warp.Wgmma(a=a, b=b):
                factors |= {f.buffer for f in (a, b) if f.buffer.scope == "fragment"}
                by_word = (a.buffer.name, b.buffer.name)
            case warp.TensorStore(source=source, destination=destination) if destination in packed:
                factors.add(source)
                by_word = (source.name,)
            case warp.LoadMatrix(destination=destination):
                by_word = (destination.name,)
            case warp.Elementwise(nest=nest):
                by_word = tuple(filter(None, [find_filled_fragment(nest, op.layout, layouts)]))
            case _:
                pass
        one_by_one |= {touch.buffer for touch in find_touches(op)[0] if touch.buffer not in by_word}
        one_by_one |= {*warp.scalar_reads(op)}
    return frozenset(f for f in factors if f.dtype.is_float and count_per_word(f) > 1 and f.name not in one_by_one)


def find_paired_accumulators(role: warp.Role) -> frozenset[Buffer]:
    """Return the float16 accumulators of the role's mma and wgmma products, which have two elements to a register."""
    return frozenset(
        p.c for p in warp.walk_operations(role.body) if isinstance(p, warp.Mma | warp.Wgmma) and p.c.dtype == FLOAT16
    )


@contextmanager
def unpack_accumulators(op: warp.Operation, state: State) -> Iterator[None]:
    """Emit, around an operation that uses float16 accumulators one by one, their unpacking and packing again.

    They are packed again only if it writes them. Between products they stay packed, so that the products can stay in
    flight.
    """
    # The result of a load from tensor memory is there only after its wait.
    is_unpacked = isinstance(op, warp.Mma | warp.Wgmma | warp.TensorLoad) or warp.nested_bodies(op)
    touched = () if is_unpacked or not state.pairs else find_touches(op)[0]
    names = {touch.buffer: touch for touch in touched if touch.buffer in state.pairs}
    for name in names:
        for pair, packed in _zip_register_pairs(name, state):
            state.builder.emit("mov.b32", Vector(pair), packed)
    yield
    for name in dict.fromkeys(touch.buffer for touch in touched if touch.buffer in names and touch.write):
        for pair, packed in _zip_register_pairs(name, state):
            state.builder.emit("mov.b32", packed, Vector(pair))


def _zip_register_pairs(name: str, state: State) -> Iterator[tuple[tuple[Reg, Reg], Reg]]:
    """Yield each pair of a fragment's element registers with the register that has both packed."""
    halves = state.fragments[name]
    return zip(zip(halves[::2], halves[1::2], strict=True), state.pairs[name], strict=True)


def find_filled_fragment(nest: Parallel, layout: Fragment, layouts: Mapping[str, Fragment]) -> str | None:
    """Return the name of the fragment that a nest's only store fills in its layout; else None.

    It is filled from shared memory or other registers. Elements of tensors are awaited where they are used.
    """
    match nest.body:
        case (*before, Store(buffer=buffer, indices=indices, atomic=None)) if indices == nest.vars and all(
            isinstance(stmt, Bind) for stmt in before
        ):
            is_moved = all(read != buffer and read.scope != "global" for read in find_reads(nest))
            lies_so = buffer.scope == "fragment" and layouts[buffer.name] == layout
            return buffer.name if lies_so and is_moved and layout.register_count % count_per_word(buffer) == 0 else None
        case _:
            return None
