"""Refuse loops in which several threads would draw a random number for one element of a fragment."""

from __future__ import annotations

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, raise_error


def check_generator_copies(assignment: LayoutAssignment, mistakes: ErrorCollector = RAISE_FIRST) -> None:
    """Refuse each nest that draws random numbers for a fragment whose elements have copies in several threads."""
    for one in assignment.kernels:
        for nest in (s for s in tile.walk_statements(one.kernel.body) if isinstance(s, tile.Parallel)):
            with mistakes.caught():
                check_generator_nest(nest, one.nest_layout(nest))


def check_generator_nest(nest: tile.Parallel, layout: Fragment, groups: int = 1) -> None:
    """Refuse a nest that fills a fragment with random numbers if several threads of a group have copies of an
    element."""
    stored = {s.buffer.scope: s.buffer for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store)}
    if {"local", "fragment"} <= stored.keys() and layout.replica_index(groups) is not None:
        name = stored["fragment"].name
        raise_error(
            "thread-dependent",
            f"several threads hold a copy of each element of {name}, and each would draw a different number",
            nest.span,
            f"fills {name} with random numbers",
            help="store the numbers in a shared tile, which has no copies",
        )
