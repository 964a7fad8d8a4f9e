"""That the roles of a kernel acquire equally many stages of each pipeline, as far as the first block shows it.

A role that takes more waits for ever; one that takes fewer leaves stages that nobody waits for, into which copies may
still be under way when the block ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tilec.diag import Label, fail
from tilec.ir.tile import Kernel, TileOp, Var, walk
from tilec.ir.types import INT32
from tilec.passes.hand.protocol import MOST_STEPS, Role, Unknown, steps
from tilec.records import dataclass
from tilec.source import Span

SIZE = 7680
"""What sizes that only a launch knows are taken for: a multiple of what tiles are, so that whatever a kernel may assume
of it is so."""
_DONE = {"producer": "filled", "consumer": "taken"}


@dataclass(frozen=True, slots=True)
class _Count:
    """How many stages of a pipeline a role acquires as one side of it, and where."""

    role: str
    side: str
    stages: int
    span: Span


def check_counts(kernel: Kernel, roles: Sequence[Role]) -> None:
    """Errors: `pipeline-counts`."""
    scalars = [param for param in kernel.params if isinstance(param, Var) and param.dtype == INT32]
    given: dict[Var, int] = {}
    try:
        found = _found(kernel, roles, given)
    except Unknown:
        given = dict.fromkeys(scalars, SIZE)
        try:
            found = _found(kernel, roles, given)
        except Unknown:
            return
    where = "".join(f", where {var.name} = {size:,}" for var, size in given.items())
    for pipeline in dict.fromkeys(name for name, _ in found):
        counts = sorted((c for name, c in found if name == pipeline), key=lambda c: c.stages)
        fewest, *others = counts
        if fewest.stages < counts[-1].stages:
            fail(
                "pipeline-counts",
                f"not all stages of {pipeline} that are {_DONE[counts[-1].side]} are {_DONE[fewest.side]}",
                fewest.span,
                _spoken(fewest),
                secondary=tuple(Label(c.span, _spoken(c)) for c in others),
                notes=(f"so it is in the first block of the grid{where}",),
                help="let every role of a pipeline make as many trips; compare the bounds of the loops",
            )


def _found(kernel: Kernel, roles: Sequence[Role], scalars: Mapping[Var, int]) -> list[tuple[str, _Count]]:
    return [found for role in roles for found in _counts(role, kernel, scalars)]


def _counts(role: Role, kernel: Kernel, scalars: Mapping[Var, int]) -> Iterator[tuple[str, _Count]]:
    """By pipeline. A role that has an acquire but never gets there acquires none."""
    places: dict[str, Span] = {}
    for stmt in walk(role.kernel.body):
        if isinstance(stmt, TileOp) and (acquires := dict(stmt.attrs).get("acquires")):
            places.setdefault(str(acquires), stmt.span)
    made = [step.acquires for step in islice(steps(role, kernel, scalars), MOST_STEPS + 1)] if places else []
    if len(made) > MOST_STEPS:
        raise Unknown
    for acquires, span in places.items():
        pipeline, side = acquires.split()
        yield pipeline, _Count(role.name, side, made.count(acquires), span)


def _spoken(count: _Count) -> str:
    times = f"{count.stages} stage{'s' * (count.stages != 1)}"
    return f"{count.role} {'fills' if count.side == 'producer' else 'takes'} {times}"
