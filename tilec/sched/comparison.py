"""Compares two traces of one kernel: what changed, and which changes led to another schedule.

A schedule is made in one order: requests, tiles, decisions, prices of statements, bounds, interval, placement of each
statement, rings, pools. Changes are found in that order. The reasons for another interval are the changes that lead to
the binding bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from tilec.sched import text
from tilec.sched.problem import UNLIMITED
from tilec.sched.trace import TraceError, parse_trace
from tilec.support import schema
from tilec.support.records import dataclass

ChangeKind = Literal[
    "kernel", "target", "calibration", "constant", "option", "threads", "tile", "decision", "loop", "statement",
    "price", "bound", "interval", "stage", "order", "role", "ring", "pool", "slot",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, worded as `subject` `verb` `new` ("tile A_shared" "is" "float16 64 × 128"), and formerly `old`.
    `old` or `new` is "" if that trace has no such thing. `loop` is "" for the kernel as a whole."""

    kind: ChangeKind
    loop: str
    subject: str
    verb: str
    old: str
    new: str

    def __str__(self) -> str:
        if not self.new:
            return f"{self.subject} removed (it {_PAST_TENSE.get(self.verb, self.verb)} {self.old})"
        return f"{self.subject} {self.verb} {self.new}" + (f", was {self.old}" if self.old else " (new)")


_PAST_TENSE = {"is": "was", "are": "were", "has": "had", "is in stage": "was in stage", "is run by": "was run by"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes; `why` has the steps, cause first, to each loop's new interval, stages or rings."""

    changes: tuple[Change, ...]
    why: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Decision(text.OpenRecord):
    what: str
    chosen: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class _Tile(text.OpenRecord):
    name: str
    scope: str
    dtype: str
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Use(text.OpenRecord):
    slot: str
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Op(text.OpenRecord):
    name: str
    role: str
    stage: int
    issue: int
    latency: int
    rows: tuple[_Use, ...]


@dataclass(frozen=True, slots=True)
class _Ring(text.OpenRecord):
    name: str
    depth: int
    bytes: int
    lifetime: int
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class _Pool(text.OpenRecord):
    name: str
    peak: int
    capacity: int


@dataclass(frozen=True, slots=True)
class _Slot(text.OpenRecord):
    name: str
    percent: int


@dataclass(frozen=True, slots=True)
class _Bound(text.OpenRecord):
    kind: str
    name: str
    ii: int
    culprit: str
    ops: tuple[int, ...]
    binds: bool


@dataclass(frozen=True, slots=True)
class _Loop(text.OpenRecord):
    name: str
    ii: int
    mii: int
    status: str
    stages: int
    order: tuple[int, ...]
    ops: tuple[_Op, ...]
    rings: tuple[_Ring, ...]
    pools: tuple[_Pool, ...]
    slots: tuple[_Slot, ...]
    bounds: tuple[_Bound, ...]
    refutation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Trace(text.OpenRecord):
    """The parts of a trace that are compared; the rest is ignored."""

    kernel: str
    target: str
    calibration: str
    decisions: tuple[_Decision, ...]
    loops: tuple[_Loop, ...]
    constants: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    tiles: tuple[_Tile, ...] | None = None


def read_trace_record(text: str) -> dict[str, Any]:
    """Return the record in a trace's text; raise `TraceError` for another version, wrong ids or what is no trace."""
    record = parse_trace(text)
    for at, loop in enumerate(schema.read_record(_Trace, record, "tilec").loops):
        for ops in (loop.order, *(bound.ops for bound in loop.bounds)):
            if not all(0 <= op < len(loop.ops) for op in ops):
                raise TraceError(f"tilec.loops[{at}]: {list(ops)!r:.60} names statements that do not exist")
    return record


def compare_traces(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Return the changes between two trace records, and the reasons for each loop's new interval, stages or rings.

    Source lines and search attempts are ignored.
    """
    about_kernel = [*_compare_requests(old, new), *_compare_decisions(old, new)]
    changes = list(about_kernel)
    why: list[tuple[str, tuple[str, ...]]] = []
    for before, after in _pair_loops(old["loops"], new["loops"]):
        if before is None or after is None:
            changes.append(_report_unpaired_loop(before, after))
            continue
        loop_changes = list(_compare_loop(before, after))
        changes += loop_changes
        if any(change.kind in ("interval", "stage", "ring") for change in loop_changes):
            why.append((after["name"], tuple(_explain_interval(before, after, about_kernel, loop_changes))))
    return Comparison(tuple(changes), tuple(why))


def _compare_requests(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the changes of kernel, target, calibration, constants, options; of threads and tiles if both have them."""
    kinds: tuple[ChangeKind, ...] = ("kernel", "target", "calibration")
    for kind in kinds:
        yield from _compare_by_name(kind, "", "the {}", "is", ({kind: record[kind]} for record in (old, new)))
    constants, options = ([record.get(name, {}) for record in (old, new)] for name in ("constants", "options"))
    yield from _compare_by_name("constant", "", "-D {}", "is", constants, absent="the kernel's own")
    yield from _compare_by_name("option", "", "option {}", "is", options, absent="the default")
    if all(record.get("tiles") is not None and record.get("threads") for record in (old, new)):
        threads = ({"threads": f"{record['threads']:,}"} for record in (old, new))
        yield from _compare_by_name("threads", "", "the number of {} of a block", "is", threads)
        yield from _compare_by_name("tile", "", "tile {}", "is", map(_describe_tiles, (old, new)))


def _describe_tiles(record: Mapping[str, Any]) -> dict[str, str]:
    """Return each tile's type and shape as text, by its name."""
    return {tile["name"]: f"{tile['dtype']} {' × '.join(map(str, tile['shape']))}" for tile in record["tiles"]}


_RENAMED_DECISIONS = {
    "pairs": "CTA pairs",
    "consumers": "consumer warpgroups",
    "dependent launch": "programmatic dependent launch",
}
"""Former names of decisions, in older traces, and their present names."""


def _compare_decisions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Yield a change for each decision with another answer; another reason alone is none.

    Numbers in a reason often differ.
    """
    before, after = (
        {_RENAMED_DECISIONS.get(d["what"], d["what"]): d for d in record["decisions"]} for record in (old, new)
    )
    chosen = ({what: d["chosen"] for what, d in each.items()} for each in (before, after))
    for change in _compare_by_name("decision", "", "{}", "is", chosen):
        d = after.get(change.subject)
        full = "" if d is None else f"{d['chosen']} (by {d['by']}: {d['why']})"
        yield Change("decision", "", f"the decision about {change.subject}", "is", change.old, full)


def _pair_loops(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Yield pairs of loops by name, None for a missing one; by position if there are as many and no names agree."""
    before, after = ({loop["name"]: loop for loop in loops} for loops in (old, new))
    if len(old) == len(new) and not set(before) & set(after):
        yield from zip(old, new, strict=True)
        return
    for name in dict.fromkeys([*before, *after]):
        yield before.get(name), after.get(name)


def _report_unpaired_loop(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    """Return the change that a loop is new (`before` is None) or gone (`after` is), with its II and stages."""
    loop = after or before
    assert loop is not None
    summary = f"II {loop['ii']:,} and {loop['stages']} stages"
    return Change("loop", loop["name"], "the loop", "has", summary if before else "", summary if after else "")


def _compare_loop(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    """Yield the changes of one loop, in the order in which a schedule is made."""
    loop, loops = new["name"], (old, new)
    before, after = _name_statements(old), _name_statements(new)
    yield from _compare_by_name("statement", loop, "{}", "is", (dict.fromkeys(s, "scheduled") for s in (before, after)))
    both = {name: (before[name], after[name]) for name in after if name in before}
    for name, ops in both.items():
        prices = map(_format_prices, ops)
        yield from _compare_by_name("price", loop, f"{name}: its {{}}", "is", prices, absent="nothing")
    bounds = ({"binding bounds": _join_binding_bounds(one)} for one in loops)
    yield from _compare_by_name("bound", loop, "the {}", "are", bounds)
    yield from _compare_fact("interval", loop, "the interval", "is", *loops, "ii")
    yield from _compare_fact("interval", loop, "the schedule", "is", *loops, "status")
    yield from _compare_fact("stage", loop, "the number of stages", "is", *loops, "stages")
    for name, ops in both.items():
        yield from _compare_fact("stage", loop, name, "is in stage", *ops, "stage")
        yield from _compare_fact("role", loop, name, "is run by", *ops, "role")
    orders = ({"order": "; ".join(name for name in _list_issue_order(one) if name in both)} for one in loops)
    yield from _compare_by_name("order", loop, "the {}", "is", orders)
    for fact, subject, verb in _RING_FACTS:
        each = ({r["name"]: f"{r[fact]:,}" for r in one["rings"] if r.get(fact) is not None} for one in loops)
        yield from _compare_by_name("ring", loop, subject, verb, each)
    yield from _compare_by_name("pool", loop, "the peak of pool {}", "is", map(_format_pools, loops))
    held = ({slot["name"]: f"{slot['percent']}%" for slot in one["slots"] if slot["percent"]} for one in loops)
    yield from _compare_by_name("slot", loop, "the occupancy of {}", "is", held, absent="0%")


_RING_FACTS = (
    ("max_depth", "the depth limit of ring {}", "is"),
    ("depth", "the depth of ring {}", "is"),
    ("bytes", "the bytes of a version of ring {}", "is"),
    ("lifetime", "the lifetime of a version of ring {}", "is"),
)


def _name_statements(loop: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a loop's statements by name; the second of one name is called `NAME (2)`."""
    found: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for op in loop["ops"]:
        count = counts[op["name"]] = counts.get(op["name"], 0) + 1
        found[op["name"] if count == 1 else f"{op['name']} ({count})"] = op
    return found


def _list_issue_order(loop: dict[str, Any]) -> list[str]:
    """Return the names of a loop's statements in the order in which they issue."""
    names = list(_name_statements(loop))
    return [names[op] for op in loop["order"]]


def _format_prices(op: dict[str, Any]) -> dict[str, str]:
    """Return a statement's cycles as text: time in each slot, issue and latency.

    Time in its role's own slot is its issue.
    """
    held = {use["slot"]: sum(end - first for first, end in use["rows"]) for use in op["rows"]}
    cycles = {f"time in {slot}": held[slot] for slot in held if not slot.startswith("issue (")}
    return {name: f"{n:,}" for name, n in {**cycles, "issue": op["issue"], "latency": op["latency"]}.items()}


def _format_pools(loop: dict[str, Any]) -> dict[str, str]:
    """Return each pool's peak as text, with its capacity unless that is unlimited."""
    limits = ("" if pool["capacity"] >= UNLIMITED else f" of {pool['capacity']:,}" for pool in loop["pools"])
    return {pool["name"]: f"{pool['peak']:,}{limit}" for pool, limit in zip(loop["pools"], limits, strict=True)}


def _join_binding_bounds(loop: dict[str, Any]) -> str:
    """Return the names of the bounds that equal the minimum II, joined by commas; `nothing` if there are none."""
    return ", ".join(f"{bound['kind']} {bound['name']}" for bound in loop["bounds"] if bound["binds"]) or "nothing"


def _compare_fact(
    kind: ChangeKind, loop: str, subject: str, verb: str, old: Mapping[str, Any], new: Mapping[str, Any], fact: str
) -> Iterator[Change]:
    """Yield a change if the member `fact` of two records differs."""
    texts = (f"{one[fact]:,}" if isinstance(one[fact], int) else str(one[fact]) for one in (old, new))
    yield from _compare_by_name(kind, loop, subject, verb, ({"": text} for text in texts))


def _compare_by_name(
    kind: ChangeKind, loop: str, subject: str, verb: str, each: Iterable[Mapping[str, str]], absent: str = ""
) -> Iterator[Change]:
    """Yield a change for each name whose text differs or that one side lacks, which then has the text `absent`.

    `{}` in `subject` stands for the name.
    """
    old, new = each
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Change(kind, loop, subject.replace("{}", name), verb, old.get(name, absent), new.get(name, absent))


_ABOUT_THE_GRID = ("persistent grid", "rasterisation", "programmatic dependent launch")
"""Decisions that no loop's problem depends on."""


def _explain_interval(
    old: dict[str, Any], new: dict[str, Any], about_kernel: Sequence[Change], found: Sequence[Change]
) -> Iterator[str]:
    """Yield sentences from the first causes to a loop's new interval, or its stages and rings if the same."""
    prices = list(_find_causing_changes(old, new, found))
    named = " ".join(change.subject for change in (*prices, *found) if change.kind in ("price", "statement", "ring"))
    causes = [
        change
        for change in about_kernel
        if not (change.kind == "tile" and change.subject.removeprefix("tile ") not in named)
        and not (change.kind == "decision" and change.subject.endswith(_ABOUT_THE_GRID))
    ]
    if not causes:
        yield "the requests are equal: the kernel's statements, the target file or tilec changed"
    yield from map(str, causes)
    yield from map(str, prices)
    for change in found:
        if change.kind == "bound":
            yield str(change)
            old_bounds = {(bound["kind"], bound["name"]) for bound in old["bounds"] if bound["binds"]}
            new_bounds = (b for b in new["bounds"] if b["binds"] and (b["kind"], b["name"]) not in old_bounds)
            yield from (f"{bound['kind']} {bound['name']}: {bound['culprit']}" for bound in new_bounds)
    if (refuted := new.get("refutation")) and new["ii"] > new["mii"]:
        yield f"II {new['ii'] - 1:,} is impossible: {refuted.get('why')}"
    last = [change for change in found if change.subject == "the interval"]
    yield from map(str, last or [change for change in found if change.kind in ("stage", "ring")])


def _find_causing_changes(old: dict[str, Any], new: dict[str, Any], found: Sequence[Change]) -> Iterator[Change]:
    """Yield changes of statements, ring limits, and prices in binding bounds; all prices if neither of these."""
    concerned: set[tuple[str, str]] = set()
    for loop in (old, new):
        names = list(_name_statements(loop))
        for bound in loop["bounds"]:
            price = f"time in {bound['name']}" if bound["kind"] in ("slot", "density") else "latency"
            price = "issue" if price.startswith("time in issue (") else price
            concerned.update((names[op], price) for op in bound["ops"] if bound["binds"])
    limits = [change for change in found if change.subject.startswith("the depth limit of ring ")]
    prices = [change for change in found if change.kind == "price"]
    leading = [change for change in prices if tuple(change.subject.split(": its ")) in concerned]
    yield from (change for change in found if change.kind == "statement")
    yield from limits
    yield from leading or ([] if limits else prices)
