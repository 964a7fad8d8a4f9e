"""The operations on whole tiles, by name. Each is one file (or folder) of this package, with its facets side by side.

facet       function          says
spellings   check_X           the `T.*` names of the operation: parameters, docs, and the check of the arguments
effects     list_X_effects    the regions that it reads and writes
reference   evaluate_X        its result, in numpy
demand      list_X_demands    instruction kinds and counts, which a target file prices  } attached with `attach_facet`
lower       lower_X           its operations of warp IR                                 } in the file or folder of
agrees      verify_X          violations among its regions and attributes               } the operation

A demand or a lowering of one line is given to `define_operation` itself.

The fields of its class, a `TileOp`, are its form in tile IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from tilec.ir import tile
from tilec.ir.operations.operations import register_operation_class
from tilec.ops.language.signature import Call, Signature
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tilec.ir import warp
    from tilec.ops.lowering import Demand, LoweringContext

    Array = NDArray[np.generic]


class Environment(Protocol):
    """The memory that a reference reads and writes. Arrays have the region's extents; bfloat16 travels as float32."""

    def read(self, region: tile.Region) -> Array: ...

    def write(self, region: tile.Region, value: Array) -> None: ...

    def scalar(self, expr: tile.Expr) -> int | float | bool: ...

    def peer(self, block: int) -> Environment: ...

    def rendezvous(self, what: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Effects:
    reads: tuple[tile.Region, ...]
    writes: tuple[tile.Region, ...]


@dataclass(frozen=True, slots=True)
class Spelling:
    """One `T.*` name of an operation. `check` turns a call into the operation, or fails on the wrong argument.
    `element` does the same for single elements. A name that works on single elements only has no `check`."""

    signature: Signature
    doc: str
    check: Callable[[Call], tile.TileOp] | None
    element: Callable[[Call], tuple[tile.Store, ...]] | None = None


Facet = Literal["demand", "lower", "agrees"]
FacetFunction = TypeVar("FacetFunction", bound=Callable[..., Any])


Op = TypeVar("Op", bound=tile.TileOp)


@dataclass(slots=True)
class Operation(Generic[Op]):
    """An operation with its facets. `type` is its class in tile IR."""

    type: type[Op]
    spellings: tuple[Spelling, ...]
    effects: Callable[[Op], Effects]
    reference: Callable[[Op, Environment], None]
    facets: dict[Facet, Callable[..., Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def demand(self) -> Callable[..., Any]:
        return self._get_facet("demand")

    @property
    def lower(self) -> Callable[..., Any]:
        return self._get_facet("lower")

    def _get_facet(self, which: Facet) -> Callable[..., Any]:
        """Return the function attached as the facet `which`; raises `InternalError` if there is none."""
        if which not in self.facets:
            raise InternalError(f"T.{self.name} has no {which}")
        return self.facets[which]


def list_move_effects(op: tile.TileOp) -> Effects:
    """Return the effects of an operation that reads its first region and writes its second."""
    source, destination = op.regions
    return Effects((source,), (destination,))


def list_no_effects(op: tile.TileOp) -> Effects:
    """Return the effects of an operation that reads and writes nothing."""
    return Effects((), ())


def evaluate_nothing(op: tile.TileOp, env: Environment) -> None:
    """Do nothing: waits and registers change no result, and `interp`, which runs the roles, models barriers."""


_OPERATIONS: dict[str, Operation[Any]] = {}
_SPELLINGS: dict[str, Spelling] = {}


def register_operation(operation: Operation[Op]) -> Operation[Op]:
    """Add an operation and its spellings to the registry, and its class to tile IR's text if `in_text`; return it. It
    is called once by the file that owns the operation; a second operation of one name is an error.
    """
    assert operation.name not in _OPERATIONS, f"two operations are called {operation.name}"
    if operation.type.in_text:
        register_operation_class(operation.type)
    _OPERATIONS[operation.name] = operation
    for spelling in operation.spellings:
        _SPELLINGS[spelling.signature.name.removeprefix("T.")] = spelling
    return operation


def define_operation(
    kind: type[Op],
    effects: Callable[[Op], Effects],
    reference: Callable[[Op, Environment], None],
    *spellings: Spelling,
    demand: Callable[[Op, LoweringContext], tuple[Demand, ...]] | None = None,
    lower: Callable[[Op, LoweringContext], tuple[warp.Operation, ...]] | None = None,
) -> Operation[Op]:
    """Register and return the operation of a class of tile IR, with its effects, its reference and its `T.*` names.
    `demand` and `lower` are facets, as `attach_facet` attaches them."""
    given: dict[Facet, Callable[..., Any] | None] = {"demand": demand, "lower": lower}
    facets = {which: function for which, function in given.items() if function is not None}
    return register_operation(Operation(kind, spellings, effects, reference, facets))


def attach_facet(of: type[tile.TileOp], which: Facet) -> Callable[[FacetFunction], FacetFunction]:
    """Return a decorator that makes a function the facet `which` of the operation of class `of`."""

    def attach_function(function: FacetFunction) -> FacetFunction:
        """Record the function as the facet, and return it unchanged; a second one is an error."""
        operation = _OPERATIONS[of.name]
        assert which not in operation.facets, f"T.{of.name} has two facets {which}"
        operation.facets[which] = function
        return function

    return attach_function


def get_operation(name: str) -> Operation[Any]:
    """Return the registered operation of this name, which must exist."""
    return _OPERATIONS[name]


def list_operations() -> Iterator[Operation[Any]]:
    """Yield all operations, sorted by name."""
    for name in sorted(_OPERATIONS):
        yield _OPERATIONS[name]


def find_spelling(name: str) -> Spelling | None:
    """Return the spelling of `T.name`, given without the `T.`; None if no operation has it."""
    return _SPELLINGS.get(name)


def list_spelling_names() -> tuple[str, ...]:
    """Return all spellings' names, without the `T.`, sorted."""
    return tuple(sorted(_SPELLINGS))
