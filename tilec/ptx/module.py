"""A PTX translation unit as values: emitted, printed by `ptx.text`, parsed by `ptx.parse`, decoded for emulation."""

from __future__ import annotations

from dataclasses import field

from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, special registers included, with its percent sign: `%r3`, `%tid.x`; `_` is the sink."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """An integer immediate."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatImm:
    """A floating-point immediate by its bits: `0f3F800000` is FloatImm(0x3F800000, 32), `0d…` has width 64."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, label or function by name, with a byte offset: `smem`, `smem+16`, `$loop`."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; the base is a register, a symbol or an absolute address."""

    base: Reg | Symbol | Imm
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[map, {c0, c1, …}]` of the tensor copies, coordinates fastest dimension first."""

    map: Reg | Symbol
    coordinates: tuple[Reg | Imm, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, …}`"""

    items: tuple[Reg | Imm | FloatImm, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two destinations, as in `setp` and `elect.sync`."""

    first: Reg
    second: Reg


@dataclass(frozen=True, slots=True)
class NotPred:
    """`!p` as a source operand."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)`: the arguments or results of a call: `.param` variables, registers and constants."""

    items: tuple[Reg | Imm | FloatImm | Symbol, ...]


Operand = Reg | Imm | FloatImm | Symbol | Address | TensorAddress | Vector | Pair | NotPred | Arguments


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p` before an instruction."""

    reg: Reg
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `opcode` is the whole spelling without spaces, `add.s32` or
    `wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16`. `line` is its line in the PTX text (parsed modules only)."""

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Loc:
    """`.loc file line column`: the source location of the instructions after it."""

    file: int
    source_line: int
    column: int = 0
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RegDecl:
    """`.reg .f32 %f<8>;` is RegDecl("f32", "%f", 8); `.reg .pred p;` has count None."""

    type: str
    name: str
    count: int | None = None
    line: int = field(default=0, compare=False)
    lanes: int = 1
    """2 or 4 for a vector register, whose parts are `v.x` to `v.w`."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """An address in an initialiser: the bytes of `symbol + addend` from byte `shift / 8` on, at `offset`."""

    offset: int
    size: int
    symbol: str
    addend: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared array: `.extern .shared .align 1024 .b8 smem[];` has size 0. `data` is its initialiser, in bytes."""

    space: str
    name: str
    align: int
    size: int
    linkage: str = ""
    data: bytes = b""
    line: int = field(default=0, compare=False)
    relocations: tuple[Relocation, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """`{ … }`: a scope of its own for registers and labels."""

    body: tuple[Item, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Comment:
    """Printed for readers; dropped by the parser."""

    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """`name: .branchtargets a, b;`: the possible targets of a `brx.idx`."""

    name: str
    labels: tuple[str, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Prototype:
    """`name: .callprototype (…) _ (…);`: the signature of the functions that an indirect call may reach."""

    name: str
    returns: tuple[Param, ...]
    params: tuple[Param, ...]
    line: int = field(default=0, compare=False)


Item = Instruction | Label | Loc | RegDecl | Variable | Block | Comment | Targets | Prototype


@dataclass(frozen=True, slots=True)
class Param:
    """`.param .u64 name` (align None, size None), or `.param .align 64 .b8 name[128]`; functions also take `.reg`."""

    type: str
    name: str
    align: int | None = None
    size: int | None = None
    is_register: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A `.visible .entry`. `directives` are performance directives as text: `.reqntid 384, 1, 1`."""

    name: str
    params: tuple[Param, ...]
    directives: tuple[str, ...]
    body: tuple[Item, ...]
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Function:
    """A `.func`; `body` is None for a declaration. `linkage` as written, "visible" for instance."""

    name: str
    returns: tuple[Param, ...]
    params: tuple[Param, ...]
    directives: tuple[str, ...]
    body: tuple[Item, ...] | None
    linkage: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Module:
    """`version` as "8.0", `target` as "sm_90a". `files` are the `.file` paths, indexed from 1."""

    version: str
    target: str
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]
    files: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
