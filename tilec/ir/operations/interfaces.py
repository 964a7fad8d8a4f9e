"""The properties that passes ask of an operation of tile IR, with the answers of an operation that does not define
them.

A default here is safe for an operation that nobody has thought of; where no default is safe, the property raises. So a
new operation defines what is particular about it in its own file, and no pass tests its name.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

Mechanism = Literal[
    "tma", "tma_store", "cp_async", "registers", "stmatrix", "tcgen05", "wgmma", "mma", "setmaxnreg", "nothing"
]
"""The hardware mechanism that performs an operation; `nothing` for one that needs no work there."""


Doer = Literal["all threads", "each thread", "one thread"]
"""The threads that perform an operation: all that reach it, together; each for itself, so that some may skip it; or one
for all of them."""


PipelineEnd = tuple[str, Literal["producer", "consumer"]]
"""A pipeline, and the side of it that a role is on."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An index that an operation runs over: which dimension of which of its regions it indexes, as (region, dimension).
    `folded`: the operation accumulates along it, so that all parts but the first are `continued`."""

    at: tuple[tuple[int, int], ...]
    folded: bool = False


class OperationInterface:
    """The properties of an operation; those whose values are tile IR, `barrier`, `block` and `element`, belong to
    `ir.tile.TileOp`."""

    __slots__ = ()

    name: ClassVar[str]
    """Its name in tile IR."""
    in_text: ClassVar[bool] = True
    """True if a file of tile IR may contain it."""
    reaches_regions: ClassVar[bool] = True
    """True if races between roles are checked in all of its regions."""
    is_collective: ClassVar[bool] = True
    """True if threads perform it together, so that it matters which threads take part; else each performs it for
    itself, or all for their own elements."""
    order_is_known: ClassVar[bool] = False
    """True if its reads and writes are all that fixes its place in the order of statements."""
    fragments_lie: ClassVar[Literal["alike", "its own way"] | None] = None
    """The relation between the layouts of the fragments that it works on: alike, as for element by element, or by a
    rule of `layout.assign_layouts`. An operation on several fragments has to define it."""
    by_warpgroups: ClassVar[bool] = False
    """True if each warpgroup can perform its part without the others; an operation that folds gives the dimension in
    `folded`."""
    is_elementwise: ClassVar[bool] = False
    """True if it is a nest of what `element` returns, and nothing else."""
    touches_boxes: ClassVar[bool] = False
    """True if it touches exactly the boxes of a tensor that are its regions; else perhaps all of the tensor."""
    commutes: ClassVar[bool] = False
    """True if several of it to one place may come in any order."""
    moves: ClassVar[bool] = False
    """True if it is called with a source and a destination."""

    @property
    def via(self) -> Mechanism | None:
        """The mechanism that has been chosen, where there is a choice."""
        return None

    @property
    def announces(self) -> bool | None:
        """Of an operation that signals a barrier: whether it announces its bytes there itself."""
        return None

    @property
    def leader(self) -> int | None:
        """The thread of the block that issues it for all, if one does."""
        return None

    @property
    def done_by(self) -> Doer:
        """The threads that perform it, of those that reach it."""
        return "all threads"

    @property
    def signals_barrier(self) -> bool:
        """True if its bytes complete a phase of the kernel's own barrier: a copy, or a response."""
        return False

    @property
    def commits(self) -> bool:
        """True if the tensor cores arrive at the kernel's own barrier for it."""
        return False

    @property
    def synchronises_roles(self) -> bool:
        """True if roles wait for one another by it: at an mbarrier, or at a named barrier of several roles."""
        return False

    @property
    def is_paired(self) -> bool:
        """True if the tensor cores of two blocks perform it together, and signal both."""
        return False

    @property
    def reaches_blocks(self) -> bool:
        """True if a block reaches another block of its cluster by it: its tiles, its tensor cores, or a barrier."""
        return self.is_paired

    @property
    def is_load(self) -> bool:
        """True if it copies a part of a tensor to a shared tile unchanged, so that a pipeline may start it early."""
        return False

    @property
    def copies_from_tensor(self) -> bool:
        """True if it is a copy of a part of a tensor."""
        return False

    @property
    def prefetched(self) -> int | None:
        """The number of versions of the tile, for a load that is prefetched in a loop without a pipeline."""
        return None

    @property
    def is_asynchronous(self) -> bool:
        """True if it is a copy that the kernel itself leaves in flight."""
        return False

    @property
    def only_adds(self) -> bool:
        """True if the new value of its destination depends on the old one."""
        return False

    @property
    def is_in_tensor_memory(self) -> bool:
        """True if the tensor cores write tensor memory for it, asynchronously, at the request of one thread."""
        return False

    # ---- barriers and stages of pipelines that the kernel has itself -----------------------------------------------

    @property
    def acquires(self) -> PipelineEnd | None:
        """The pipeline, and the side of it, whose stage it waits for."""
        return None

    @property
    def releases(self) -> PipelineEnd | None:
        """The pipeline, and the side of it, whose stage it gives back."""
        return None

    @property
    def drains(self) -> str | None:
        """The pipeline all of whose stages it waits for."""
        return None

    @property
    def wait(self) -> str | None:
        """The kernel's choice of when to wait for it, if any."""
        return None

    @property
    def folded(self) -> int | None:
        """The dimension of its first region, a fragment, that it folds; None where it folds none, or in another way."""
        return None

    # ---- splitting into parts --------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The indices along which it can be split into parts; empty if it cannot."""
        return ()

    def continued(self) -> Self:
        """Return the operation that continues from the result of another part of it."""
        raise InternalError(f"T.{self.name} does not go on from what it has")
