"""The loops of a kernel body to tile IR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tilec.frontend.sema import stages, tile_scheduler
from tilec.frontend.sema.functions import bind_target
from tilec.frontend.sema.jumps import has_break, spelled, structured
from tilec.frontend.sema.linear_resources import Ledger, Path
from tilec.frontend.sema.loops import (
    LOOP_BREAK,
    NESTS,
    PERSISTENT,
    SEQUENTIAL,
    header,
    nest_header,
    persistent,
    unroll_factor,
    unrolled,
)
from tilec.frontend.sema.manual_schedules import asked, manual_schedule
from tilec.frontend.sema.per_thread import PerThread
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ir.expr import constant
from tilec.ir.tile import (
    Binary,
    Bind,
    Break,
    Expr,
    For,
    If,
    Load,
    LoopLayout,
    Parallel,
    Stmt,
    Var,
    While,
    integer,
    walk_expr,
)
from tilec.ir.types import BOOL, INT32
from tilec.ops import arithmetic
from tilec.ops.atomic import merged
from tilec.ops.python import is_iterable, items
from tilec.ops.signature import Argument, bind
from tilec.ops.threads import BINDING
from tilec.ops.values import EXPR_TYPES, describe, show_shape
from tilec.passes.analysis.copy_nests import as_copy
from tilec.passes.analysis.gathers import gathered
from tilec.support.diagnostics import Label, Mistakes, fail, warning
from tilec.support.source import Span

_LEAVABLE = ("while", "range", "T.serial", "T.Serial", PERSISTENT.name)
_UNROLLED = ("T.unroll", "T.Unroll")
_AT_ONCE = 256  # two for each thread of most blocks


@dataclass(slots=True)
class Loops(PerThread):
    """`withs` are the `with`s in the innermost loop; `asides` is what is wrong with how loops are to be scheduled,
    without which the kernel is whole. `ledger` has what must be given back exactly once, the stages of `pipelines`."""

    asides: Mistakes = field(default_factory=Mistakes)
    withs: int = 0
    pipelines: stages.Pipelines = field(default_factory=stages.Pipelines)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.mistakes)

    def block(self, statements: tuple[ast.Stmt, ...]) -> None:
        raise NotImplementedError

    # ---- regions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, name: str, is_loop: bool) -> Iterator[list[Stmt]]:
        """Statements inside go to a list of their own, and names bound inside end with it."""
        outer_scope, outer_out = self.scope, self.out
        self.scope, self.out = Scope(outer_scope, name, is_loop), []
        try:
            yield self.out
            self.scope.close()
        finally:
            self.scope, self.out = outer_scope, outer_out

    def for_(self, node: ast.For) -> None:
        path = self.callee(node.iterable) if isinstance(node.iterable, ast.Call) else None
        if (
            not isinstance(node.iterable, ast.Call)
            or path is None
            or path not in (*NESTS, *SEQUENTIAL, PERSISTENT.name, BINDING.name)
        ):
            value = self.value(node.iterable)
            if is_iterable(value):
                self._unrolled(node, Argument(value, node.iterable.span))
                return
            fail(
                "not-a-loop",
                "a loop runs over T.serial, T.Parallel, T.Pipelined, T.unroll or range",
                node.iterable.span,
                f"this is {describe(value)}",
            )
        if path == BINDING.name:
            self._threads(node, node.iterable)
            return
        if path in NESTS:
            self._parallel(node, node.iterable, path)
            return
        if self.is_parallel:
            fail(
                "loop-in-parallel",
                f"{path} cannot stand inside {self.nest_name}",
                node.iterable.span,
                help=f"put the loop outside and {self.nest_name} inside"
                + ", or use T.reduce_sum and its like" * (self.nest_name == "T.Parallel"),
            )
        if path in SEQUENTIAL:
            self._sequential(node, node.iterable, path)
        else:
            self._persistent(node, node.iterable)

    def _unrolled(self, node: ast.For, given: Argument) -> None:
        """A loop over values known at compile time: its body once for each."""
        for item in items(given.value, given.span):
            self.budget.step(node.span)
            bind_target(self.scope, node.target, Argument(item, given.span))
            self.block(node.body)

    def _threads(self, node: ast.For, iterable: ast.Call) -> None:
        """Each thread makes one trip, that of its index."""
        (name,) = self.target_names(node.target, 1)
        index = self.place(bind(BINDING, *self.operands(iterable), iterable.span))
        with self.region("the loop", is_loop=False) as out:
            self.scope.bind(name.id, index, name.span)
            self.block(node.body)
        self.out += out

    def while_(self, node: ast.While) -> None:
        self.together(node.condition.span, "a while")
        if self.is_parallel:
            fail(
                "loop-in-parallel",
                f"a while cannot stand inside {self.nest_name}",
                node.condition.span,
                "each thread would run as often as it likes",
                help=f"put the loop outside and {self.nest_name} inside",
            )
        if (scheduler := tile_scheduler.of_loop(self, node)) is not None:
            tile_scheduler.loop(self, node, scheduler)
            return
        with self.region("the loop", is_loop=True) as out:
            condition = arithmetic.condition(self.operand(node.condition))
            if out:
                fail(
                    "misplaced-statement",
                    "this condition takes more than reading: a `while` has no place for that",
                    node.condition.span,
                    help="write `while True:`, and in it `if` and `break`; or set what T.alloc_var makes in each trip",
                )
            if isinstance(condition, bool) and not has_break(spelled(node.body, self.is_break)):
                fail(
                    "infinite-loop",
                    "the condition of this loop never changes",
                    node.condition.span,
                    f"always {condition}",
                    help="let it depend on what T.alloc_var makes or on a buffer that the loop writes, or use `break`",
                )
            if isinstance(condition, EXPR_TYPES):
                self.alike(condition, node.condition.span, "the condition of a while")
            with self.guarded(), self.loop("while", node.condition.span):
                self.block(self.trip(node.body))
        test = constant(condition, BOOL) if isinstance(condition, bool) else condition
        assert isinstance(test, EXPR_TYPES), "a condition is a bool or an expression"
        self.out.append(While(test, tuple(out), node.span))

    @contextmanager
    def loop(self, kind: str, span: Span) -> Iterator[None]:
        """Inside is a trip of a loop of this kind, which `break` leaves."""
        self.loops.append(kind)
        self.pipelines.looked.clear()  # in the next trip it would be about another stage
        outer, self.withs = self.withs, 0
        try:
            with self.ledger.loop(Path(span, "the next trip begins with it")):
                yield
        finally:
            self.loops.pop()
            self.pipelines.looked.clear()
            self.withs = outer

    def trip(self, body: tuple[ast.Stmt, ...]) -> tuple[ast.Stmt, ...]:
        """The body of a loop, of which no statement jumps."""
        return structured(spelled(body, self.is_break))

    def is_break(self, call: ast.Call) -> bool:
        """Whether this is T.loop_break(), by whatever name it came in."""
        match call.function:
            case ast.Attribute(name=name) | ast.Name(id=name) if name == "loop_break":
                return self.callee(call) == LOOP_BREAK.name and not call.args and not call.keywords
            case _:
                return False

    def leave(self, node: ast.Break | ast.Continue) -> None:
        word = "break" if isinstance(node, ast.Break) else "continue"
        if not self.loops:
            fail("misplaced-statement", f"`{word}` stands in no loop", node.span)
        if self.withs:
            fail(
                "misplaced-statement",
                f"`{word}` stands in a `with` inside the loop",
                node.span,
                help="put what it skips under an `if`, or acquire by `.acquire_stage()`, and release before it",
            )
        assert isinstance(node, ast.Break), "a continue is an empty rest of the trip"
        self.together(node.span, "`break`")
        if self.loops[-1] not in _LEAVABLE:
            fail(
                "misplaced-statement",
                f"{self.loops[-1]} cannot be left with `break`",
                node.span,
                "its trips do not run one after another",
                help="use T.serial, or guard the rest of the body with `if`",
            )
        self.ledger.leave(node.span, word)
        self.out.append(Break(node.span))

    def _sequential(self, node: ast.For, iterable: ast.Call, path: str) -> None:
        kind, signature = SEQUENTIAL[path]
        with self.held():
            call = bind(signature, *self.arguments(iterable), iterable.span)
        wanted = asked(call, self.warn)
        own = self.own(header(call), iterable.span)
        bounds = self.common(own, iterable.span)
        (name,) = self.target_names(node.target, 1)
        var = Var(self.unique.take(name.id))
        wrong = self.mistakes.met
        with self.region("the loop", is_loop=True) as out:
            if bounds.values is not None:
                self.ranges[var.name] = bounds.values
            with self.loop(path, iterable.span), self.own_trips(own, bounds, var) as value:
                self.scope.bind(name.id, value, name.span)
                self.block(self.trip(node.body))
        body = tuple(out)
        loop = self.over_registers(For(kind, var, bounds.start, bounds.stop, bounds.step, body, span=node.span))
        if self.mistakes.met > wrong:
            # What the loop is to do with its statements cannot be judged.
            self.out.append(replace(loop, kind="serial"))
            return
        if path in _UNROLLED:
            factor = unroll_factor(call, bounds)
            loop = unrolled(loop, factor, iterable.span)
        if wanted.arguments or kind == "pipelined":
            names = tuple(named for named in self.names if named.out is out)
            manual = manual_schedule(wanted, body, self.warn, self.wholes, names, self.asides)
            pipelined = kind == "pipelined" or manual.num_stages is not None or manual.stage is not None
            loop = replace(
                loop,
                kind="pipelined" if pipelined else kind,
                body=manual.body,
                num_stages=manual.num_stages,
                stage=manual.stage,
                order=manual.order,
                wishes=manual.wishes,
            )
        self.out.append(loop)

    def _persistent(self, node: ast.For, iterable: ast.Call) -> None:
        """Waves of tiles, as a serial loop; tiles that the last wave or the last group has too many are skipped."""
        with self.held():
            call = bind(PERSISTENT, *self.arguments(iterable), iterable.span)
        for argument in call.arguments.values():
            if isinstance(argument.value, EXPR_TYPES):
                self.alike(argument.value, argument.span, "the tiles of a block")
        walk = persistent(call)
        names = self.target_names(node.target, len(walk.domain))
        wave = Var(self.unique.take("wave"))
        with self.region("the loop", is_loop=True) as out:
            for name, value, extent in zip(names, walk.coordinates(wave), walk.domain, strict=True):
                var = Var(self.unique.take(name.id))
                self.out.append(Bind(var, value, name.span))
                self.scope.bind(name.id, var, name.span)
                size = getattr(extent, "value", None)
                if size is not None:
                    self.ranges[var.name] = (0, size - 1)
            coordinates = tuple(s.var for s in self.out if isinstance(s, Bind))
            with self.region("the loop", is_loop=False) as inner, self.loop(PERSISTENT.name, iterable.span):
                self.block(self.trip(node.body))
            exists = walk.exists(wave, coordinates[-1])
            self.out += inner if exists is None else [If(exists, tuple(inner), (), node.span)]
        apart = tuple(var.name for var in coordinates)
        self.out.append(For("serial", wave, integer(0), walk.waves, 1, tuple(out), span=node.span, apart=apart))

    def _parallel(self, node: ast.For, iterable: ast.Call, path: str) -> None:
        if self.is_parallel:
            fail(
                "loop-in-parallel",
                f"{path} inside {self.nest_name}",
                iterable.span,
                help="write one loop: `for i, j in T.Parallel(m, n):`",
            )
        nest = self._nest(node, iterable, path)
        steps = {
            place: _Step(Var(self.unique.take(f"{nest.names[place].id}.first")), size, self._fixed(stop, node.span))
            for place, (_, stop) in enumerate(nest.bounds)
            if not isinstance(stop, int) and (size := nest.at_once(place))
        }
        if not steps:
            self._iterations(node, iterable, path, nest, steps)
            return
        with self.region("the loop", is_loop=True) as out, self.guarded():
            self._iterations(node, iterable, path, nest, steps)
        body = tuple(out)
        for step in reversed(steps.values()) if body else ():
            body = (For("serial", step.var, integer(0), step.stop, step.size, body, span=node.span),)
        self.out += body

    def _fixed(self, stop: Expr, span: Span) -> Expr:
        """The bound of a loop, which what it was read from may be written in."""
        if not any(isinstance(e, Load) for e in walk_expr(stop)):
            return stop
        var = Var(self.unique.take("stop"))
        self.out.append(Bind(var, stop, span))
        return var

    def _iterations(self, node: ast.For, iterable: ast.Call, path: str, nest: _Nest, steps: dict[int, _Step]) -> None:
        """A nest, or a step of it: those iterations of an extent known at run time only that begin at the step's."""
        variables = tuple(Var(self.unique.take(name.id)) for name in nest.names)
        extents: list[int] = []
        exists: Expr | None = None  # what is so for those iterations of the step that there are
        with self.region("the loop", is_loop=True) as out:
            for place, (name, var, (start, stop)) in enumerate(zip(nest.names, variables, nest.bounds, strict=True)):
                value: Expr = var if start == 0 else Binary("add", var, integer(start), INT32)
                extent = stop - start if isinstance(stop, int) else steps[place].size
                if place in steps:
                    value = Binary("add", var, steps[place].var, INT32)
                    if extent > 1:
                        exists = Binary("lt", value, steps[place].stop, BOOL)
                self.scope.bind(name.id, value, name.span)
                self.ranges[var.name] = (0, extent - 1)
                extents.append(extent)
            self.is_parallel = True
            try:
                with self.loop(path, iterable.span):
                    self.block(self.trip(nest.body))
            finally:
                self.is_parallel = False
        if not out:
            return
        if nest.layout is not None and nest.layout.shape != tuple(extents):
            fail(
                "loop-layout",
                f"a layout of {show_shape(nest.layout.shape)} for a nest of {show_shape(tuple(extents))}",
                nest.layout.span,
                f"{len(nest.layout.shape)} inputs",
                secondary=(Label(iterable.span, f"{len(extents)} loops with all that are directly inside"),),
                help="the layout of a nest has one input per loop, with the loop's extent",
            )
        body = tuple(out) if exists is None else (If(exists, tuple(out), (), node.span),)
        if nest.layout is None:
            extents[-1], body = merged(variables, tuple(extents), body)
        made = Parallel(variables, tuple(extents), body, node.span, nest.width, nest.layout)
        copy = as_copy(made, parts=True) if nest.asynchronous is not None else None
        if nest.asynchronous is not None and copy is None:
            reason = gathered(made)
            if isinstance(reason, str):
                way_out = (
                    "asynchronous are nests that only fill a shared tile from a tensor, as S[i, j] = A[a + i, b + j]"
                )
                title = "this nest cannot be an asynchronous copy"
                self.warn(warning("hint-not-used", title, nest.asynchronous, reason, help=way_out))
            else:
                made = replace(made, asynchronous=True)
        if copy is not None:
            self.together(copy.span, "T.Parallel")
            self.out.append(copy)
        else:
            self.nest(made, path)

    def _nest(self, node: ast.For, iterable: ast.Call, path: str) -> _Nest:
        """Loops directly inside each other are one nest; a T.vectorized at the end may have binds before it."""
        with self.held():
            call = bind(NESTS[path], *self.arguments(iterable), iterable.span)
        head = nest_header(call, self.warn)
        names = self.target_names(node.target, len(head.bounds))
        nest = _Nest(names, head.bounds, node.body, head.width, head.asynchronous, head.layout)
        *before, last = node.body
        if not isinstance(last, ast.For) or not isinstance(last.iterable, ast.Call):
            return nest
        inner = self.callee(last.iterable)
        binds = all(isinstance(s, ast.Assign | ast.AnnotatedAssign) and _names_only(s) for s in before)
        if inner not in NESTS or (before and (inner == "T.Parallel" or not binds)):
            return nest
        # The inner extents may not depend on the outer variables, so they are evaluated out here.
        more = self._nest(last, last.iterable, inner)
        for key in ("coalesced_width", "loop_layout", "prefer_async"):
            given = next((k for k in last.iterable.keywords if k.name == key), None)
            if given is not None and path != "T.vectorized":
                fail(
                    "wrong-argument",
                    f"`{key}` belongs to the outermost loop of a nest",
                    given.span,
                    secondary=(Label(iterable.span, "the outermost loop"),),
                    help="one loop decides for all that are directly inside it: move it there",
                )
        return _Nest(
            names + more.names, head.bounds + more.bounds, (*before, *more.body), head.width or more.width,
            head.asynchronous, head.layout,
        )  # fmt: skip

    def target_names(self, target: ast.Expr, count: int, form: str = "for {} in …") -> tuple[ast.Name, ...]:
        """The names of so many variables, which are written in this form."""
        items = target.items if isinstance(target, ast.Tuple | ast.List) else (target,)
        names = tuple(i for i in items if isinstance(i, ast.Name))
        if len(names) < len(items):
            fail("bad-target", "a loop variable is a plain name", target.span)
        if len(names) != count:
            fail(
                "wrong-variable-count",
                f"{len(names)} variable{'s' * (len(names) != 1)} for {count} extent{'s' * (count != 1)}",
                target.span,
                help=f"write `{form.format(', '.join(_named(names, count)))}`",
            )
        _no_duplicates(names)
        return names


def _named(names: tuple[ast.Name, ...], count: int) -> list[str]:
    """So many names: those given first."""
    usual = ("bx", "by", "bz") if names and names[0].id.startswith("b") else tuple("ijklmnop")
    more = (name for name in usual if name not in {n.id for n in names})
    return [*(n.id for n in names), *more][:count]


def _no_duplicates(names: tuple[ast.Name, ...]) -> None:
    seen: dict[str, Span] = {}
    for name in names:
        if name.id in seen and name.id != "_":
            first = Label(seen[name.id], "first here")
            fail("duplicate-definition", f"`{name.id}` is bound twice", name.span, secondary=(first,))
        seen[name.id] = name.span


@dataclass(frozen=True, slots=True)
class _Nest:
    """Variables, first and last value + 1 of each, and innermost body of elementwise loops; `asynchronous` is where
    that is asked for."""

    names: tuple[ast.Name, ...]
    bounds: tuple[tuple[int, int | Expr], ...]
    body: tuple[ast.Stmt, ...]
    width: int | None
    asynchronous: Span | None
    layout: LoopLayout | None

    def at_once(self, place: int) -> int:
        """How many iterations of a loop make a step where their number is not known: in the last loop, some for each
        thread."""
        if place < len(self.bounds) - 1:
            return 1
        return max(_AT_ONCE // (self.width or 1), 1) * (self.width or 1)


@dataclass(frozen=True, slots=True)
class _Step:
    """The steps of a nest along an extent known at run time only, `size` iterations each; `var` is the first."""

    var: Var
    size: int
    stop: Expr


def _names_only(node: ast.Assign | ast.AnnotatedAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else (node.target,)
    return all(isinstance(t, ast.Name) for t in targets)
