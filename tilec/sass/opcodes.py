"""Names and kinds of opcodes.

The lower nine bits of an opcode give the operation, the three above them the sources of its operands. The names are
those that `nvdisasm` prints for tilec's kernels for sm_80, sm_90a and sm_100a; a test compares them. Unlisted opcodes
are shown as numbers.
"""

from __future__ import annotations

from typing import Literal

OpcodeKind = Literal[
    "arithmetic", "atomic", "barrier", "branch", "constant", "copy", "copy.commit", "exit", "load", "mma", "mbarrier",
    "matrix.load", "mufu", "shared.load", "shared.store", "shuffle", "store", "tma", "wait", "wgmma", "wgmma.sync",
    "other",
]  # fmt: skip
"""The use of a warp's time. `arithmetic` has a fixed latency; `mufu` includes other slow pipes (conversions, doubles).
`wait` waits for a scoreboard, `wgmma.sync` for products of a warpgroup."""

OPCODE_NAMES: dict[int, str] = {
    0x002: "MOV", 0x003: "P2R", 0x005: "CS2R", 0x006: "VOTE", 0x007: "SEL", 0x008: "FSEL", 0x009: "FMNMX",
    0x00b: "FSETP", 0x00c: "ISETP", 0x00f: "VIMNMX3", 0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3", 0x013: "IABS",
    0x016: "PRMT", 0x017: "IMNMX", 0x019: "SHF", 0x01a: "SGXT", 0x01c: "PLOP3", 0x020: "FMUL", 0x021: "FADD",
    0x023: "FFMA", 0x024: "IMAD", 0x025: "IMAD", 0x027: "IMAD", 0x02d: "PREEXIT", 0x02e: "ACQBULK", 0x02f: "ELECT",
    0x030: "HADD2", 0x031: "HFMA2", 0x032: "HMUL2", 0x035: "HFMA2", 0x036: "VIADD", 0x037: "IMMA", 0x03b: "LDSM",
    0x03c: "HMMA", 0x03e: "F2FP", 0x040: "HMNMX2", 0x044: "STSM", 0x045: "I2FP", 0x046: "VIADDMNMX", 0x048: "VIMNMX",
    0x04c: "UVIRTCOUNT", 0x076: "FMNMX3",
    0x082: "UMOV", 0x086: "VOTEU", 0x087: "USEL", 0x08c: "UISETP", 0x090: "UIADD3", 0x091: "ULEA",
    0x092: "ULOP3", 0x096: "UPRMT", 0x097: "UIADD3", 0x099: "USHF", 0x09a: "USGXT", 0x0a4: "UIMAD", 0x0a5: "UIMAD",
    0x0b9: "ULDC", 0x0bd: "UFLO", 0x0ca: "R2UR", 0x102: "FCHK", 0x105: "F2I", 0x106: "I2F", 0x107: "FRND",
    0x108: "MUFU", 0x109: "POPC", 0x118: "NOP", 0x119: "S2R", 0x11a: "DEPBAR", 0x11b: "ENDCOLLECTIVE", 0x11d: "BAR",
    0x141: "BSYNC", 0x142: "BREAK", 0x143: "CALL", 0x144: "CALL", 0x145: "BSSY", 0x146: "YIELD", 0x147: "BRA",
    0x148: "WARPSYNC", 0x14d: "EXIT", 0x150: "RET", 0x15c: "BPT", 0x15d: "NANOSLEEP", 0x181: "LDG", 0x182: "LDC",
    0x183: "LDL", 0x184: "LDS", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x18c: "ATOMS", 0x18e: "RED",
    0x18f: "CCTL", 0x192: "MEMBAR", 0x1a6: "REDG", 0x1a7: "SYNCS", 0x1a8: "ATOMG", 0x1ab: "ERRBAR", 0x1ac: "LDCU",
    0x1ae: "LDGSTS", 0x1af: "LDGDEPBAR", 0x1b2: "SYNCS", 0x1b4: "UTMALDG", 0x1b5: "UTMASTG", 0x1b6: "UTMAREDG",
    0x1b7: "UTMACMDFLUSH", 0x1b9: "UTMACCTL", 0x1bd: "STAS", 0x1c3: "S2UR", 0x1c4: "REDUX", 0x1c5: "WARPGROUP",
    0x1c6: "FENCE", 0x1c7: "UCGABAR", 0x1c8: "USETMAXREG", 0x1ca: "UGETNEXTWORKID", 0x1e3: "UTCATOMSWS",
    0x1e9: "UTCBAR", 0x1ea: "UTCHMMA", 0x1ee: "LDTM", 0x1f0: "HGMMA", 0x1f1: "IGMMA", 0x1f3: "QGMMA",
}  # fmt: skip
"""Names without modifiers; modifiers that matter are decoded where they are used."""
_OTHER_NAMES = """
MEMBAR CGAERRBAR ERRBAR FENCE CCTL YIELD NOP WARPSYNC USETMAXREG BSSY BSYNC BREAK NANOSLEEP
"""
_KIND_NAMES: dict[OpcodeKind, tuple[str, ...]] = {
    "atomic": ("ATOMG", "RED", "REDG"),
    "barrier": ("BAR", "UCGABAR", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "branch": ("BRA",),
    "constant": ("LDC", "LDCU", "ULDC", "S2R", "S2UR", "CS2R"),
    "copy": ("LDGSTS",),
    "copy.commit": ("LDGDEPBAR",),
    "exit": ("EXIT", "RET", "CALL"),
    "load": ("LDG", "LDL"),
    "matrix.load": ("LDSM",),
    "mbarrier": ("SYNCS",),
    "mma": ("HMMA", "IMMA"),
    "mufu": ("MUFU", "F2I", "I2F", "FRND", "FCHK", "POPC", "UFLO"),
    "shared.load": ("LDS", "ATOMS"),
    "shared.store": ("STS", "STSM"),
    "shuffle": ("SHFL", "R2UR", "VOTE", "VOTEU", "ELECT", "REDUX"),
    "store": ("STG", "STL"),
    "tma": ("UTMALDG", "UTMASTG", "UTMAREDG", "UTMACMDFLUSH", "UTMACCTL"),
    "wait": ("DEPBAR",),
    "wgmma": ("HGMMA", "IGMMA", "QGMMA"),
    "wgmma.sync": ("WARPGROUP",),
    "other": tuple(_OTHER_NAMES.split()),
}
_KIND_OF_NAME: dict[str, OpcodeKind] = {name: kind for kind, names in _KIND_NAMES.items() for name in names}
_TENSOR_PRODUCTS = {0: "UTCHMMA", 1: "UTCIMMA", 3: "UTCQMMA"}
"""Names of tensor-memory products, by the type field of their factors."""
_FORM_NAMES = {0x5AB: "CGAERRBAR", 0x9C7: "UCGABAR_ARV", 0xDC7: "UCGABAR_WAIT"}
"""Names that depend on the sources of the operands."""


def find_opcode_name(opcode: int, types: int) -> str:
    """Return the mnemonic of an opcode, such as `HMMA`, or its number as text, such as `0x1e0`, if unknown. `types` is
    the field that distinguishes products from tensor memory."""
    number = opcode & 0x1FF
    name = _FORM_NAMES.get(opcode & 0xFFF) or OPCODE_NAMES.get(number)
    return (_TENSOR_PRODUCTS.get(types) if name == "UTCHMMA" else name) or f"{number:#05x}"


def find_opcode_kind(opcode: int) -> OpcodeKind:
    """Return the kind of an opcode, `arithmetic` if unknown: a scoreboard shows if an instruction takes longer."""
    return _KIND_OF_NAME.get(OPCODE_NAMES.get(opcode & 0x1FF, ""), "arithmetic")
