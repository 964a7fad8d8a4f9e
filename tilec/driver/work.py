"""The state of a kernel and of a file in the pipeline: immutable values that each pass replaces."""

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
class PlannedLoop:
    """A pipelined loop with the solution of its scheduling problem."""

    loop: LoopProblem
    solution: Solution


class ChoiceWithdrawn(Exception):
    """Raised by a pass if the answer of the earlier choice `row` turns out impossible, for the reason `why`. The kernel
    continues from that row, which takes another candidate."""

    def __init__(self, row: str, why: str) -> None:
        super().__init__(f"{row}: {why}")
        self.row, self.why = row, why


@dataclass(frozen=True, slots=True)
class Exploration:
    """The question of a choice about a candidate's loops: their smallest intervals from the solver, or an upper bound
    from heuristics, up to `most` cycles."""

    is_by_heuristic: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The state of one kernel. `source_kernel` is the source's with folded constants, and `kernel` the rewritten one;
    `assignment` is `kernel` with layouts. `problems` and `loops` are its pipelined loops before and after scheduling.
    `versions` counts the versions of tiles whose versions the kernel itself indexes; `kernel` then has one. `walks`
    says that the grid is persistent; `ungrouped` is the kernel before decisions about its grid. `withdrawn` lists
    choices whose answer was impossible, and why. `explored` are loops that a choice has scheduled already, only up to
    their intervals if `exploration` asked for no more; `divided` are problems with a decided ping-pong. `mistakes`
    collects errors; with `is_checked_only` nothing else is wanted. `verified` is the last verified form, its
    completeness and its value."""

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
    kernel_before_grid: Kernel | None = None
    withdrawn_choices: tuple[tuple[str, str], ...] = ()
    explored: tuple[PlannedLoop, ...] | None = None
    exploration: Exploration | None = None
    divided: tuple[LoopProblem, ...] = ()
    problems: tuple[LoopProblem, ...] = ()
    loops: tuple[PlannedLoop, ...] = ()
    warp_program: Program | None = None
    ptx_module: Module | None = None
    verified: tuple[Stage, bool, object] | None = None

    @property
    def assignment(self) -> LayoutAssignment:
        return _require_value(self.layouts, "layouts")

    @property
    def program(self) -> Program:
        return _require_value(self.warp_program, "warp program")

    @property
    def module(self) -> Module:
        return _require_value(self.ptx_module, "PTX")


@dataclass(frozen=True, slots=True)
class File:
    """The state of a kernel file: its syntax tree and imports, its kernels (or the only one wanted), and their joint
    module. `mistakes` and `is_checked_only` are as in `Work`."""

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
        return _require_value(self.ptx_module, "PTX")

    @property
    def cubin(self) -> AssemblerResult:
        return _require_value(self.assembled, "cubin")


def _require_value(value: T | None, what: str) -> T:
    if value is None:
        raise InternalError(f"no pass has made the {what} yet")
    return value
