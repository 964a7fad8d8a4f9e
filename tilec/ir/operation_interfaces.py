"""What may be asked of any operation of tile IR, with the answers for those that do not say.

An answer that stands here is one that is right for an operation nobody has thought of; where there is none, the
question fails. So a new operation says what is particular about it in its own file, and no pass tests its name.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

Mechanism = Literal[
    "tma", "tma_store", "cp_async", "registers", "stmatrix", "tcgen05", "wgmma", "mma", "setmaxnreg", "nothing"
]
"""By what the machine does an operation; `nothing` is one that has nothing to do there."""


Doer = Literal["all threads", "each thread", "one thread"]
"""All that come to an operation together; each for itself, so that some may and others not; one for all of them."""


PipelineEnd = tuple[str, Literal["producer", "consumer"]]
"""A pipeline, and the side of it that a role is."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An index that an operation runs over: which dimension of which of its regions has it, as (region, dimension).
    `folded`: it adds up along it, so that all parts but the first are `continued`."""

    at: tuple[tuple[int, int], ...]
    folded: bool = False


class Asked:
    """The questions, in the words of those who ask; those whose answers are tile IR, `barrier`, `block` and `element`,
    are `ir.tile.TileOp`'s."""

    __slots__ = ()

    name: ClassVar[str]
    """How tile IR writes it."""
    in_text: ClassVar[bool] = True
    """Whether a file of tile IR may have it."""
    reaches_regions: ClassVar[bool] = True
    """Whether races between roles are sought in all of its regions."""
    is_collective: ClassVar[bool] = True
    """Whether threads do it together, so that who they are matters; else each does it for itself, or all for theirs."""
    order_is_known: ClassVar[bool] = False
    """Whether what it reads and writes is all that keeps it in its place."""
    fragments_lie: ClassVar[Literal["alike", "its own way"] | None] = None
    """How the fragments lie that it works on: alike, as for element by element, or as `layout.assign_layouts` has a
    rule for. Who works on several has to say."""
    by_warpgroups: ClassVar[bool] = False
    """Whether each warpgroup can do its part of it without the others; who folds says along what, `folded`."""
    moves: ClassVar[bool] = False
    """Whether it is called by where from and where to."""

    @property
    def via(self) -> Mechanism | None:
        """The mechanism that has been chosen, where there is a choice."""
        return None

    @property
    def announces(self) -> bool | None:
        """Of one that signals a barrier: whether it announces its bytes there by itself."""
        return None

    @property
    def leader(self) -> int | None:
        """The thread of the block that does it for all, where one does."""
        return None

    @property
    def done_by(self) -> Doer:
        """Which of the threads that come to it do it."""
        return "all threads"

    @property
    def signals_barrier(self) -> bool:
        """Whether its bytes complete a phase of the kernel's own barrier: a copy, or an answer."""
        return False

    @property
    def commits(self) -> bool:
        """Whether the tensor cores arrive at the kernel's own barrier for it."""
        return False

    @property
    def synchronises_roles(self) -> bool:
        """Whether roles wait for one another by it: at an mbarrier, or at a named barrier of more than one role."""
        return False

    @property
    def is_paired(self) -> bool:
        """Whether the tensor cores of two blocks do it together, and signal both."""
        return False

    @property
    def reaches_blocks(self) -> bool:
        """Whether a block reaches another one of its cluster by it: its tiles, its tensor cores, or a barrier."""
        return self.is_paired

    @property
    def is_load(self) -> bool:
        """Whether it brings what a tensor holds to a shared tile as it is: what a pipeline may begin ahead."""
        return False

    @property
    def copies_from_tensor(self) -> bool:
        """Whether it is a copy of a part of a tensor."""
        return False

    @property
    def is_elementwise(self) -> bool:
        """Whether it is a nest of what `element` says, and nothing besides."""
        return False

    @property
    def prefetched(self) -> int | None:
        """Of a load of a loop that is not pipelined, which is begun ahead all the same: the versions of its tile."""
        return None

    @property
    def is_asynchronous(self) -> bool:
        """Whether it is a copy that is under way behind it by the kernel's own word."""
        return False

    @property
    def touches_boxes(self) -> bool:
        """Whether it touches of a tensor just the boxes that are its regions; else it may be all of it."""
        return False

    @property
    def only_adds(self) -> bool:
        """Whether what it writes is made of what was there."""
        return False

    @property
    def commutes(self) -> bool:
        """Whether several of it to one place may come in any order."""
        return False

    @property
    def is_in_tensor_memory(self) -> bool:
        """Whether the tensor cores write tensor memory for it, by themselves: one thread asks for that."""
        return False

    # ---- barriers and stages of pipelines that the kernel has itself -----------------------------------------------

    @property
    def acquires(self) -> PipelineEnd | None:
        """The pipeline, and the side of it, of which it waits for a stage."""
        return None

    @property
    def releases(self) -> PipelineEnd | None:
        """The pipeline, and the side of it, of which it gives back a stage."""
        return None

    @property
    def drains(self) -> str | None:
        """The pipeline of which it waits until all stages are given back."""
        return None

    @property
    def wait(self) -> str | None:
        """When it is waited for, where that is not left to tilec."""
        return None

    @property
    def folded(self) -> int | None:
        """The dimension of its first region, a fragment, that it folds; None where it folds none, or in other ways."""
        return None

    # ---- part by part ----------------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The indices along which it can be done part by part; none: it cannot."""
        return ()

    def continued(self) -> Self:
        """The operation that goes on from what another part of it has left."""
        raise InternalError(f"T.{self.name} does not go on from what it has")
