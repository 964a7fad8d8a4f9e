"""Fragments of small floats that only tensor cores read: whole words of registers, as those take them.

What fills one converts several elements at a time. One by one they would stand in registers of their own until they are
put together before each product.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.layout import Fragment
from tilec.ir.tile import Buffer, Parallel, Store
from tilec.ir.warp import Elementwise, Mma, Reduce, Role, StoreMatrix, Wgmma, scalar_reads, walk
from tilec.passes.usage import reads, writes

_WORD_BYTES = 4


def per_word(buffer: Buffer) -> int:
    """How many of its elements a word has."""
    return max(1, _WORD_BYTES // buffer.dtype.bytes)


def held_in_words(role: Role, layouts: Mapping[str, Fragment]) -> frozenset[Buffer]:
    """Those of the role's fragments of which no element is set or read by itself."""
    operations = tuple(walk(role.body))
    products = [op for op in operations if isinstance(op, Mma | Wgmma)]
    factors = [p.a for p in products if p.a.scope == "fragment" and p.a.dtype.is_float and per_word(p.a) > 1]
    taken_apart = {buffer.name for p in products for buffer in (p.b, p.c)}
    for op in operations:
        taken_apart |= {*scalar_reads(op)}
        match op:
            case Elementwise(nest=nest):
                filled = {nest_filled(nest, op.layout, layouts)}
                taken_apart |= {b.name for b in (*reads(nest), *writes(nest))} - filled
            case Reduce(source=source, destination=destination):
                taken_apart |= {source.name, destination.name}
            case StoreMatrix(source=source):
                taken_apart.add(source.name)
            case _:
                pass
    return frozenset(factor for factor in factors if factor.name not in taken_apart)


def nest_filled(nest: Parallel, layout: Fragment, layouts: Mapping[str, Fragment]) -> str | None:
    """The fragment that the nest sets as it lies, from registers alone, and does nothing else."""
    match nest.body:
        case (Store(buffer=buffer, indices=indices, atomic=None),) if indices == nest.vars:
            is_moved = all(read.in_registers and read != buffer for read in reads(nest))
            lies_so = buffer.scope == "fragment" and layouts[buffer.name] == layout
            return buffer.name if lies_so and is_moved and layout.register_count % per_word(buffer) == 0 else None
        case _:
            return None
