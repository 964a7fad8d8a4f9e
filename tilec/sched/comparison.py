"""Two traces of one kernel compared: what changed, and from what to what it led.

A schedule is made in one order: what is asked for, tiles, decisions, the prices of statements, bounds, interval, the
place of each statement, rings, pools. Changes are found in that order, and the reasons for another interval are those
of them that lead to the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

from tilec.sched.problem import UNLIMITED
from tilec.sched.trace import TraceError, parsed
from tilec.support import schema
from tilec.support.records import dataclass

Kind = Literal[
    "kernel", "target", "calibration", "constant", "option", "threads", "tile", "decision", "loop", "statement",
    "price", "bound", "interval", "stage", "order", "role", "ring", "pool", "slot",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """`subject` `verb` `new`, as in "tile A_shared" "is" "float16 64 × 128", and it was `old`; where one is "", there
    is no such thing in that trace. `loop` is "" where it is about the kernel."""

    kind: Kind
    loop: str
    subject: str
    verb: str
    old: str
    new: str

    def __str__(self) -> str:
        if not self.new:
            return f"{self.subject} is gone, it {_PAST.get(self.verb, self.verb)} {self.old}"
        return f"{self.subject} {self.verb} {self.new}, " + (f"was {self.old}" if self.old else "and was not there")


_PAST = {"is": "was", "has": "had", "is in stage": "was in stage", "is run by": "was run by"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`why` has for each loop whose interval, stages or rings changed the steps that led to it, the cause first."""

    changes: tuple[Change, ...]
    why: tuple[tuple[str, tuple[str, ...]], ...]


# ---- what is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Decision:
    OPEN: ClassVar[bool] = True
    what: str
    chosen: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class _Tile:
    OPEN: ClassVar[bool] = True
    name: str
    scope: str
    dtype: str
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Use:
    OPEN: ClassVar[bool] = True
    slot: str
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Op:
    OPEN: ClassVar[bool] = True
    name: str
    role: str
    stage: int
    issue: int
    latency: int
    rows: tuple[_Use, ...]


@dataclass(frozen=True, slots=True)
class _Ring:
    OPEN: ClassVar[bool] = True
    name: str
    depth: int
    bytes: int
    lifetime: int
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class _Pool:
    OPEN: ClassVar[bool] = True
    name: str
    peak: int
    capacity: int


@dataclass(frozen=True, slots=True)
class _Slot:
    OPEN: ClassVar[bool] = True
    name: str
    percent: int


@dataclass(frozen=True, slots=True)
class _Bound:
    OPEN: ClassVar[bool] = True
    kind: str
    name: str
    ii: int
    culprit: str
    ops: tuple[int, ...]
    binds: bool


@dataclass(frozen=True, slots=True)
class _Loop:
    OPEN: ClassVar[bool] = True
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
class _Trace:
    """What is compared of a trace; the rest of it is passed over."""

    OPEN: ClassVar[bool] = True
    kernel: str
    target: str
    calibration: str
    decisions: tuple[_Decision, ...]
    loops: tuple[_Loop, ...]
    constants: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    tiles: tuple[_Tile, ...] | None = None


def read(text: str) -> dict[str, Any]:
    """The record of a trace. Raises `TraceError` where the text is none, or of another version."""
    record = parsed(text)
    for at, loop in enumerate(schema.record(_Trace, record, "tilec").loops):
        for of in (loop.order, *(bound.ops for bound in loop.bounds)):
            if not all(0 <= op < len(loop.ops) for op in of):
                raise TraceError(f"tilec.loops[{at}]: {list(of)!r:.60} names statements that are not there")
    return record


# ---- what changed ----------------------------------------------------------------------------------------------------


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Of two records that `read` has made. Lines, and what was tried on the way, are no part of a schedule."""
    about_kernel = [*_asked(old, new), *_decisions(old, new)]
    changes = list(about_kernel)
    why: list[tuple[str, tuple[str, ...]]] = []
    for before, after in _pairs(old["loops"], new["loops"]):
        if before is None or after is None:
            changes.append(_whole_loop(before, after))
            continue
        found = list(_loop(before, after))
        changes += found
        if any(change.kind in ("interval", "stage", "ring") for change in found):
            why.append((after["name"], tuple(_steps(before, after, about_kernel, found))))
    return Comparison(tuple(changes), tuple(why))


def _asked(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    kinds: tuple[Kind, ...] = ("kernel", "target", "calibration")
    for kind in kinds:
        yield from _by_name(kind, "", "the {}", "is", ({kind: record[kind]} for record in (old, new)))
    constants, options = ([record.get(name, {}) for record in (old, new)] for name in ("constants", "options"))
    yield from _by_name("constant", "", "-D {}", "is", constants, absent="the kernel's own")
    yield from _by_name("option", "", "option {}", "is", options, absent="as usual")
    if all(record.get("tiles") is not None and record.get("threads") for record in (old, new)):
        threads = ({"threads": f"{record['threads']:,}"} for record in (old, new))
        yield from _by_name("threads", "", "the number of {} of a block", "is", threads)
        yield from _by_name("tile", "", "tile {}", "is", map(_tiles, (old, new)))


def _tiles(record: Mapping[str, Any]) -> dict[str, str]:
    return {tile["name"]: f"{tile['dtype']} {' × '.join(map(str, tile['shape']))}" for tile in record["tiles"]}


_SINCE = {
    "pairs": "CTA pairs",
    "consumers": "consumer warpgroups",
    "dependent launch": "programmatic dependent launch",
}
"""What decisions of older traces are called now."""


def _decisions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Those with another answer; the reason for one may be another, with other numbers in it."""
    chosen = [{_SINCE.get(d["what"], d["what"]): d["chosen"] for d in record["decisions"]} for record in (old, new)]
    full = {_SINCE.get(d["what"], d["what"]): f"{d['chosen']} (by {d['by']}: {d['why']})" for d in new["decisions"]}
    for change in _by_name("decision", "", "{}", "is", chosen):
        yield Change(
            "decision", "", f"the decision about {change.subject}", "is", change.old, full.get(change.subject, "")
        )


def _pairs(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Loops of one name; of a kernel by another name, those in the same place."""
    before, after = ({loop["name"]: loop for loop in loops} for loops in (old, new))
    if len(old) == len(new) and not set(before) & set(after):
        yield from zip(old, new, strict=True)
        return
    for name in dict.fromkeys([*before, *after]):
        yield before.get(name), after.get(name)


def _whole_loop(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    loop = after or before
    assert loop is not None
    said = f"II {loop['ii']:,} and {loop['stages']} stages"
    return Change("loop", loop["name"], "the loop", "has", said if before else "", said if after else "")


def _loop(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    loop, of = new["name"], (old, new)
    before, after = _statements(old), _statements(new)
    yield from _by_name("statement", loop, "{}", "is", (dict.fromkeys(s, "scheduled") for s in (before, after)))
    both = {name: (before[name], after[name]) for name in after if name in before}
    for name, ops in both.items():
        yield from _by_name("price", loop, f"{name}: its {{}}", "is", map(_prices, ops), absent="nothing")
    yield from _by_name("bound", loop, "what {} the interval", "is", ({"binds": _binding(one)} for one in of))
    yield from _facts("interval", loop, "the interval", "is", *of, "ii")
    yield from _facts("interval", loop, "the schedule", "is", *of, "status")
    yield from _facts("stage", loop, "the number of stages", "is", *of, "stages")
    for name, ops in both.items():
        yield from _facts("stage", loop, name, "is in stage", *ops, "stage")
        yield from _facts("role", loop, name, "is run by", *ops, "role")
    orders = ({"order": "; ".join(name for name in _order(one) if name in both)} for one in of)
    yield from _by_name("order", loop, "the {}", "is", orders)
    for fact, subject, verb in _RINGS:
        each = ({r["name"]: f"{r[fact]:,}" for r in one["rings"] if r.get(fact) is not None} for one in of)
        yield from _by_name("ring", loop, subject, verb, each)
    yield from _by_name("pool", loop, "what is held of {} at most", "is", map(_pools, of))
    held = ({slot["name"]: f"{slot['percent']}%" for slot in one["slots"] if slot["percent"]} for one in of)
    yield from _by_name("slot", loop, "the occupancy of {}", "is", held, absent="0%")


_RINGS = (
    ("max_depth", "the most versions of ring {}", "is"),
    ("depth", "the depth of ring {}", "is"),
    ("bytes", "the bytes of a version of ring {}", "is"),
    ("lifetime", "the lifetime of a version of ring {}", "is"),
)


def _statements(loop: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name; of several with one name, the second has a 2 behind it."""
    found: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for op in loop["ops"]:
        count = counts[op["name"]] = counts.get(op["name"], 0) + 1
        found[op["name"] if count == 1 else f"{op['name']} ({count})"] = op
    return found


def _order(loop: dict[str, Any]) -> list[str]:
    names = list(_statements(loop))
    return [names[op] for op in loop["order"]]


def _prices(op: dict[str, Any]) -> dict[str, str]:
    """What a statement costs, in cycles. What it holds of its role's own slot is its issue."""
    held = {use["slot"]: sum(end - first for first, end in use["rows"]) for use in op["rows"]}
    cycles = {f"time in {slot}": held[slot] for slot in held if not slot.startswith("issue (")}
    return {name: f"{n:,}" for name, n in {**cycles, "issue": op["issue"], "latency": op["latency"]}.items()}


def _pools(loop: dict[str, Any]) -> dict[str, str]:
    limits = ("" if pool["capacity"] >= UNLIMITED else f" of {pool['capacity']:,}" for pool in loop["pools"])
    return {pool["name"]: f"{pool['peak']:,}{limit}" for pool, limit in zip(loop["pools"], limits, strict=True)}


def _binding(loop: dict[str, Any]) -> str:
    """The bounds that allow no smaller interval."""
    return ", ".join(f"{bound['kind']} {bound['name']}" for bound in loop["bounds"] if bound["binds"]) or "nothing"


def _facts(
    kind: Kind, loop: str, subject: str, verb: str, old: Mapping[str, Any], new: Mapping[str, Any], fact: str
) -> Iterator[Change]:
    said = (f"{one[fact]:,}" if isinstance(one[fact], int) else str(one[fact]) for one in (old, new))
    yield from _by_name(kind, loop, subject, verb, ({"": text} for text in said))


def _by_name(
    kind: Kind, loop: str, subject: str, verb: str, each: Iterable[Mapping[str, str]], absent: str = ""
) -> Iterator[Change]:
    """What has another value, or is in one of the two only; the name stands for {} in `subject`."""
    old, new = each
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Change(kind, loop, subject.replace("{}", name), verb, old.get(name, absent), new.get(name, absent))


# ---- why -------------------------------------------------------------------------------------------------------------

_ABOUT_THE_GRID = ("persistent grid", "rasterisation", "programmatic dependent launch")
"""Decisions that no loop's problem depends on."""


def _steps(
    old: dict[str, Any], new: dict[str, Any], about_kernel: Sequence[Change], found: Sequence[Change]
) -> Iterator[str]:
    """From what is different to begin with to the interval, or to stages and rings where that is the same."""
    prices = list(_leading(old, new, found))
    named = " ".join(change.subject for change in (*prices, *found) if change.kind in ("price", "statement", "ring"))
    causes = [
        change
        for change in about_kernel
        if not (change.kind == "tile" and change.subject.removeprefix("tile ") not in named)
        and not (change.kind == "decision" and change.subject.endswith(_ABOUT_THE_GRID))
    ]
    if not causes:
        yield "nothing else was asked for: statements of the kernel, the target file or tilec itself changed"
    yield from map(str, causes)
    yield from map(str, prices)
    for change in found:
        if change.kind == "bound":
            yield str(change)
            already = {(bound["kind"], bound["name"]) for bound in old["bounds"] if bound["binds"]}
            newly = (b for b in new["bounds"] if b["binds"] and (b["kind"], b["name"]) not in already)
            yield from (f"{bound['kind']} {bound['name']}: {bound['culprit']}" for bound in newly)
    if (refuted := new.get("refutation")) and new["ii"] > new["mii"]:
        yield f"II {new['ii'] - 1:,} is impossible: {refuted.get('why')}"
    last = [change for change in found if change.subject == "the interval"]
    yield from map(str, last or [change for change in found if change.kind in ("stage", "ring")])


def _leading(old: dict[str, Any], new: dict[str, Any], found: Sequence[Change]) -> Iterator[Change]:
    """The changes of statements and rings that the bounds of either schedule are about; all of them, where none is."""
    concerned: set[tuple[str, str]] = set()
    for loop in (old, new):
        names = list(_statements(loop))
        for bound in loop["bounds"]:
            price = f"time in {bound['name']}" if bound["kind"] in ("slot", "density") else "latency"
            price = "issue" if price.startswith("time in issue (") else price
            concerned.update((names[op], price) for op in bound["ops"] if bound["binds"])
    limits = [change for change in found if change.subject.startswith("the most versions of ring ")]
    prices = [change for change in found if change.kind == "price"]
    leading = [change for change in prices if tuple(change.subject.split(": its ")) in concerned]
    yield from (change for change in found if change.kind == "statement")
    yield from limits
    yield from leading or ([] if limits else prices)
