"""Things that must be given back exactly once on every path: a `Ledger` of them, kept while a kernel is read.

Whoever reads the kernel tells it what the text does, in the text's order: a thing is taken, used or given back; paths
part at a condition and meet again; an iteration of a loop, or the work of a role, ends; a loop is left. That is enough
of a proof because a kernel has no other jumps, and a name cannot lead out of the region in which it is bound.

Of a thing that some path does not give back the report names where it was taken, and that path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, NoReturn

from tilec.support.diagnostics import CompileError, Diagnostic, Label, Mistakes, fail
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class Path:
    """A way through the text: where it parts from others, or ends, and what is to be said of it there."""

    span: Span
    text: str


@dataclass(eq=False, slots=True)
class Taken:
    """A thing that must be given back. `what` names it in messages; `loops` are the loops around the place where it was
    taken, `role` is who took it, `returns` says that the end of a block gives it back by itself, `owner` is the thing
    itself. `met` mistakes were known by then."""

    what: str
    span: Span
    role: object
    loops: int = 0
    returns: bool = False
    met: int = 0
    owner: Any = None


_State = dict[Taken, Span | None]
"""Of everything taken on the path so far: where it was given back, if it was."""


@dataclass(slots=True)
class Ledger:
    """What the path that is being read holds. `is_left`: no path gets here, the loop was left before."""

    mistakes: Mistakes
    state: _State = field(default_factory=dict)
    loops: int = 0
    is_left: bool = False

    def take(self, what: str, span: Span, role: object, returns: bool = False) -> Taken:
        thing = Taken(what, span, role, self.loops, returns, self.mistakes.met)
        self.state[thing] = None
        return thing

    def use(self, thing: Taken, span: Span) -> None:
        """Errors: `use-after-release`."""
        if (given_back := self.state.get(thing)) is not None:
            fail(
                "use-after-release",
                f"{thing.what} is used after it is released",
                span,
                "it may be another's by now",
                secondary=(Label(given_back, "released here"), Label(thing.span, "acquired here")),
                help="use it before, or acquire the next one",
            )

    def give_back(self, thing: Taken, span: Span, role: object) -> None:
        """Errors: `double-release`, `unbalanced-release`, `divergent-release`."""
        acquired = Label(thing.span, "acquired here")
        if (before := self.state.get(thing)) is not None:
            _refuse_second(thing, span, before)
        if self.loops > thing.loops:
            self.state[thing] = span
            fail(
                "unbalanced-release",
                f"{thing.what} is released in a loop that it was acquired before",
                span,
                "done once in each iteration: never, or several times",
                secondary=(acquired,),
                help="acquire it in the loop, or release it behind",
            )
        self.state[thing] = span
        if role != thing.role:
            fail(
                "divergent-release",
                f"{thing.what} is released by another role than acquired it",
                span,
                f"{_spoken(role)} come here",
                secondary=(Label(thing.span, f"{_spoken(thing.role)} acquired it"),),
                help="release it where it was acquired: all threads of a role arrive",
            )

    def held(self) -> list[Taken]:
        """The last one taken first."""
        return [thing for thing, given_back in reversed(self.state.items()) if given_back is None]

    # ---- paths -------------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, end: Path) -> Iterator[None]:
        """What is taken inside is given back inside. Errors: `missing-release`."""
        before = set(self.state)
        yield
        for thing in [t for t in self.state if t not in before]:
            if self.state.pop(thing) is None and not self.is_left:
                self._missed(thing, (end,))

    @contextmanager
    def loop(self, end: Path) -> Iterator[None]:
        """Inside is an iteration, of which there may be none, one or more."""
        self.loops += 1
        try:
            with self.region(end):
                yield
        finally:
            self.loops -= 1
            self.is_left = False

    def leave(self, span: Span, word: str) -> None:
        """The innermost loop is left here."""
        for thing in self.held():
            if thing.loops == self.loops:
                self._missed(thing, (Path(span, f"`{word}` ends the iteration with it"),))
        self.is_left = True

    @contextmanager
    def parting(self, condition: Span) -> Iterator[_Parting]:
        """Inside, each path is read under `path` of what this gives; behind, they have met. Errors:
        `missing-release`."""
        paths = _Parting(self, dict(self.state), self.is_left)
        yield paths
        ends = [(path, state) for path, state, is_left in paths.ends if not is_left]
        self.is_left = bool(paths.ends) and not ends
        if not ends:
            return
        self.state = dict(ends[0][1])
        for thing in list(self.state):
            released = [state[thing] for _, state in ends if state[thing] is not None]
            if released:
                self.state[thing] = released[0]
            if released and len(released) < len(ends):
                (there, *_) = (path for path, state in ends if state[thing] is None)
                where = Path(released[0] or condition, "released here")
                self._missed(thing, (where, Path(condition, f"but not where this {there}")))

    def _missed(self, thing: Taken, path: tuple[Path, ...]) -> None:
        """A path does not give it back. Behind another mistake nothing is said: that may have been its release."""
        if thing in self.state:
            self.state[thing] = thing.span
        if self.mistakes.met > thing.met:
            return
        found = Diagnostic(
            "missing-release",
            f"{thing.what} is not released on every path",
            Label(thing.span, "acquired here"),
            tuple(Label(part.span, part.text) for part in path),
            help="write .release() on each of them, or `with ….acquire() as tiles:`, whose end releases it",
        )
        self.mistakes.add(CompileError(found))


@dataclass(slots=True)
class _Parting:
    """Paths that begin with one state, and the states with which they end."""

    ledger: Ledger
    begin: _State
    was_left: bool
    ends: list[tuple[str, _State, bool]] = field(default_factory=list)

    @contextmanager
    def path(self, where: str, condition: Span) -> Iterator[None]:
        """One of the paths: that on which the condition `where`, as "holds"."""
        ledger = self.ledger
        ledger.state, ledger.is_left = dict(self.begin), self.was_left
        with ledger.region(Path(condition, f"the branch where this {where} ends with it")):
            yield
        self.ends.append((where, ledger.state, ledger.is_left))


def _refuse_second(thing: Taken, span: Span, before: Span) -> NoReturn:
    where = "released here, and so in each iteration" if before == span else "released here already"
    fail(
        "double-release",
        f"{thing.what} is released twice",
        span,
        "the second time",
        secondary=(Label(before, where), Label(thing.span, "acquired here")),
        help="leave one of them out",
    )


def _spoken(role: object) -> str:
    if not isinstance(role, range):
        return "all warpgroups"
    return f"warpgroup {role.start}" if len(role) == 1 else f"warpgroups {role.start} to {role.stop - 1}"
