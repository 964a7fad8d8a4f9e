"""A kernel on its way through the pipeline: all that is known of it so far, as one value that each pass replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, InternalError
from tilec.support.options import CompileOptions, Stage
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilec.frontend.syntax import ast as syntax
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.loop.build_problem import LoopProblem
    from tilec.ptx.assemble import AssemblerResult
    from tilec.ptx.module import Module
    from tilec.sched.budget import Budget
    from tilec.sched.decision import Decision
    from tilec.sched.solution import Solution
    from tilec.target.table import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Planned:
    """A pipelined loop with the answer to its scheduling problem."""

    loop: LoopProblem
    solution: Solution


class Withdrawn(Exception):
    """Raised by a pass that finds that what was chosen in the row `row` further up cannot be had, and `why`. The kernel
    goes on from that row, which takes another candidate."""

    def __init__(self, row: str, why: str) -> None:
        super().__init__(f"{row}: {why}")
        self.row, self.why = row, why


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a choice wants to know of the loops of a candidate: their smallest intervals, by the solver, or by
    heuristics an upper bound for them, where it is `most` cycles."""

    is_by_heuristic: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel. `source_kernel` is what its text says, with constants folded, and `kernel` the same as passes have
    rewritten it. `assignment` is `kernel` with layouts; `problems` and `loops` are its pipelined loops, before and
    after they are scheduled. `versions` says how many there are of the tiles of which the kernel itself names versions;
    `kernel` is then on one. `walks` says that its grid is persistent; `ungrouped` is the kernel before anything was
    decided about its grid. `withdrawn` are the choices whose answer could not be had after all, and why. `explored` are
    the loops of `assignment` that a choice has scheduled already, as far as their intervals where `exploration` asked
    for no more, and `divided` the problems of those of which it is decided how many warpgroups run apart. `mistakes`
    collects what is wrong, where all of it is wanted; `is_checked_only` says that nothing else is. `verified` is what
    has been verified last: the form, whether it was complete, and the value."""

    source: SourceFile
    options: CompileOptions
    target: Target
    budget: Budget
    kernel: Kernel
    source_kernel: Kernel
    mistakes: ErrorCollector = RAISE_FIRST
    is_checked_only: bool = False
    decisions: tuple[Decision, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    layouts: LayoutAssignment | None = None
    unassigned: Work | None = None
    walks: bool = False
    ungrouped: Kernel | None = None
    withdrawn: tuple[tuple[str, str], ...] = ()
    explored: tuple[Planned, ...] | None = None
    exploration: Exploration | None = None
    divided: tuple[LoopProblem, ...] = ()
    problems: tuple[LoopProblem, ...] = ()
    loops: tuple[Planned, ...] = ()
    warp_program: Program | None = None
    ptx_module: Module | None = None
    verified: tuple[Stage, bool, object] | None = None

    @property
    def assignment(self) -> LayoutAssignment:
        return _made(self.layouts, "layouts")

    @property
    def program(self) -> Program:
        return _made(self.warp_program, "warp program")

    @property
    def module(self) -> Module:
        return _made(self.ptx_module, "PTX")


@dataclass(frozen=True, slots=True)
class File:
    """A kernel file: its syntax tree and those that it imports, its kernels (or the only one that is asked for), and
    what one module of all of them becomes. `mistakes` and `is_checked_only` are as for its kernels."""

    source: SourceFile
    options: CompileOptions
    is_single: bool = False
    mistakes: ErrorCollector = RAISE_FIRST
    is_checked_only: bool = False
    tree: syntax.Module | None = None
    imported: Mapping[str, syntax.Module] | None = None
    kernels: tuple[Work, ...] = ()
    ptx_module: Module | None = None
    ptx: str = ""
    assembled: AssemblerResult | None = None

    @property
    def is_tile_ir(self) -> bool:
        return self.source.path.endswith(".tile")

    @property
    def module(self) -> Module:
        return _made(self.ptx_module, "PTX")

    @property
    def cubin(self) -> AssemblerResult:
        return _made(self.assembled, "cubin")


def _made(value: T | None, what: str) -> T:
    if value is None:
        raise InternalError(f"no pass has made the {what} yet")
    return value
