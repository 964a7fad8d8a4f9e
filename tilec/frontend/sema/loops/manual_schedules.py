"""Manual schedules: `stage`, `order` and related lists, checked against the statements of the loop.

The lists are arguments of T.Pipelined, or annotations of a plain loop.

A replayable bind needs no entry (see `analysis.scalar_definitions`). As in TileLang, lists may also have an entry for
each such bind, or for each name that gets a value (`sema.loops.schedule_lists`). Entries without a statement are
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tilec.analysis.copy_nests import convert_to_copy
from tilec.analysis.rings import is_load
from tilec.analysis.scalar_definitions import find_bind_users, find_needed_variables, find_scheduled_binds
from tilec.analysis.scheduling_hints import find_data_sources
from tilec.analysis.usage import find_reads, find_writes
from tilec.frontend.sema.loops import schedule_lists
from tilec.frontend.sema.loops.loop_headers import make_unknown_annotation_warning, read_annotations
from tilec.ir import tile
from tilec.ops.language.signature import Argument, Call
from tilec.ops.language.values import describe_value
from tilec.support.diagnostics import RAISE_FIRST, CompileError, ErrorCollector, Label, Warn, make_warning, raise_error
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

ANNOTATION_KEYS = {
    "num_stages": "num_stages",
    "software_pipeline_stage": "stage",
    "software_pipeline_order": "order",
    "software_pipeline_async_stages": "async_stages",
    "software_pipeline_async_producers": "async_producers",
    "software_pipeline_async_producer_groups": "async_producer_groups",
}
"""The loop annotations that control pipelining, and the key of each in a `ScheduleRequest`."""

MAX_STAGES = 64
UNROLL_ANNOTATIONS = ("pragma_unroll_explicit", "pragma_unroll_factor")  # read with the loop's head


@dataclass(frozen=True, slots=True)
class ManualSchedule:
    """The lists of a loop, and its `body`, in which nests that must be asynchronous are copies."""

    body: tuple[tile.Stmt, ...]
    num_stages: int | None = None
    stage: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    scheduling_hints: tile.SchedulingHints | None = None


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """The scheduling arguments of a loop, by the keys of `ANNOTATION_KEYS` and the parameters of T.Pipelined; `spelled`
    has the spelling of each key in the source."""

    loop: str
    arguments: dict[str, Argument]
    spelled: dict[str, str]

    def quote_key(self, key: str) -> str:
        """Return the spelling of a scheduling argument in the source, in backquotes."""
        return f"`{self.spelled[key]}`"

    def format_list(self, key: str, entries: tuple[int, ...]) -> str:
        """Return a list as source text: `stage=[0, 1]`, or `"software_pipeline_stage": [0, 1]` for an annotation."""
        spelled = self.spelled[key]
        return f"{spelled}={list(entries)}" if spelled == key else f'"{spelled}": {list(entries)}'


def read_schedule_request(call: Call, warn: Warn) -> ScheduleRequest:
    """Collect a loop's scheduling arguments and annotations without empty lists; warn of unknown ones, refuse repeated
    ones.
    """
    found: dict[str, Argument] = {}
    spelled: dict[str, str] = {}
    for key in ("num_stages", "stage", "order", "sync", "group"):
        if key in call.arguments and call[key].value not in (None, ()):
            found[key], spelled[key] = call[key], key
    for written, argument in read_annotations(call):
        if written in UNROLL_ANNOTATIONS and "unroll_factor" in call.arguments:
            continue
        if written not in ANNOTATION_KEYS:
            warn(make_unknown_annotation_warning(call, written, argument, ANNOTATION_KEYS))
            continue
        key = ANNOTATION_KEYS[written]
        if key in found:
            first = Label(found[key].span, "given here already")
            raise_error("duplicate-argument", f"{call.name} gets `{key}` twice", argument.span, secondary=(first,))
        if argument.value != ():
            found[key], spelled[key] = argument, written
    return ScheduleRequest(call.name, found, spelled)


def build_manual_schedule(
    request: ScheduleRequest,
    body: tuple[tile.Stmt, ...],
    warn: Warn,
    converted_ifs: list[schedule_lists.ConvertedIf],
    names: Sequence[schedule_lists.ElidedBind] = (),
    mistakes: ErrorCollector = RAISE_FIRST,
) -> ManualSchedule:
    """Build a loop's manual schedule from its lists, checked against its body; one without lists if they are wrong.

    The statements of each of `converted_ifs` count as one, and lists may have entries for `names`. Lists with mistakes
    are ignored, after the mistakes are recorded.
    """
    known = mistakes.met
    with mistakes.caught():
        manual = _build_schedule(request, body, warn, converted_ifs, names, mistakes)
        if mistakes.met == known:
            return manual
    return ManualSchedule(body)


def _build_schedule(
    request: ScheduleRequest,
    body: tuple[tile.Stmt, ...],
    warn: Warn,
    converted_ifs: list[schedule_lists.ConvertedIf],
    names: Sequence[schedule_lists.ElidedBind],
    mistakes: ErrorCollector,
) -> ManualSchedule:
    """Build the schedule from the lists, or raise CompileError for wrong ones; without `stage`, keep only
    `num_stages`.
    """
    num_stages = None
    with mistakes.caught():
        num_stages = _read_num_stages(request)
    given = [key for key in ("order", "stage") if key in request.arguments]
    if len(given) == 1:
        _refuse_lone_list(request, given[0])
    if not given:
        extra = next((k for k in request.arguments if k != "num_stages"), None)
        if extra is not None:
            title = f"{request.quote_key(extra)} without stages"
            note = "it refines `stage` and `order`, which are missing"
            way_out = "give `stage` and `order` too, or remove it"
            raise_error("manual-schedule", title, request.arguments[extra].span, note, help=way_out)
        return ManualSchedule(body, num_stages)
    if num_stages == 0:
        num_stages = None  # the default, which does not override the lists
    counted, standing = schedule_lists.insert_elided_binds(body, names)
    counted, parts = schedule_lists.gather_converted_ifs(counted, converted_ifs)
    entries = _ScheduleLists(request, schedule_lists.ListForms(counted, standing), mistakes)
    known = mistakes.met
    stage: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    with mistakes.caught():
        stage = entries.read_stages()
    with mistakes.caught():
        order = entries.read_order()
    if not stage and mistakes.met == known:
        return ManualSchedule(body, num_stages=0)  # nothing to overlap
    if mistakes.met == known:
        entries.check_binds(stage, order)
        if num_stages is not None:
            _warn_of_depth_override(request, num_stages, max(stage) + 1, warn)
    scheduling_hints = entries.build_scheduling_hints(stage, warn)
    if mistakes.met > known:
        raise CompileError
    entries.warn_of_legacy_entries(warn)
    written = tuple(parts.get(IdentityKey(s), (s,)) for s in entries.convert_nests_to_copies(scheduling_hints))
    scheduled = tuple(group for group, r in zip(written, entries.replayed, strict=True) if not r)
    scheduled_body = tuple(s for group in written for s in group if IdentityKey(s) not in standing)
    return ManualSchedule(
        scheduled_body, num_stages, *schedule_lists.expand_schedule_lists(stage, order, scheduling_hints, scheduled)
    )


def _read_num_stages(request: ScheduleRequest) -> int | None:
    """Return `num_stages` of a request, or None if absent; refuse anything but an integer of at least 0."""
    if "num_stages" not in request.arguments:
        return None
    argument = request.arguments["num_stages"]
    value = argument.value
    if not isinstance(value, int) or isinstance(value, bool):
        wanted = "must be an integer known at compile time"
        title = f"{request.loop}: {request.quote_key('num_stages')} {wanted}"
        raise_error("wrong-argument", title, argument.span, describe_value(value))
    if value < 0:
        raise_error("wrong-argument", f"{request.loop}: num_stages must not be negative", argument.span)
    return value


def _refuse_lone_list(request: ScheduleRequest, key: str) -> NoReturn:
    """Raise `manual-schedule`: `stage` is given without `order`, or `order` without `stage`."""
    missing = "stage" if key == "order" else "order"
    title = f"{request.quote_key(key)} without `{request.spelled[key].replace(key, missing)}`"
    note = f"{request.loop} needs both or neither"
    way_out = "remove it, and tilec solves the schedule"
    raise_error("manual-schedule", title, request.arguments[key].span, note, help=way_out)


def _find_written_operand(bind: tile.Stmt, body: tuple[tile.Stmt, ...]) -> str:
    """Return the name of the first buffer that a bind reads and some statement of the body writes."""
    written = {b.name for s in body for b in find_writes(s)}
    return next(b.name for b in find_reads(bind) if b.name in written)


def _warn_of_depth_override(request: ScheduleRequest, num_stages: int, implied: int, warn: Warn) -> None:
    """Warn that `num_stages` overrides the number of tile versions that `stage` implies, even if they are equal."""
    if num_stages == implied:
        label = f"`stage` alone means {implied} versions of each tile"
    else:
        label = f"each tile has {num_stages} version{'s' * (num_stages != 1)}, not the {implied} that `stage` means"
    title, span = "num_stages overrides the depth of a manual schedule", request.arguments["num_stages"].span
    place = Label(request.arguments["stage"].span, f"max(stage) + 1 is {implied}")
    way_out = "remove num_stages unless this is intended"
    warn(make_warning("depth-override", title, span, label, secondary=(place,), help=way_out))


class _ScheduleLists:
    """The lists of one loop, checked against its statements."""

    def __init__(self, request: ScheduleRequest, forms: schedule_lists.ListForms, mistakes: ErrorCollector) -> None:
        self.request, self.forms, self.mistakes = request, forms, mistakes
        self.body, self.replayed, self.statements = forms.body, forms.replayed, forms.statements
        self.lists: dict[str, tuple[int, ...]] = {}  # without entries for replayed binds
        self.longest = 0
        self.is_misfit = False  # whether a list with a wrong length has been reported

    # ---- the lists ----

    def read_stages(self) -> tuple[int, ...]:
        """Return the list `stage`; refuse a wrong length, negative entries and more than `MAX_STAGES` stages."""
        stage = self.read_list("stage")
        self.refuse_negative_entries("stage", stage)
        self.refuse_deep_stage(stage)
        return stage

    def read_order(self) -> tuple[int, ...]:
        """Return the list `order` as ranks from 0, without gaps; refuse a wrong length, negative or equal entries."""
        order = self.read_list("order")
        self.refuse_negative_entries("order", order)
        self.refuse_duplicates(order)
        ranks = {o: rank for rank, o in enumerate(sorted(order))}
        self.lists["order"] = tuple(ranks[o] for o in order)
        return self.lists["order"]

    def read_integers(self, key: str) -> tuple[int, ...]:
        """Return an argument that is a list of integers; refuse any other, but allow booleans in `async_producers`."""
        argument = self.request.arguments[key]
        value = argument.value
        items = value if isinstance(value, tuple) else ()
        entries = tuple(
            v for v in items if isinstance(v, int) and (key == "async_producers" or not isinstance(v, bool))
        )
        if not isinstance(value, tuple) or len(entries) < len(value):
            odd = next((v for v in items if not isinstance(v, int) or isinstance(v, bool)), value)
            title = f"{self.request.loop}: {self.request.quote_key(key)} is a list of integers"
            note = f"it holds {describe_value(odd)}" if items else f"this is {describe_value(value)}"
            raise_error("wrong-argument", title, argument.span, note)
        return entries

    def read_list(self, key: str) -> tuple[int, ...]:
        """Return a list's entries for the scheduled statements, and record them; refuse a length that fits no form."""
        entries = self.read_integers(key)
        if len(entries) not in self.forms.lengths:
            self.refuse_length(key, len(entries))
        if self.lists and len(entries) != self.longest:
            self.refuse_mixed_lengths(key, len(entries))
        self.longest = len(entries)
        self.lists[key] = self.forms.select_statement_entries(entries)
        return self.lists[key]

    @property
    def has_bind_entries(self) -> bool:
        """Return whether the lists are longer than the statements, so have entries for replayed binds or names too."""
        return self.longest > len(self.statements)

    def refuse_mixed_lengths(self, key: str, found: int) -> NoReturn:
        """Raise `manual-schedule`: a list has another length than the lists read before it."""
        self.report_length_once()
        first = next(iter(self.lists))
        title = f"{self.request.quote_key(key)} has {found} entries, {self.request.quote_key(first)} has {self.longest}"
        note = "one of the lists has entries for replayed binds"
        place = Label(self.request.arguments[first].span, f"{self.longest} entries")
        way_out = f"write {len(self.statements)} in both: such binds need none"
        raise_error("manual-schedule", title, self.request.arguments[key].span, note, secondary=(place,), help=way_out)

    def report_length_once(self) -> None:
        """Note that a wrong list length is being reported; raise an empty CompileError if one was before. Lists mostly
        miss the same statement.
        """
        if self.is_misfit:
            raise CompileError
        self.is_misfit = True

    def refuse_length(self, key: str, found: int) -> NoReturn:
        """Raise `manual-schedule` for a list of the wrong length, labelling the statements that need an entry."""
        self.report_length_once()
        wanted = len(self.statements)
        lines = ", ".join(str(s.span.line) for s in self.statements)
        notes = []
        for bind in find_scheduled_binds(self.body):
            read = f"it reads {_find_written_operand(bind, self.body)}, which the loop writes"
            notes.append(f"`{bind.var.name}` in {bind.span.place} needs an entry: {read}")
        aliases = [s.var.name for s, r in zip(self.body, self.replayed, strict=True) if r and isinstance(s, tile.Bind)]
        if aliases:
            verb = "needs" if len(aliases) == 1 else "need"
            names = " and ".join(f"`{a}`" for a in aliases)
            notes.append(f"{names} {verb} no entry: binds are replayed at each use")
        title = f"{self.request.quote_key(key)} has {found} entr{'y' if found == 1 else 'ies'}"
        title += f" for {wanted} statement{'s' * (wanted != 1)}"
        note, span = f"one entry for the statement on each of the lines {lines}", self.request.arguments[key].span
        places = tuple(Label(s.span, f"statement {i}") for i, s in enumerate(self.statements))
        raise_error("manual-schedule", title, span, note, secondary=places, notes=tuple(notes))

    def refuse_negative_entries(self, key: str, values: tuple[int, ...]) -> None:
        """Raise `manual-schedule` if a list holds a negative number."""
        low = min(values, default=0)
        if low < 0:
            title = f"{self.request.quote_key(key)} must not hold negative numbers"
            note = f"this holds {low}"
            place = Label(self.statements[values.index(low)].span, f"the statement with {low}")
            raise_error("manual-schedule", title, self.request.arguments[key].span, note, secondary=(place,))

    def refuse_deep_stage(self, stage: tuple[int, ...]) -> None:
        """Raise `manual-schedule` if `stage` holds `MAX_STAGES` or more: the prologue has code for each stage."""
        high = max(stage, default=0)
        if high >= MAX_STAGES:
            title = f"{self.request.quote_key('stage')} holds {high}"
            note = f"a pipeline has at most {MAX_STAGES} stages"
            place = Label(self.statements[stage.index(high)].span, f"stage {high}")
            raise_error("manual-schedule", title, self.request.arguments["stage"].span, note, secondary=(place,))

    def refuse_duplicates(self, order: tuple[int, ...]) -> None:
        """Raise `manual-schedule` if two entries of `order` are equal."""
        twice = next((o for o in order if order.count(o) > 1), None)
        if twice is not None:
            same = [s for s, o in zip(self.statements, order, strict=True) if o == twice]
            title = f"two statements have the same number in {self.request.quote_key('order')}"
            places, span = tuple(Label(s.span, f"order {twice}") for s in same), self.request.arguments["order"].span
            raise_error("manual-schedule", title, span, f"{twice} appears twice", secondary=places)

    # ---- binds ----

    def check_binds(self, stage: tuple[int, ...], order: tuple[int, ...]) -> None:
        """Record an error for each scheduled bind that is used in another stage or before it: a bind has no storage."""
        for number, users in find_bind_users(self.body):
            bind = self.statements[number]
            assert isinstance(bind, tile.Bind)
            early = (u for u in users if stage[u] != stage[number] or order[u] < order[number])
            user = next(early, None)
            if user is not None:
                user_place = stage[user], order[user]
                with self.mistakes.caught():
                    self.refuse_bind_use(bind, self.statements[user], (stage[number], order[number]), user_place)

    def refuse_bind_use(
        self, bind: tile.Bind, user: tile.Stmt, bind_at: tuple[int, int], user_at: tuple[int, int]
    ) -> NoReturn:
        """Raise `bind-stage`: a statement uses a bind in another stage, or before the bind has its value."""
        name, read = bind.var.name, _find_written_operand(bind, self.body)
        problem = "before it has its value"
        help = f"give `{name}` a lower place in `order` than the statement that uses it"
        if bind_at[0] != user_at[0]:
            problem = "in another stage"
            help = f"give both one stage, or store the value to a shared tile: it has versions, `{name}` has none"
        note = f"uses `{name}` in stage {user_at[0]}, place {user_at[1]} of the order"
        place = Label(bind.span, f"reads {read}, which the loop writes: stage {bind_at[0]}, place {bind_at[1]}")
        raise_error("bind-stage", f"`{name}` is used {problem}", user.span, note, secondary=(place,), help=help)

    def warn_of_legacy_entries(self, warn: Warn) -> None:
        """Warn if the lists have an entry for a replayed bind that several statements use: it is ignored."""
        if not self.has_bind_entries:
            return
        needed = find_needed_variables(self.body)
        for bind, is_replayed, is_name in zip(self.body, self.replayed, self.forms.is_name, strict=True):
            if not is_replayed or is_name or not isinstance(bind, tile.Bind):
                continue
            numbered = enumerate(zip(self.body, self.replayed, strict=True))
            users = [s for number, (s, r) in numbered if not r and bind.var in needed[number]]
            if len(users) > 1:
                shorter = ", ".join(self.request.format_list(key, entries) for key, entries in self.lists.items())
                title = f"the entries for `{bind.var.name}` are ignored: it is replayed at each use"
                note = f"{self.longest} entries for {len(self.statements)} statements"
                places = Label(bind.span, "not scheduled"), *(Label(u.span, "uses it") for u in users)
                span, way_out = self.request.arguments["stage"].span, f"write {shorter}"
                warn(make_warning("legacy-schedule", title, span, note, secondary=places, help=way_out))

    # ---- other lists ----

    def build_scheduling_hints(self, stage: tuple[int, ...], warn: Warn) -> tile.SchedulingHints:
        """Read the lists for asynchronous statements, groups and waits, recording the mistakes in them. `stage` is
        empty if it has mistakes.
        """
        arguments = self.request.arguments
        producers = groups = None
        sync = None
        with self.mistakes.caught():
            producers = self.read_asynchronous(stage, warn)
        with self.mistakes.caught():
            groups = self.read_groups(producers)
        with self.mistakes.caught():
            sync = self.read_sync(warn) if "sync" in arguments else None
        return tile.SchedulingHints(producers, groups, sync, arguments["stage"].span)

    def read_sync(self, warn: Warn) -> tuple[tuple[int, ...], ...]:
        """Return `sync`: for each statement the numbers of those it waits for; refuse what does not precede it or
        writes nothing.
        """
        argument = self.request.arguments["sync"]
        waits = self.read_index_lists("sync")
        if len(waits) != len(self.statements):
            self.refuse_length("sync", len(waits))
        wrong = [
            (i, j) for i, awaited in enumerate(waits) for j in awaited if j >= i or not find_writes(self.statements[j])
        ]
        if wrong:
            (waiting, number), *others = wrong
            is_later = number >= waiting
            places = dict.fromkeys((waiting, number))
            title = f"statement {waiting} cannot wait for statement {number}"
            note = self.explain_impossible_wait(waiting, number)
            labels = tuple(Label(self.statements[place].span, f"statement {place}") for place in places)
            notes = tuple(
                f"nor can statement {i} for statement {j}: {self.explain_impossible_wait(i, j)}" for i, j in others
            )
            way_out = "set the sequence of the two with `order`" if is_later else f"remove {number}"
            raise_error("manual-schedule", title, argument.span, note, secondary=labels, notes=notes, help=way_out)
        self.warn_of_missing_waits(waits, warn)
        return waits

    def explain_impossible_wait(self, waiting: int, number: int) -> str:
        """Return the reason why one statement cannot wait for another: it is not earlier, or it writes nothing."""
        if number >= waiting:
            return "a statement can wait only for earlier ones of the same iteration"
        return f"statement {number} writes no tile and no tensor"

    def warn_of_missing_waits(self, waits: tuple[tuple[int, ...], ...], warn: Warn) -> None:
        """Warn of the first statement that reads what an earlier one writes without waiting for that statement by
        `sync`.
        """
        needed = [find_data_sources(self.statements, i) for i in range(len(self.statements))]
        absent = [(i, j) for i, js in enumerate(needed) for j in js if j not in waits[i]]
        if not absent:
            return
        waiting, awaited = absent[0]
        read = {b.name for b in find_reads(self.statements[waiting])}
        buffer = next(b.name for b in find_writes(self.statements[awaited]) if b.name in read)
        whole = [sorted({*given, *js}) for given, js in zip(waits, needed, strict=True)]
        title = f"statement {waiting} must also wait for statement {awaited}, which `sync` does not list"
        note, span = f"statement {waiting} reads {buffer}", self.request.arguments["sync"].span
        reader = Label(self.statements[waiting].span, f"statement {waiting}")
        writer = Label(self.statements[awaited].span, f"statement {awaited} writes {buffer}")
        way_out = f"write sync={whole}"
        warn(make_warning("sync-incomplete", title, span, note, secondary=(reader, writer), help=way_out))

    def read_asynchronous(self, stage: tuple[int, ...], warn: Warn) -> tuple[bool, ...] | None:
        """Return, by two lists, whether each statement must be asynchronous, None without them; refuse or record
        impossible flags. Of both, `async_producers` counts; `async_stages` means only the loads of shared tiles in its
        stages. Refused is a stage without statements; recorded is a flag on what cannot be asynchronous.
        """
        arguments = self.request.arguments
        found = None
        if "async_stages" in arguments and stage:
            stages = self.read_integers("async_stages")
            absent = [s for s in stages if s not in stage]
            if absent:
                title = f"{self.request.quote_key('async_stages')} names a stage without statements"
                note = f"no statement has stage {absent[0]}"
                place = Label(arguments["stage"].span, "the stages")
                raise_error("manual-schedule", title, arguments["async_stages"].span, note, secondary=(place,))
            found = tuple(
                s in stages and _is_shared_tile_load(stmt) for s, stmt in zip(stage, self.statements, strict=True)
            )
            begun = {s for s, flag in zip(stage, found, strict=True) if flag}
            if idle := [s for s in stages if s not in begun]:
                title, span = f"nothing in stage {idle[0]} can be asynchronous", arguments["async_stages"].span
                note = "only copies from a tensor to a shared tile can be asynchronous"
                within = (stmt for s, stmt in zip(stage, self.statements, strict=True) if s == idle[0])
                places = tuple(Label(stmt.span, f"stage {idle[0]}") for stmt in within)
                warn(make_warning("hint-not-used", title, span, note, secondary=places, help=f"remove {idle[0]}"))
        if "async_producers" in arguments:
            flags = self.read_list("async_producers")
            found = tuple(bool(f) for f in flags)
            for stmt, flag in zip(self.statements, flags, strict=True):
                if flag not in (0, 1):
                    name = self.request.quote_key("async_producers")
                    title = f"{name} holds 0 and 1"
                    raise_error("manual-schedule", title, arguments["async_producers"].span, f"not {flag}")
                if flag and not _is_shared_tile_load(stmt):
                    with self.mistakes.caught():
                        title = "this statement cannot be asynchronous"
                        note = "not a copy from a tensor to a shared tile"
                        place = Label(arguments["async_producers"].span, "requested here")
                        way_out = "give it the entry 0"
                        raise_error("async-impossible", title, stmt.span, note, secondary=(place,), help=way_out)
        return found

    def convert_nests_to_copies(self, scheduling_hints: tile.SchedulingHints) -> tuple[tile.Stmt, ...]:
        """Return the body with each T.Parallel nest that must be asynchronous replaced by a copy, if it can be one."""
        flags = iter(scheduling_hints.asynchronous or ())
        wanted = [not is_replayed and next(flags, False) for is_replayed in self.replayed]
        return tuple(
            (convert_to_copy(s) or s) if hint and isinstance(s, tile.Parallel) else s
            for s, hint in zip(self.body, wanted, strict=True)
        )

    def read_groups(self, producers: tuple[bool, ...] | None) -> tuple[int, ...] | None:
        """Return each statement's producer group, -1 for none, or None without such a list; refuse a statement in two
        groups. The lists are `async_producer_groups` and `group`.
        """
        arguments = self.request.arguments
        if "async_producer_groups" in arguments:
            groups = self.read_list("async_producer_groups")
            for stmt, group, producer in zip(self.statements, groups, producers or (True,) * len(groups), strict=True):
                if group < -1 or (group >= 0 and not producer):
                    reason = "is not an asynchronous producer" if group >= 0 else "belongs to no group: write -1"
                    title = f"{self.request.quote_key('async_producer_groups')} does not fit the producers"
                    span, place = arguments["async_producer_groups"].span, Label(stmt.span, reason)
                    raise_error("manual-schedule", title, span, f"holds {group}", secondary=(place,))
            return groups
        if "group" not in arguments:
            return None
        found = [-1] * len(self.statements)
        for number, members in enumerate(self.read_index_lists("group")):
            for member in members:
                if found[member] >= 0:
                    title = "a statement is in two groups"
                    note = f"statement {member} appears twice"
                    place = Label(self.statements[member].span, f"statement {member}")
                    raise_error("manual-schedule", title, arguments["group"].span, note, secondary=(place,))
                found[member] = number
        return tuple(found)

    def read_index_lists(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Return an argument that is a list of lists of statement numbers; refuse other values and unknown numbers."""
        argument = self.request.arguments[key]
        value = argument.value
        lists = value if isinstance(value, tuple) else None
        if lists is None or not all(isinstance(m, tuple) and all(type(i) is int for i in m) for m in lists):
            title = f"{self.request.loop}: {self.request.quote_key(key)} is a list of lists of integers"
            raise_error("wrong-argument", title, argument.span, f"this is {describe_value(value)}")
        found = tuple(tuple(i for i in m if isinstance(i, int)) for m in lists if isinstance(m, tuple))
        wrong = next((i for m in found for i in m if not 0 <= i < len(self.statements)), None)
        if wrong is not None:
            title = f"{self.request.quote_key(key)} names statement {wrong} of {len(self.statements)}"
            places = tuple(Label(s.span, f"statement {i}") for i, s in enumerate(self.statements))
            raise_error("manual-schedule", title, argument.span, "statements are counted from 0", secondary=places)
        return found


def _is_shared_tile_load(stmt: tile.Stmt) -> bool:
    """Return whether a statement copies from a tensor to a shared tile, or is a nest that can become such a copy."""
    if isinstance(stmt, tile.Parallel):
        return convert_to_copy(stmt) is not None
    return isinstance(stmt, tile.TileOp) and is_load(stmt)
