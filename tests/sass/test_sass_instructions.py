"""The machine code of kernels as tilec reads it: control words by hand, all else as the disassembler says too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sass_disassembly import Said, said

from tilec.driver.build import Observer, build_kernel, build_library
from tilec.ptx.assemble import assemble_module
from tilec.ptx.disassemble import disassemble_cubin
from tilec.sass.cubin import read_functions
from tilec.sass.instruction import Control, Instruction, decode_control
from tilec.sass.line_table import read_rows
from tilec.support import files
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = ("gemm", "flash_attention", "gemm/dequant_int4", "gemm/int8", "rows/softmax_online", "elementwise/transpose")
SAMPLES_FOLDER = Path(__file__).parents[2] / "samples"
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def test_control_words_by_hand() -> None:
    """Of a GEMM for sm_90a: S2R R3 gives scoreboard 2 its result, and ISETP behind it waits for that one. Above bit 41
    of the upper half stand, from the right, stall, yield, write, read, wait and reuse."""
    s2r = decode_control(0x000EAE0000002100)  # 000000 111 010 1 0111
    assert s2r == Control(stall=7, may_yield=False, writes=2, reads=None, waits=(), reuse=0)
    isetp = decode_control(0x004FC40003F05070)  # 000100 111 111 0 0010
    assert isetp == Control(stall=2, may_yield=True, writes=None, reads=None, waits=(2,), reuse=0)
    bar = decode_control(0x01AFEA0000010000)  # 011010 111 111 1 0101
    assert bar == Control(stall=5, may_yield=False, writes=None, reads=None, waits=(1, 3, 4), reuse=0)
    store = decode_control(0x0003E20000010000)  # 000000 001 111 1 0001
    assert (store.stall, store.writes, store.reads) == (1, None, 1)
    hmma = decode_control(0x044FF00000001814)  # 0001 000100 111 111 1 1000: HMMA.16816.F32 R20, R64.reuse, R60, R20
    assert hmma == Control(stall=8, may_yield=False, writes=None, reads=None, waits=(2,), reuse=1)


def test_as_assemblers_write_it() -> None:
    assert str(decode_control(0x01AFEA0000010000)) == "B-1-34-:R-:W-:-:S05"
    assert str(decode_control(0x000EAE0000002100)) == "B------:R-:W2:-:S07"


def cubin(sample: str, target: str) -> bytes:
    source = files.read_source(str(SAMPLES_FOLDER / f"{sample}.tl"))
    return build_library(source, CompileOptions(target=target), Observer()).cubin


def read(data: bytes) -> dict[tuple[str, int], Instruction]:
    return {(each.name, one.address): one for each in read_functions(data) for one in each.instructions}


@pytest.mark.some(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_disassembler_says_the_same(sample: str, target: str) -> None:
    data = cubin(sample, target)
    mine = read(data)
    theirs = said(data)
    ptx = {(each.function, each.address): each.line for each in said(data, "-gp")}
    assert {(each.function, each.address) for each in theirs if each.opcode != "NOP"} <= mine.keys()
    for each in theirs:
        one = mine.get((each.function, each.address))
        if one is not None:
            assert one.name == each.opcode.split(".")[0]
            assert one.guard == each.guard.replace("UP", "P")
            assert one.target == each.target
            assert (one.line and one.line[1], one.ptx_line) == (each.line, ptx[each.function, each.address])
            if target != "sm_100a":  # which keeps some widths elsewhere
                check_fields(one, each)


def check_fields(one: Instruction, said_of: Said) -> None:
    """Widths, shapes and counts that its schedule depends on."""
    words = said_of.opcode.split(".")[1:]
    if one.kind in ("load", "store", "copy", "shared.load", "shared.store") and one.name != "STSM":
        bits = next((int(word.lstrip("US")) for word in words if re.fullmatch(r"[US]?(8|16|32|64|128)", word)), 32)
        assert one.bytes == bits // 8
    if one.name in ("LDSM", "STSM"):
        assert one.bytes == 4 * int(words[-1])
    if one.kind == "wgmma":
        shape = next(word for word in words if "x" in word)
        assert one.columns == int(shape.split("x")[1])
        assert one.is_from_registers == bool(re.fullmatch(r"R\d+", said_of.operands.split(", ")[1]))
        assert one.ends_group == said_of.operands.endswith("gsb0")
    groups = re.fullmatch(r"gsb0, (0x\w+)", said_of.operands) if said_of.opcode == "WARPGROUP.DEPBAR.LE" else None
    assert one.max_pending_groups == (int(groups[1], 16) if groups else None)
    board = re.fullmatch(r"SB(\d), (0x\w+)", said_of.operands) if said_of.opcode == "DEPBAR.LE" else None
    assert one.awaited_scoreboard == ((int(board[1]), int(board[2], 16)) if board else None)
    assert one.only_arrives == said_of.opcode.startswith("BAR.ARV")


def test_several_functions_have_their_own_lines() -> None:
    entries = [
        f".visible .entry {name}(.param .u64 P) {{ .reg .b64 %rd<3>; .reg .b32 %r<2>; .loc 1 {line} 1\n"
        "ld.param.u64 %rd0, [P]; cvta.to.global.u64 %rd1, %rd0; mov.u32 %r0, %tid.x; st.global.u32 [%rd1], %r0; ret; }"
        for name, line in (("first", 7), ("second", 9))
    ]
    ptx = '.version 8.0\n.target sm_80\n.address_size 64\n.file 1 "k.tl", 1, 1\n' + "\n".join(entries)
    found = read_functions(assemble_module(ptx, "sm_80").cubin)
    lines = {each.name: {one.line for one in each.instructions} for each in found}
    assert lines == {"first": {(1, 7)}, "second": {(1, 9)}}


def test_what_is_no_cubin() -> None:
    with pytest.raises(ValueError, match="64-bit ELF"):
        read_functions(b"PTX")
    with pytest.raises(ValueError, match="not a cubin"):
        read_functions(b"\x7fELF\x02\x01" + bytes(10))


def test_a_line_table_in_another_form() -> None:
    """Of DWARF 5 nothing is read; one that is cut off is refused."""
    assert list(read_rows(b"\x06\0\0\0\x05\0\1\2\3\4")) == []
    with pytest.raises(ValueError, match="line table"):
        list(read_rows(b"\xff\0\0\0\x02\0\0"))


def test_numbers_that_nobody_has_named_are_shown() -> None:
    one = Instruction(0, 0x71E0, 0x000FE20000000000)
    assert (one.name, one.kind, str(one)) == ("0x1e0", "arithmetic", "0x1e0")


def test_a_small_cubin_is_disassembled_as_a_large_one_is() -> None:
    text = (
        "import tilelang.language as T\n\n\n@T.prim_func\n"
        'def k(A: T.Tensor((32,), "float32")):\n    with T.Kernel(1, threads=32):\n        A[0] = 1.0\n'
    )
    cubin = build_kernel(SourceFile("k.tl", text), CompileOptions(target="sm_90a"), Observer()).cubin
    assert len(cubin) < 8192, "what a buffer of a file holds"
    assert "EXIT" in (disassemble_cubin(cubin) or "")
