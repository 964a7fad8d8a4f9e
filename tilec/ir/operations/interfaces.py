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

    # ---- fields of some operations ---------------------------------------------------------------------------------

    via: Mechanism | None = None
    """The mechanism that was chosen for it, where there is a choice."""
    announces: bool | None = None
    """True if it announces its bytes to its barrier itself; None if it signals no barrier."""
    leader: int | None = None
    """The number of the block's thread that issues it for all; None if none does."""
    prefetched: int | None = None
    """The number of versions of the tile, for a load prefetched in a loop without a pipeline."""
    acquires: PipelineEnd | None = None
    """The pipeline, and the side of it, for whose stage it waits."""
    releases: PipelineEnd | None = None
    """The pipeline, and the side of it, whose stage it gives back."""
    drains: str | None = None
    """The pipeline all of whose stages it waits for."""

    # ---- answers that an operation may compute ---------------------------------------------------------------------

    @property
    def done_by(self) -> Doer:
        """Return which of the threads that reach the operation perform it; `all threads`, together, by default."""
        return "all threads"

    @property
    def signals_barrier(self) -> bool:
        """Return whether the operation's bytes complete a phase of the kernel's own barrier: a copy, or a response.
        False by default."""
        return False

    @property
    def commits(self) -> bool:
        """Return whether the tensor cores arrive at the kernel's own barrier for the operation; False by default."""
        return False

    @property
    def synchronises_roles(self) -> bool:
        """Return whether roles wait for one another by the operation, at an mbarrier or a shared named barrier; False
        by default."""
        return False

    @property
    def is_paired(self) -> bool:
        """Return whether the tensor cores of two blocks perform the operation together and signal both; False by
        default."""
        return False

    @property
    def reaches_blocks(self) -> bool:
        """Return whether a block reaches another block of its cluster by the operation; by default, whether it is
        paired. It may reach the block's tiles, its tensor cores, or a barrier."""
        return self.is_paired

    @property
    def is_load(self) -> bool:
        """Return whether the operation copies a part of a tensor to a shared tile unchanged; False by default. A
        pipeline may start it early."""
        return False

    @property
    def copies_from_tensor(self) -> bool:
        """Return whether the operation is a copy of a part of a tensor; False by default."""
        return False

    @property
    def is_asynchronous(self) -> bool:
        """Return whether the operation is a copy that the kernel itself leaves in flight; False by default."""
        return False

    @property
    def only_adds(self) -> bool:
        """Return whether the destination's new value depends on its old one; False by default."""
        return False

    @property
    def is_in_tensor_memory(self) -> bool:
        """Return whether the tensor cores write tensor memory for the operation, asynchronously, for one thread; False
        by default."""
        return False

    @property
    def wait(self) -> str | None:
        """Return the kernel's choice of when to wait for the operation; None by default."""
        return None

    @property
    def folded(self) -> int | None:
        """Return the dimension of its first region, a fragment, that the operation folds; None, the default, if it
        folds none."""
        return None

    # ---- splitting into parts --------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the indices along which the operation can be split into parts; empty, the default, if it cannot."""
        return ()

    def continued(self) -> Self:
        """Return the operation as one part that continues from another part's result; by default raises
        `InternalError`."""
        raise InternalError(f"T.{self.name} does not go on from what it has")
