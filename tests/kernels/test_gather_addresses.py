"""The address arithmetic of a gather: no division by constants, and one base for rows that lie behind each other."""

from __future__ import annotations

from harness import SAMPLES, built

from tilec.ptx.module import Address, Instruction
from tilec.ptx.parse import parse_module


def test_rows_of_an_image_share_a_base_and_no_quotient_is_a_division() -> None:
    """Index arithmetic divides a pixel's number into an image, a row and a column, and its address joins them."""
    _, made = built(SAMPLES / "models/conv2d.tl", "sm_90a", H=28, W=28, C=128)
    code = [item for item in parse_module(made.ptx).entries[0].body if isinstance(item, Instruction)]
    assert not [i.opcode for i in code if i.opcode.startswith(("div.", "rem."))]
    copies = [i for i in code if i.opcode.startswith("cp.async.cg.shared.global")]
    bases = {i.operands[1].base for i in copies if isinstance(i.operands[1], Address)}
    assert len(copies) >= 4 * len(bases)
