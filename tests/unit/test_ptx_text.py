"""Printing and parsing PTX: what is printed is read back, and other compilers' spelling is understood."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilec.ptx.module import (
    Address,
    Block,
    Comment,
    Entry,
    FloatImm,
    Guard,
    Imm,
    Instruction,
    Item,
    Label,
    Loc,
    Module,
    NotPred,
    Operand,
    Pair,
    Param,
    Reg,
    RegDecl,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
)
from tilec.ptx.parse import PtxSyntaxError, _make_parser, parse_module
from tilec.ptx.text import print_module


def module(*body: Item, params: tuple[Param, ...] = (), variables: tuple[Variable, ...] = ()) -> Module:
    entry = Entry("kernel", params, (".reqntid 128, 1, 1", ".minnctapersm 1"), body)
    return Module("8.0", "sm_90a", variables, (entry,), ("gemm.tl",))


R0, R1, P0 = Reg("%r0"), Reg("%r1"), Reg("%p0")

OPERANDS: list[Operand] = [
    R0,
    Reg("%tid.x"),
    Reg("_"),
    Imm(0),
    Imm(-5),
    Imm(2**63 + 1),
    FloatImm(0x3F800000, 32),
    FloatImm(0x3FF8000000000000, 64),
    Symbol("smem"),
    Symbol("smem", 131416),
    Symbol("smem", -16),
    Address(R0),
    Address(R0, 16),
    Address(R0, -1024),
    Address(Symbol("barriers"), 8),
    Address(Imm(64)),
    TensorAddress(Reg("%rd1"), (R0, R1, Imm(3))),
    TensorAddress(Symbol("map"), (R0,)),
    Vector((R0, Reg("_"), Imm(7))),
    Vector((R0,)),
    Pair(Reg("_"), P0),
    NotPred(P0),
]


@pytest.mark.parametrize("operand", OPERANDS, ids=repr)
def test_every_operand_is_read_back(operand: Operand) -> None:
    printed = module(Instruction("ld.shared::cta.b32", (R1, operand)))
    assert parse_module(print_module(printed)) == printed


def test_every_item_is_read_back() -> None:
    printed = module(
        RegDecl("b32", "%r", 8),
        RegDecl("pred", "ready"),
        Loc(1, 14, 3),
        Label("$loop"),
        Instruction("bra", (Symbol("$loop"),), Guard(Reg("ready"), negated=True)),
        Block((RegDecl("pred", "p", 2), Instruction("mov.pred", (Reg("p1"), Reg("ready"))), Label("done"))),
        Variable("local", "stack", 8, 64),
        Instruction("ret"),
        params=(Param("u64", "a"), Param("b8", "map", 64, 128)),
        variables=(
            Variable("shared", "smem", 1024, 0, "extern"),
            Variable("shared", "barriers", 8, 64),
            Variable("global", "manifest", 1, 3, "visible", b"abc"),
        ),
    )
    assert parse_module(print_module(printed)) == printed


def test_printing_is_readable_and_keeps_comments() -> None:
    text = print_module(module(Comment("k loop"), Label("top"), Instruction("add.s32", (R0, R1, Imm(1)), Guard(P0))))
    assert "    // k loop\ntop:\n    @%p0 add.s32 %r0, %r1, 1;\n" in text


def body_of(text: str) -> tuple[Item, ...]:
    source = f".version 8.0\n.target sm_90a\n.address_size 64\n.entry k()\n{{\n{text}\n}}\n"
    return parse_module(source).entries[0].body


def test_instructions_carry_their_line() -> None:
    items = body_of("add.s32 %r0, %r1, 1; // one\n/* two\nlines */ ret;")
    assert [item.line for item in items if isinstance(item, Instruction)] == [6, 8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add .s32 %r0,%r1, 0x8000U;", Instruction("add.s32", (R0, R1, Imm(0x8000)))),
        ("ld.shared.b32 %r0, [ %r1 + 0 ];", Instruction("ld.shared.b32", (R0, Address(R1)))),
        ("ld.shared.b32 %r0, [%r1-8];", Instruction("ld.shared.b32", (R0, Address(R1, -8)))),
        ("mov.b32 %r0, WARP_SZ;", Instruction("mov.b32", (R0, Imm(32)))),
        (
            "st.shared.v2.b32 [symbol+131416], {0, 16843009};",
            Instruction("st.shared.v2.b32", (Address(Symbol("symbol"), 131416), Vector((Imm(0), Imm(16843009))))),
        ),
        (
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group .L2::cache_hint [%rd1, {%r0,%r1}], [%r0], %rd2;",
            Instruction(
                "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint",
                (TensorAddress(Reg("%rd1"), (R0, R1)), Address(R0), Reg("%rd2")),
            ),
        ),
    ],
)
def test_spellings_of_other_compilers(text: str, expected: Instruction) -> None:
    assert body_of(text) == (expected,)


def test_plain_names_are_registers_where_declared() -> None:
    items = body_of("{.reg.b32 f; .reg .pred p, q; mov.b32 f, smem; @p bra p1; ld.shared.b32 f, [f]; }")
    block = items[0]
    assert isinstance(block, Block)
    assert block.body[3:] == (
        Instruction("mov.b32", (Reg("f"), Symbol("smem"))),
        Instruction("bra", (Symbol("p1"),), Guard(Reg("p"))),
        Instruction("ld.shared.b32", (Reg("f"), Address(Reg("f")))),
    )


def test_typed_variables_become_bytes() -> None:
    text = (
        ".version 8.0\n.target sm_90a, debug\n.shared .align 8 .b64 mb[4];\n"
        ".global .u32 table[2][2] = {{1, 0x10}, {3, 4}};\n.global .f32 one = 0f3F800000;\n"
        ".visible .entry k(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 s[40]) .maxntid 128, 1, 1 { ret; }"
    )
    parsed = parse_module(text)
    assert parsed.target == "sm_90a"
    assert parsed.variables == (
        Variable("shared", "mb", 8, 32),
        Variable("global", "table", 4, 16, "", b"\1\0\0\0\x10\0\0\0\3\0\0\0\4\0\0\0"),
        Variable("global", "one", 4, 4, "", b"\0\0\x80?"),
    )
    assert parsed.entries[0].params == (Param("u64", "a"), Param("b8", "s", 8, 40))
    assert parsed.entries[0].directives == (".maxntid 128, 1, 1",)


def test_a_syntax_error_names_the_line() -> None:
    with pytest.raises(PtxSyntaxError, match=r"PTX line 7: cannot read 'add\.s32 %r0 %r1;'"):
        body_of("ret;\nadd.s32 %r0 %r1;")


FUNCTIONS = """
.version 8.0
.target sm_90a
.address_size 64

.extern .func (.param .b32 r) outside(.param .b64 a)
;
.weak .func (.param .b32 r) inside(.param .b32 x)
.noreturn
{
    ret;
}
.func registers(.reg .u32 x) { ret; }
.alias other, inside;
.visible .global .align 8 .u64 table[2] = {inside, generic(table)+8};
.visible .entry k(.param .u64 out)
{
    .reg .v4 .f32 v;
    .reg .b64 %rd<2>;
    .reg .b32 %r<3>;
    .param .b32 a;
    call.uni (a), inside, (a);
    call (%r1), %rd1, (%r1, 5), proto;
    proto: .callprototype (.reg .b32 _) _ (.reg .b32 _, .reg .b32 _);
list: .branchtargets one, two;
    brx.idx %r1, list;
one:
two:
    mov.f32 v.x, 0f00000000;
    ret;
}
"""


def test_functions_print_and_parse() -> None:
    module = parse_module(FUNCTIONS)
    assert [function.name for function in module.functions] == ["outside", "inside", "registers", "other"]
    assert module.functions[0].body is None
    assert module.functions[2].params == (Param("u32", "x", is_register=True),)
    table = module.variables[0]
    assert [(item.symbol, item.offset, item.addend) for item in table.relocations] == [
        ("inside", 0, 0),
        ("table", 8, 8),
    ]
    printed = print_module(module)
    # An address is printed byte by byte, and stays so from then on.
    assert print_module(parse_module(printed)) == printed
    assert "call.uni (a), inside, (a);" in printed
    assert "list: .branchtargets one, two;" in printed


# ---- in one piece ----------------------------------------------------------------------------------------------------

PLAIN = [
    "ret;",
    "bar.sync 0;",
    "bra.uni $L_3;",
    "@%p1 bra loop;",
    "@!%p1 mov.u32 %r1, %tid.x;",
    "@p mov.u32 a, WARP_SZ;",
    "mov.b32 %f1, 0f3F800000;",
    "mov.f64 %fd1, 0d3FF0000000000000;",
    "add.s32 %r1,%r2,-3;",
    "setp.lt.s32 %p1|_, %r1, 007;",
    "setp.ne.s32 _|%p1, %r1, 0x1f;",
    "mov.u64 %rd1, smem+16;",
    "mov.b64 %rd1, {%r1, _};",
    "mov.b64 {%r1, %r2}, %rd1;",
    "ld.shared::cta.v2.b32 {%r1,%r2}, [%rd1+-16];",
    "ld.global.b32 _, [_];",
    "ld.shared.b32 %r1, [smem+8];",
    "ld.shared.b32 %r1, [64];",
    "ld.shared.b32 %r1, [%r1-4];",
    "st.shared.b32 [%r1], -1;",
    "selp.b32 %r1, %r2, 3, !%p1;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, 0}], [smem+8];",
    "mov.u32 %r1, 4294967295U;",
    "mov.f32 %f1, 1.5e3;",
]


@pytest.mark.parametrize("line", PLAIN)
def test_an_instruction_in_one_piece_is_what_the_rules_say(line: str) -> None:
    """With a blank before the semicolon, it is read word by word."""
    assert _make_parser().parse(MODULE.format(line)) == _make_parser().parse(MODULE.format(line.replace(";", " ;")))
    (entry,) = parse_module(MODULE.format(line)).entries
    assert isinstance(entry.body[-1], Instruction) and entry.body[-1].line == 6


MODULE = ".version 8.0\n.target sm_90a\n.entry k()\n{{\n.reg .pred p; .reg .b32 a;\n{}\n}}\n"


def test_most_instructions_are_read_in_one_piece() -> None:
    kinds = [next(t.type for t in _make_parser().lex(MODULE.format(line)) if t.line == 6) for line in PLAIN]
    assert [line for line, kind in zip(PLAIN, kinds, strict=True) if kind != "PLAIN"] == [
        "setp.lt.s32 %p1|_, %r1, 007;",
        "setp.ne.s32 _|%p1, %r1, 0x1f;",
        "mov.u32 %r1, 4294967295U;",
        "mov.f32 %f1, 1.5e3;",
    ]


def test_numbers_in_one_piece_are_what_the_rules_say() -> None:
    text = ".version 8.0\n.target sm_90a\n.global .align 4 .b8 a[6] = {{1, 2,\n 017, 255}};\n"
    plain = parse_module(text.replace("{{", "{").replace("}}", "}"))
    assert plain.variables[0].data == bytes([1, 2, 15, 255]) and plain.variables[0].size == 6
    assert plain == parse_module(text.replace("{{", "{ ").replace("}}", " }"))


@pytest.mark.parametrize(
    "name", ["é.tl", "a b.tl", 'a"b.tl', "a\\b.tl", "100%.tl", "%41.tl", "a\nb.tl", "\u202e.tl", "\udcff.tl", "\x7f.tl"]
)
def test_any_name_of_a_file_is_printed_in_ascii_and_read_back(name: str) -> None:
    given = replace(module(Loc(1, 3, 5)), files=(name, "other.tl"))
    text = print_module(given)
    assert text.isascii() and (text.replace("\n", "").isprintable())
    assert parse_module(text) == given


def test_a_name_that_needs_no_quoting_stays() -> None:
    assert '.file 1 "gemm (2).tl", 1, 1\n' in print_module(replace(module(), files=("gemm (2).tl",)))


def test_a_comment_is_printed_in_ascii() -> None:
    assert print_module(module(Comment("größer\x1b"))).isascii()
