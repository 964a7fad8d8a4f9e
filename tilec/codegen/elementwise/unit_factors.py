"""Products that change nothing in most iterations: a nest that scales a fragment by factors of which the program sets
some to 1 is skipped by each warp in which all of them are 1.

An online softmax that moves its maximum only when that has grown a lot has such factors: 1 for a row whose maximum
stays. A comparison for each factor of a thread, a vote and a branch then replace a product for each of its elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilec.codegen.builder import make_f32
from tilec.codegen.elementwise.steps import Assignment, Step
from tilec.codegen.state import State
from tilec.ir import tile, warp
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import FLOAT32
from tilec.passes.lower.waits.touches import find_touches
from tilec.ptx.module import Guard, Imm, Operand, Reg, Symbol

PRODUCTS_PER_FACTOR = 8
"""Products of a thread for each of its factors, at least. Where nothing can be skipped, a comparison a factor, the vote
and the branch then cost at most a quarter of what the products do."""


def find_unit_fragments(role: warp.Role) -> frozenset[str]:
    """Return the names of the role's float32 fragments whose elements all are choices between 1 and another value."""
    chosen: set[str] = set()
    others: set[str] = set()
    for op in warp.walk_operations(role.body):
        if isinstance(op, warp.Elementwise):
            for stmt in tile.walk_statements(op.nest.body):
                if isinstance(stmt, tile.Store):
                    (chosen if _is_choice_of_one(stmt) else others).add(stmt.buffer.name)
        else:
            others |= {touch.buffer for touch in find_touches(op)[0] if touch.write}
    return frozenset(chosen - others)


def _is_choice_of_one(store: tile.Store) -> bool:
    """Return whether the store sets an element of a float32 fragment to 1 or to another value, by a condition."""
    if store.buffer.scope != "fragment" or store.buffer.dtype != FLOAT32 or store.atomic is not None:
        return False
    match store.value:
        case tile.Select(then=tile.Const(value=1)) | tile.Select(orelse=tile.Const(value=1)):
            return True
        case _:
            return False


def find_unit_factor(body: Sequence[Step], state: State) -> tile.Load | None:
    """Return the factor by which a nest of this body only scales a float32 fragment, if it is one of unit fragments and
    warps are complete; else None."""
    if state.role.threads % WARP_THREADS or len(body) != 1 or not isinstance(body[0], Assignment) or body[0].conditions:
        return None
    store = body[0].store
    if store.buffer.scope != "fragment" or store.buffer.dtype != FLOAT32 or store.atomic is not None:
        return None
    own = tile.Load(store.buffer, store.indices)
    match store.value:
        case tile.Binary(op="mul", a=a, b=tile.Load() as factor) if a == own:
            pass
        case tile.Binary(op="mul", a=tile.Load() as factor, b=b) if b == own:
            pass
        case _:
            return None
    return factor if factor.buffer.name in state.unit_fragments else None


@contextmanager
def skip_where_ones(state: State, factors: Sequence[Operand]) -> Iterator[None]:
    """Emit a branch around what the context emits, for warps in which all these factors of all lanes are 1."""
    builder = state.builder
    differs: Reg | None = None
    for factor in factors:
        one = builder.create("pred", "setp.neu.f32", factor, make_f32(1.0))
        differs = one if differs is None else builder.create("pred", "or.pred", differs, one)
    assert differs is not None, "a product has a factor"
    somewhere = builder.create("pred", "vote.sync.any.pred", differs, Imm(-1))
    past = builder.new_label("ones")
    builder.emit("bra.uni", Symbol(past), guard=Guard(somewhere, True))
    with state.scalars.open_scope():
        yield
    builder.place_label(past)
