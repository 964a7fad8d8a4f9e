"""Formats schedules and targets as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tilec.report.gantt import draw_gantt, get_letter, get_stage_style
from tilec.sched.model.roles import resolve_roles
from tilec.sched.model.stages import estimate_roofline
from tilec.sched.problem import UNLIMITED
from tilec.sched.solution import format_interval_range
from tilec.sched.trace import record_pool, record_refutation
from tilec.support import resources
from tilec.support.display import show_share
from tilec.target import table as target

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from tilec.passes.memory.split_staged_stores import StagedStore
    from tilec.sched.decision import Decision
    from tilec.sched.problem import Pool, Problem
    from tilec.sched.schedule import Schedule
    from tilec.sched.solution import Solution

_TIMELINE_COLUMNS = 64
"""Columns of one interval's drawing, if there is room."""


def create_table(title: str, *columns: str) -> Table:
    """Return an empty table with a title; columns are right-aligned unless their name begins with `<`."""
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "left" if column.startswith("<") else "right"
        table.add_column(column.removeprefix("<"), justify=justify, overflow="fold")
    return table


def build_decision_table(kernel: str, decisions: Sequence[Decision]) -> RenderableType:
    """Return a table of a kernel's decisions: the choice, who decided, the reason, and the prices of two or more
    choices."""
    table = create_table(f"{kernel}: decisions", "<what", "<decision", "<by", "<because")
    for decision in decisions:
        priced = [each for each in decision.alternatives if each.price is not None]
        weighed = "; ".join(f"{each.answer}: {each.price:,} {each.unit}" for each in priced)
        why = f"{decision.why}\n({weighed})" if len(priced) > 1 else decision.why
        table.add_row(decision.what, decision.chosen, decision.by, why)
    return table


def build_schedule_tables(
    problem: Problem, solution: Solution, width: int, line: int | None = None, kept: Sequence[tuple[int, str]] = ()
) -> Iterator[RenderableType]:
    """Yield the tables and drawings of a loop's schedule and its bounds, in lines of `width` columns. `line` is the
    loop's line in the kernel, if known; `kept` are statements without a choice of role, and the reasons."""
    schedule = solution.schedule
    with_candidates, problem = problem, resolve_roles(problem, schedule.role)
    place = f", line {line}" if line is not None else ""
    yield Text(f"{problem.name or 'loop'}{place}: II {schedule.ii} cycles, {schedule.status}", "bold")
    if solution.warning:
        yield Text(solution.warning, "yellow")
    yield Text()
    if solution.bounds.each:
        yield from (_build_bounds_table(solution), Text())
    if solution.attempts:
        yield from (_build_attempts_table(solution), Text())
    refuted = record_refutation(solution)
    if refuted is not None:
        families = ", ".join(refuted["families"]) or refuted["why"]
        yield from (Text(f"II {refuted['ii']} is impossible because of: {families}"), Text())
    if not problem.ops:
        return
    yield _build_ops_table(problem, schedule)
    yield from _describe_lags(problem, schedule)
    yield from _describe_role_choices(with_candidates, solution)
    yield from (Text(f"{op} {problem.ops[op].name} is run by {problem.ops[op].role}: {why}") for op, why in kept)
    yield from _describe_alternatives(problem, solution)
    yield Text()
    if problem.rings:
        yield from (_build_rings_table(problem, schedule), Text())
    if problem.pools:
        yield _build_pools_table(problem, schedule)
        if any(pool.name == "named_barriers" for pool in problem.pools):
            yield Text("named_barriers: counts barrier numbers, not the waits at them")
        yield Text()
    yield from (_draw_reservations(problem, schedule, width), Text(), draw_gantt(problem, schedule, width))


def build_stores_table(stores: Sequence[StagedStore]) -> Table:
    """Return a table of the stores of accumulators through shared memory, and the memory they take."""
    table = create_table("stores through shared memory", "<store", "chunks", "buffers", "bytes each", "bytes", "<by")
    for store in stores:
        numbers = (store.chunks, store.buffers, store.buffer_bytes, store.buffers * store.buffer_bytes)
        by = f"{store.parts} warpgroups, each its rows" if store.parts > 1 else "all together"
        table.add_row(Text(f"{store.source} → {store.destination}"), *(f"{n:,}" for n in numbers), by)
    return table


def build_role_tables(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield tables of the pipelines and roles of a kernel with explicit roles; nothing if tilec assigns the roles.
    `record` is the `tilec` member of a trace."""
    if record.get("pipelines"):
        made = create_table("pipelines", "<name", "<tiles", "stages", "bytes each", "bytes", "<filled by", "<taken by")
        for pipeline in record["pipelines"]:
            numbers = (f"{pipeline[key]:,}" for key in ("stages", "bytes", "total_bytes"))
            ends = (", ".join(pipeline[side]) for side in ("producers", "consumers"))
            made.add_row(Text(pipeline["name"]), Text(", ".join(pipeline["tiles"])), *numbers, *map(Text, ends))
        yield from (made, Text())
    for role in record.get("roles", ()):
        last = role["first_warp"] + role["warps"] - 1
        yield Text(f"{role['name']}, warps {role['first_warp']} to {last}: statements, as they run", "bold")
        made = create_table("", "line", "<statement")
        for statement in role["statements"]:
            made.add_row(str(statement["line"]), Text("  " * statement["depth"] + statement["name"]))
        yield from (made, Text())


def _build_bounds_table(solution: Solution) -> Table:
    """Return a table of the lower bounds on the interval, the highest first."""
    table = create_table("bounds on the interval", "II ≥", "<kind", "<because")
    bounds = solution.bounds
    for bound in sorted(bounds.each, key=lambda b: -b.ii):
        style = "bold" if bound.ii == bounds.mii else ""
        table.add_row(str(bound.ii), bound.kind, Text(bound.culprit), style=style)
    return table


def _build_attempts_table(solution: Solution) -> Table:
    """Return a table of the intervals that the solver tried, and their outcomes."""
    table = create_table("intervals tried", "II", "<outcome", "<how", "<why")
    for first, last in solution.ranges:
        table.add_row(format_interval_range(first, last), last.outcome, last.how, Text(last.why))
    return table


def _describe_lags(problem: Problem, schedule: Schedule) -> Iterator[Text]:
    """Yield a line for each further group of warps with the first one's code: how many cycles it runs behind."""
    first, *others = problem.copies[0] if problem.copies else (0,)
    for op in others:
        lag = schedule.start[op] - schedule.start[first]
        yield Text(f"{problem.ops[op].role} runs {lag:,} cycles behind {problem.ops[first].role}")


def _describe_role_choices(problem: Problem, solution: Solution) -> Iterator[Text]:
    """Yield a line with the chosen role of each statement that had a choice, and the reason; nothing without a rule's
    II."""
    schedule, by_rule = solution.schedule, solution.ii_by_rule
    if by_rule is None:
        return
    for op, (spec, role) in enumerate(zip(problem.ops, schedule.role, strict=True)):
        if len(spec.roles) > 1 and role is not None:
            others = ", ".join(problem.roles[r].name for r in spec.roles if r != role)
            because = f"no smaller II with {others}"
            if schedule.ii < by_rule:
                because = f"II {schedule.ii:,}, at least {by_rule:,} with the roles by rule"
            yield Text(f"{op} {spec.name} is run by {problem.roles[role].name}, not {others}: {because}")


def _describe_alternatives(problem: Problem, solution: Solution) -> Iterator[Text]:
    """Yield lines with the stages by the roofline and the II by heuristics, as far as they are known."""
    found = estimate_roofline(problem)
    if found is not None:
        stages = max(solution.schedule.stage, default=0) + 1
        share = f"⌈{found.memory_cycles:,} / {found.compute_cycles:,}⌉"
        yield Text(f"stages: {stages}; by the roofline {share} = {found.stages}")
    if solution.trials:
        reached = (f"{trial.arm} {'–' if trial.ii is None else trial.ii}" for trial in solution.trials)
        yield Text(f"II by heuristics: {', '.join(reached)}")


def _build_ops_table(problem: Problem, schedule: Schedule) -> Table:
    """Return a table of the statements in the order in which they issue."""
    heads = ("#", "<statement", "<role", "line", "stage", "start", "issue", "latency")
    table = create_table("statements, as they issue", *heads)
    for op in schedule.order:
        spec = problem.ops[op]
        line = f"{spec.file}:{spec.line}" if spec.file else str(spec.line)
        numbers = (schedule.stage[op], schedule.start[op], spec.issue, spec.latency)
        table.add_row(str(op), Text(spec.name), spec.role, line, *map(str, numbers))
    return table


def _build_rings_table(problem: Problem, schedule: Schedule) -> Table:
    """Return a table of the rings, with lifetime in cycles, depth and bytes."""
    table = create_table("rings", "<ring", "lifetime", "depth", "bytes each", "bytes")
    for ring, depth in zip(problem.rings, schedule.depth, strict=True):
        last = max((schedule.start[c] + problem.ops[c].latency for c in ring.consumers), default=0)
        first = min((schedule.start[p] for p in ring.producers), default=0)
        numbers = (last - first, depth, ring.bytes, depth * ring.bytes)
        table.add_row(Text(ring.name), *(f"{n:,}" for n in numbers))
    return table


def _build_pools_table(problem: Problem, schedule: Schedule) -> Table:
    """Return a table of how full each pool is at its fullest moment, and its capacity."""
    heads = ("<pool", "reserved", "rings", "values", "peak", "capacity", "carried")
    table = create_table("pools, at the worst moment", *heads)
    for index, pool in enumerate(problem.pools):
        held = record_pool(problem, schedule, index)
        numbers = (f"{held[amount]:,}" for amount in ("reserved", "rings", "values", "peak"))
        most = "" if pool.carried is None else f" of {pool.carried:,}"
        table.add_row(pool.name, *numbers, format_capacity(pool), f"{held['carried']:,}{most}")
    return table


def format_capacity(pool: Pool) -> str:
    """Return a pool's capacity as text, or `no limit`."""
    return "no limit" if pool.capacity >= UNLIMITED else f"{pool.capacity:,}"


def _draw_reservations(problem: Problem, schedule: Schedule, terminal: int) -> Group:
    """Return a drawing of one interval, slot by slot, with the statement that holds it: `·` is free, `+` held by
    several. A legend of the statements follows."""
    used = sorted({use.slot for op in problem.ops for use in op.uses})
    width = max((len(problem.slots[slot].name) for slot in used), default=0)
    cycles = -(-schedule.ii // min(_TIMELINE_COLUMNS, max(8, terminal - width - len("  100%"))))
    lines = [Text(f"reservation table: one interval, {cycles} cycle{'s' * (cycles > 1)} a column", "bold")]
    is_shared = False
    for slot in used:
        holders: list[set[int]] = [set() for _ in range(-(-schedule.ii // cycles))]
        busy = 0
        for number, op in enumerate(problem.ops):
            for use in op.uses:
                if use.slot == slot and use.cycles:
                    busy += use.cycles
                    first = schedule.start[number] + use.offset
                    for column in _list_columns(first, use.cycles, schedule.ii, cycles):
                        holders[column].add(number)
        is_shared |= any(len(h) > 1 for h in holders)
        row = Text(f"{problem.slots[slot].name:{width}} ")
        for held in holders:
            sign = "·" if not held else get_letter(min(held)) if len(held) == 1 else "+"
            row.append(sign, get_stage_style(schedule.stage[min(held)]) if held else "dim")
        row.append(f" {show_share(busy / (schedule.ii * problem.slots[slot].width)):>4}")
        lines.append(row)
    legend = [f"{get_letter(i)} {op.name}" for i, op in enumerate(problem.ops)] + ["+ several"] * is_shared
    stages = Text("colours are stages:", "dim")
    for stage in range(max(schedule.stage, default=0) + 1):
        stages.append(f" {stage}", get_stage_style(stage))
    lines.append(stages)
    return Group(*lines, *(Text(line, "dim") for line in _wrap_entries(legend, terminal)))


def _wrap_entries(entries: Sequence[str], width: int) -> list[str]:
    """Return entries, one at least, joined by two spaces into lines of `width` columns; only a longer entry exceeds
    it."""
    lines = [entries[0]]
    for entry in entries[1:]:
        if len(lines[-1]) + 2 + len(entry) <= width:
            lines[-1] += f"  {entry}"
        else:
            lines.append(entry)
    return lines


def _list_columns(first: int, held: int, ii: int, cycles: int) -> Iterator[int]:
    """Yield the columns that the cycles first … first + held − 1 fall into, modulo the interval, each of `cycles`
    cycles."""
    columns = -(-ii // cycles)
    if held >= ii:
        yield from range(columns)
        return
    start = first % ii
    if start + held <= ii:
        yield from range(start // cycles, (start + held - 1) // cycles + 1)
    else:
        yield from range(start // cycles, columns)
        yield from range((start + held - 1 - ii) // cycles + 1)


# ---- targets ---------------------------------------------------------------------------------------------------------


def build_target_list() -> Table:
    """Return a table of all targets that ship, with PTX version, shared memory and features."""
    table = create_table("", "<target", "<PTX", "shared memory", "<features")
    for name in resources.target_names():
        machine = target.load_target(name)
        smem = f"{machine.limit('smem_bytes_per_cta'):,}"
        table.add_row(name, f"{machine.ptx_version} {machine.ptx_target}", smem, ", ".join(machine.features))
    return table


def build_target_details(name: str, calibration: str) -> Group:
    """Return tables of one target's limits, GPUs, slots, pools and priced kinds, with the sources of the numbers."""
    machine = target.load_target(name, calibration)
    limits = create_table(f"{name}: limits", "<limit", "value", "<source", "<where")
    for limit in machine.limits:
        limits.add_row(limit.name, f"{limit.value:,}", limit.source.kind, Text(limit.source.where))
    gpus = create_table("GPUs, for --gpu", "<name", "<limit", "value", "<source", "<where")
    for gpu in machine.gpus:
        gpus.add_row(gpu.name, "", "", "", Text(gpu.what))
        for limit in (*gpu.limits, *gpu.families):
            gpus.add_row("", limit.name, f"{limit.value:,}", limit.source.kind, Text(limit.source.where))
    slots = create_table("slots", "<slot", "width")
    for slot in machine.slots:
        slots.add_row(slot.name, str(slot.width))
    pools = create_table("pools", "<pool", "capacity")
    for pool in machine.pools:
        pools.add_row(pool.name, f"{pool.capacity:,}")
    title = f"cycles that the kinds share, calibration {calibration}"
    shared = create_table(title, "<name", "cycles", "<source", "<where")
    for number_kind, numbers in (("family", machine.families), ("ceiling", machine.ceilings)):
        for number in numbers:
            source = number.source
            shared.add_row(f"{number_kind} {number.name}", f"{number.value:,}", source.kind, Text(source.where))
    heads = ("<kind", "<uses", "<issue", "<latency", "<source", "<where")
    kinds = create_table(f"instruction kinds, calibration {calibration}", *heads)
    for kind in machine.kinds:
        offsets = ("" if offset == "0" else f" at {offset}" for _, _, offset in kind.uses)
        uses = "; ".join(f"{use[0]} for {use[1]}{at}" for use, at in zip(kind.uses, offsets, strict=True))
        source = kind.source
        kinds.add_row(kind.name, Text(uses), Text(kind.issue), Text(kind.latency), source.kind, Text(source.where))
    weights = machine.weights
    score = (
        f"score of a layout: {weights.smem_transactions:g} × shared-memory transactions + {weights.tmem_cycles:g} × "
        f"tensor-memory cycles (0 for shared tiles) + {weights.live_registers:g} × live registers"
    )
    parts: list[RenderableType] = [limits, gpus, slots, pools, Text(score), shared, kinds]
    features = Text(f"features: {', '.join(machine.features)}")
    return Group(features, *(line for part in parts for line in (Text(""), part)))
