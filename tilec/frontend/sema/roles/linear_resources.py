"""Resources that must be released exactly once on every path: a `Ledger` of them, kept while a kernel is elaborated.

The elaboration reports events in the order of the text: a resource is taken, used or released; paths split at a
condition and join again; an iteration of a loop, or the work of a role, ends; a loop is left. That proves the property,
because a kernel has no other jumps, and a name is unknown outside the region that binds it.

For a resource that some path does not release, the error shows where it was taken, and that path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, NoReturn

from tilec.ir.groups import describe_warps
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class PathNote:
    """A labelled place on a path: where it splits from others, or where it ends."""

    span: Span
    text: str


@dataclass(eq=False, slots=True)
class Resource:
    """A resource that must be released. `what` names it in messages, `role` took it inside `loops` loops, `returns`
    says that the end of a block releases it, and `owner` is the object itself. `met` mistakes were known by then."""

    what: str
    span: Span
    role: object
    loops: int = 0
    returns: bool = False
    met: int = 0
    owner: Any = None


_ReleaseState = dict[Resource, Span | None]
"""By resource taken on the path so far: the place of its release, if any."""


@dataclass(slots=True)
class Ledger:
    """The resources of the current path. `is_left`: no path gets here, since the loop was left before."""

    mistakes: ErrorCollector
    state: _ReleaseState = field(default_factory=dict)
    loops: int = 0
    is_left: bool = False

    def take(self, what: str, span: Span, role: object, returns: bool = False) -> Resource:
        """Record a resource taken on the current path, not yet released, and return it. `what` names it in messages."""
        resource = Resource(what, span, role, self.loops, returns, self.mistakes.met)
        self.state[resource] = None
        return resource

    def use(self, resource: Resource, span: Span) -> None:
        """Raise `use-after-release` if the resource was released on the current path."""
        if (released := self.state.get(resource)) is not None:
            title, note = f"{resource.what} is used after it is released", "it may hold other data by now"
            places = Label(released, "released here"), Label(resource.span, "acquired here")
            way_out = "use it before, or acquire the next one"
            raise_error("use-after-release", title, span, note, secondary=places, help=way_out)

    def release(self, resource: Resource, span: Span, role: object) -> None:
        """Record a resource's release; refuse a second one, one in a deeper loop, or one by another role. Errors:
        `double-release`, `unbalanced-release`, `divergent-release`.
        """
        acquired = Label(resource.span, "acquired here")
        if (first_release := self.state.get(resource)) is not None:
            _refuse_second_release(resource, span, first_release)
        if self.loops > resource.loops:
            self.state[resource] = span
            title = f"{resource.what} is acquired before this loop and released inside it"
            note = "runs once per iteration: any number of times, also never"
            way_out = "acquire it inside the loop, or release it after the loop"
            raise_error("unbalanced-release", title, span, note, secondary=(acquired,), help=way_out)
        self.state[resource] = span
        if role != resource.role:
            title = f"{resource.what} is released by a role that has not acquired it here"
            note = f"run by {describe_role(role)}"
            place = Label(resource.span, f"{describe_role(resource.role)} acquired it here")
            way_out = "release it where it was acquired: all threads of a role arrive"
            raise_error("divergent-release", title, span, note, secondary=(place,), help=way_out)

    def held(self) -> list[Resource]:
        """Return the resources that the current path has not released, the last one taken first."""
        return [resource for resource, released in reversed(self.state.items()) if released is None]

    # ---- paths -------------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, end: PathNote) -> Iterator[None]:
        """Report `missing-release`, after the `with`, for resources taken in it and not released, and forget all of
        them.
        """
        outer = set(self.state)
        yield
        for resource in [t for t in self.state if t not in outer]:
            if self.state.pop(resource) is None and not self.is_left:
                self._report_missing_release(resource, (end,))

    @contextmanager
    def loop(self, end: PathNote) -> Iterator[None]:
        """Enter a loop's iteration for the `with`: what is taken in it must be released in it."""
        self.loops += 1
        try:
            with self.region(end):
                yield
        finally:
            self.loops -= 1
            self.is_left = False

    def leave(self, span: Span, word: str) -> None:
        """Report the resources that leaving the innermost loop here leaves unreleased, and mark the path as left."""
        for resource in self.held():
            if resource.loops == self.loops:
                ending = PathNote(span, f"`{word}` ends the iteration without a release")
                self._report_missing_release(resource, (ending,))
        self.is_left = True

    @contextmanager
    def split_paths(self, condition: Span) -> Iterator[_PathSplit]:
        """Yield a `_PathSplit` for the branches of a condition, and join their states; report releases that a branch
        lacks.
        """
        paths = _PathSplit(self, dict(self.state), self.is_left)
        yield paths
        ends = [(path, state) for path, state, is_left in paths.ends if not is_left]
        self.is_left = bool(paths.ends) and not ends
        if not ends:
            return
        self.state = dict(ends[0][1])
        for resource in list(self.state):
            released = [state[resource] for _, state in ends if state[resource] is not None]
            if released:
                self.state[resource] = released[0]
            if released and len(released) < len(ends):
                (missing_path, *_) = (path for path, state in ends if state[resource] is None)
                where = PathNote(released[0] or condition, "released here")
                otherwise = PathNote(condition, f"but not where this {missing_path}")
                self._report_missing_release(resource, (where, otherwise))

    def _report_missing_release(self, resource: Resource, path: tuple[PathNote, ...]) -> None:
        """Record `missing-release` and count the resource as released; silent if mistakes came after it was taken."""
        if resource in self.state:
            self.state[resource] = resource.span
        if self.mistakes.met > resource.met:
            return
        diagnostic = Diagnostic(
            "missing-release",
            f"{resource.what} is not released on every path",
            Label(resource.span, "acquired here"),
            tuple(Label(part.span, part.text) for part in path),
            help="call .release() on each path, or `with ….acquire() as tiles:`, whose end releases it",
        )
        self.mistakes.add(CompileError(diagnostic))


@dataclass(slots=True)
class _PathSplit:
    """Paths that begin with one state, and the states in which they end."""

    ledger: Ledger
    begin: _ReleaseState
    was_left_before: bool
    ends: list[tuple[str, _ReleaseState, bool]] = field(default_factory=list)

    @contextmanager
    def path(self, where: str, condition: Span) -> Iterator[None]:
        """Start one branch from the common state for the `with`, and record the state in which it ends. `where`
        completes "the condition …", as "holds".
        """
        ledger = self.ledger
        ledger.state, ledger.is_left = dict(self.begin), self.was_left_before
        with ledger.region(PathNote(condition, f"the branch where this {where} ends without a release")):
            yield
        self.ends.append((where, ledger.state, ledger.is_left))


def _refuse_second_release(resource: Resource, span: Span, first_release: Span) -> NoReturn:
    """Raise `double-release`: the resource was released before, perhaps in an earlier iteration."""
    where = "released here, and so in each iteration" if first_release == span else "released here already"
    places = Label(first_release, where), Label(resource.span, "acquired here")
    title, way_out = f"{resource.what} is released twice", "remove one of them"
    raise_error("double-release", title, span, "the second time", secondary=places, help=way_out)


def describe_role(role: object) -> str:
    """Return a role's warps in words, as "warpgroups 0 to 1"; "all warpgroups" for a role that is no range."""
    return describe_warps(role) if isinstance(role, range) else "all warpgroups"
