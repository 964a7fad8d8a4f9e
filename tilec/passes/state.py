"""The state of a kernel and of a file in the pipeline: immutable values that passes rewrite.

A pass takes parts of the state by their names (`driver.engine`), or all of it as `state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, InternalError
from tilec.support.options import CompileOptions, Stage, Strategy
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilec.analysis.analyse_aliases import AliasAnalysis
    from tilec.frontend.syntax import ast as syntax
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.layout.select_mechanisms import MechanismSelection
    from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
    from tilec.ptx.assemble import AssemblerResult
    from tilec.ptx.module import Module
    from tilec.sched.budget import Budget
    from tilec.sched.decision import Decision
    from tilec.target.table import Target

T = TypeVar("T")


class ChoiceWithdrawn(Exception):
    """Raised by a pass if the answer of the earlier choice `row` turns out impossible, for the reason `why`. The kernel
    continues from that row, which takes another candidate, or from `since`, a row before it that has explored it."""

    def __init__(self, row: str, why: str, since: str | None = None) -> None:
        super().__init__(f"{row}: {why}")
        self.row, self.why, self.since = row, why, since or row


@dataclass(frozen=True, slots=True)
class Exploration:
    """The question of a choice about a candidate's loops: their smallest intervals from the solver, or an upper bound
    from heuristics, up to `most` cycles. `roomier` are the same loops with schedules for larger pools, if any are
    known: the solver tries no smaller interval than theirs."""

    is_by_heuristic: bool = False
    most: int | None = None
    roomier: tuple[PlannedLoop, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchState:
    """The state of the choices about a kernel. `before_layouts` is the kernel's state before it had layouts, and
    `kernel_before_grid` the kernel before decisions about its grid. `withdrawn_choices` lists choices whose answer was
    impossible, and why. `explored` are loops that a choice has scheduled already, only up to their intervals if
    `exploration` asked for no more; `divided` are problems with a decided ping-pong."""

    budget: Budget
    before_layouts: KernelState | None = None
    kernel_before_grid: Kernel | None = None
    withdrawn_choices: tuple[tuple[str, str], ...] = ()
    explored: tuple[PlannedLoop, ...] | None = None
    exploration: Exploration | None = None
    divided: tuple[LoopProblem, ...] = ()


_ASKED_STRATEGIES: tuple[tuple[str, Strategy], ...] = (("serial", "none"), ("unspecialised", "unspecialize"))
"""What a kernel may ask for, and the strategy that is; the first counts."""


@dataclass(frozen=True, slots=True)
class KernelState:
    """The state of one kernel. `source_kernel` is the source's with folded constants, and `kernel` the rewritten one;
    `selection` is `kernel` with mechanisms, and `assignment` with layouts. `problems` and `loops` are its pipelined
    loops before and after scheduling. `versions` counts the versions of tiles whose versions the kernel itself indexes;
    `kernel` then has one. `is_persistent` is about its grid, of which `residency` blocks are expected to share a
    multiprocessor, and which reads `dram_reads` bytes from DRAM (None: each byte once). `mistakes` collects errors;
    with `is_checked_only` nothing else is wanted. `verified` is the last verified form, its completeness and its value.
    """

    source: SourceFile
    options: CompileOptions
    target: Target
    kernel: Kernel
    source_kernel: Kernel
    search: SearchState
    mistakes: ErrorCollector = RAISE_FIRST
    is_checked_only: bool = False
    decisions: tuple[Decision, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    aliases: AliasAnalysis | None = None
    mechanisms: MechanismSelection | None = None
    layouts: LayoutAssignment | None = None
    is_persistent: bool = False
    residency: int = 1
    dram_reads: int | None = None
    problems: tuple[LoopProblem, ...] = ()
    loops: tuple[PlannedLoop, ...] = ()
    warp_program: Program | None = None
    ptx_module: Module | None = None
    verified: tuple[Stage, bool, object] | None = None

    @property
    def strategy(self) -> Strategy:
        """Return the command line's pipeline strategy; the one that the kernel asks for if that is auto."""
        if self.options.pipeline_strategy == "auto":
            return next((asked for ask, asked in _ASKED_STRATEGIES if ask in self.kernel.asks), "auto")
        return self.options.pipeline_strategy

    @property
    def selection(self) -> MechanismSelection:
        return _require_value(self.mechanisms, "mechanisms")

    @property
    def assignment(self) -> LayoutAssignment:
        return _require_value(self.layouts, "layouts")

    @property
    def program(self) -> Program:
        return _require_value(self.warp_program, "warp program")

    @property
    def module(self) -> Module:
        return _require_value(self.ptx_module, "PTX")


LAYOUTS_ROW = "split-staged-stores"
"""The last row that assigns layouts: how far to explore a candidate for them."""
Explorer = Callable[[KernelState, str], KernelState]
"""Runs the table up to the named row, unobserved: from mechanisms on for a kernel without layouts, else from its
scheduling problems on."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a kernel file: its syntax tree and imports, its kernels (or the only one wanted), and their joint
    module. `mistakes` and `is_checked_only` are as in `KernelState`."""

    source: SourceFile
    options: CompileOptions
    is_single: bool = False
    mistakes: ErrorCollector = RAISE_FIRST
    is_checked_only: bool = False
    tree: syntax.Module | None = None
    imported: Mapping[str, syntax.Module] | None = None
    kernels: tuple[KernelState, ...] = ()
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
    """Return the value, or raise an internal error if no pass has made it yet."""
    if value is None:
        raise InternalError(f"no pass has made the {what} yet")
    return value
