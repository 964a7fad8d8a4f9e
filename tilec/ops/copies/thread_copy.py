"""T.ptx_cp_async, a copy of a few elements by each thread, and T.access_ptr, the addresses that it takes.

A copy is a nest over the threads and their elements (`tile.Parallel`), which is asynchronous: its elements are there
after a wait for its group, or for the barrier at which the thread's copies arrive.
"""

from __future__ import annotations

from tilec.ir import tile
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.language.values import Access, ElementPointer, IndexRange, describe_value
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

ACCESS_PTR = Signature(
    "T.access_ptr",
    (
        Parameter("base", None), Parameter("access_type", "r"), Parameter("offset", 0, supported=False),
        Parameter("extent", None), Parameter("ignore_last_ndim", 0, supported=False),
    ),
    variadic=True,
)  # fmt: skip
THREAD_COPY = Signature(
    "T.ptx_cp_async",
    (Parameter("dst_access_ptr"), Parameter("src_access_ptr"), Parameter("num_elems"), Parameter("predicate", None)),
)
_COPIED_BYTES = (4, 8, 16)
"""The sizes of a cp.async (PTX ISA, cp.async)."""


@dataclass(frozen=True, slots=True)
class ThreadCopy:
    """A copy of `count` elements from `source` on to `destination` on."""

    destination: ElementPointer
    source: ElementPointer
    count: int


def make_element_pointer(call: Call) -> ElementPointer:
    """Return the address that a T.access_ptr call gives, of an element or a box's first; refuse any other base. Refused
    too is a kind of access other than "r", "w" and "rw", or 1 to 3.
    """
    base, access_type = (*call.variadic, call["base"])[0], (*call.variadic[1:], call["access_type"])[0]
    if access_type.value not in ("r", "w", "rw", 1, 2, 3):
        raise_error(
            "wrong-argument", f"{call.name}: the access is \"r\", \"w\" or \"rw\"", access_type.span,
            f"this is {describe_value(access_type.value)}",
        )  # fmt: skip
    value = base.value
    if isinstance(value, tile.Buffer):
        return ElementPointer(value, tuple(tile.int32_const(0) for _ in value.extents))
    if not isinstance(value, Access):
        raise_error(
            "wrong-argument", f"{call.name} needs an element of a tensor or of a shared tile", base.span,
            f"this is {describe_value(value)}",
        )  # fmt: skip
    return ElementPointer(value.buffer, tuple(i.start if isinstance(i, IndexRange) else i for i in value.indices))


def read_thread_copy(call: Call) -> ThreadCopy:
    """Return the copy that a T.ptx_cp_async call asks for; refuse two types, other memory, and a count below 1."""
    destination = _read_pointer(call, "dst_access_ptr", "shared")
    source = _read_pointer(call, "src_access_ptr", "global")
    if source.buffer.dtype != destination.buffer.dtype:
        raise_error(
            "wrong-dtype",
            f"{call.name} converts nothing",
            call["src_access_ptr"].span,
            f"{source.buffer.name} has {source.buffer.dtype}, {destination.buffer.name} has {destination.buffer.dtype}",
            secondary=(Label(source.buffer.span, "from here"), Label(destination.buffer.span, "from here")),
            help="give both the same type",
        )
    count = call.read_integer("num_elems")
    if count < 1:
        call.refuse("num_elems", "1 or more")
    return ThreadCopy(destination, source, count)


def check_copied_bytes(call: Call, copy: ThreadCopy) -> None:
    """Raise `wrong-argument` unless the elements that a thread copies are 4, 8 or 16 bytes. Inside a nest they need not
    be: several iterations may be one copy.
    """
    dtype = copy.source.buffer.dtype
    if copy.count * dtype.bits in [8 * size for size in _COPIED_BYTES]:
        return
    title, place = f"{call.name} copies 4, 8 or 16 bytes", call["num_elems"].span
    note = f"{copy.count} elements of {dtype} are {copy.count * dtype.bits / 8:g} bytes"
    counts = ", ".join(str(8 * size // dtype.bits) for size in _COPIED_BYTES if 8 * size >= dtype.bits)
    raise_error("wrong-argument", title, place, note, help=f"each thread can copy {counts}")


def _read_pointer(call: Call, name: str, scope: tile.Scope) -> ElementPointer:
    """Return a call's argument `name`, an address by T.access_ptr in memory of this scope; refuse any other."""
    value, wanted = call[name].value, "a shared tile" if scope == "shared" else "a tensor"
    if not isinstance(value, ElementPointer):
        call.refuse(name, f"the address of an element of {wanted}, as by T.access_ptr")
    if value.buffer.scope != scope:
        raise_error(
            "wrong-scope",
            f"{call.name} copies from a tensor to a shared tile",
            call[name].span,
            f"this is in {value.buffer.name}",
            secondary=(Label(value.buffer.span, "from here"),),
            help="write a loop over T.vectorized for other copies",
        )
    return value
