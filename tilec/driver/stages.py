"""What each stage of the pipeline is as text, and what its verifier says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.driver.work import File, Work
from tilec.support.options import Stage

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import Laid
    from tilec.target.table import Target

SUFFIX: dict[Stage, str] = {
    "ast": ".ast",
    "tile": ".tile",
    "alias": ".alias",
    "layout": ".layout",
    "problem": ".problem.json",
    "schedule": ".trace.json",
    "expand": ".expand",
    "warp": ".warp",
    "ptx": ".ptx",
    "cubin": ".cubin",
}
"""How each stage's text is named."""


def text_of(stage: Stage, value: File | Work) -> str | bytes:
    """What a file, or one of its kernels, is at this stage."""
    if isinstance(value, File):
        return _of_file(stage, value)
    match stage:
        case "alias":
            from tilec.passes.analysis.alias import analyse, print_aliased

            return print_aliased(analyse(value.kernel))
        case "layout":
            return _laid(value.laid, value.target)
        case "problem":
            from tilec.driver.scheduling import problem_text

            return problem_text(value.problems)
        case "schedule":
            return value.trace
        case "expand" | "warp":
            from tilec.ir.warp_text import show_program

            return show_program(value.program)
        case _:
            from tilec.ir.text import print_kernel

            return print_kernel(value.kernel)


def _of_file(stage: Stage, file: File) -> str | bytes:
    if stage == "cubin":
        return file.cubin.cubin
    if stage == "ptx":
        return file.ptx
    if file.tree is None:
        return file.source.text
    from tilec.frontend.syntax.unparse import unparse

    return unparse(file.tree)


def violations(stage: Stage, work: Work) -> Iterable[str]:
    """The promises that a kernel breaks at this stage."""
    match stage:
        case "tile" if not work.mistakes.met:
            return _verified(work.kernel) if work.options.opt_level else _reads_back(work.kernel)
        case "problem":
            from tilec.driver.scheduling import problem_violations

            return problem_violations(work.problems)
        case "schedule":
            from tilec.driver.scheduling import schedule_violations

            return schedule_violations(work.loops)
        case "warp":
            from tilec.ir.warp_verify import program_violations

            return program_violations(work.program)
        case _:
            return ()


def _verified(kernel: Kernel) -> Iterator[str]:
    """The promises of tile IR, and of its operations."""
    from tilec.ir.verify import verify_tile
    from tilec.ops.form import show_violations

    broken = list(verify_tile(kernel))
    yield from broken or show_violations(kernel)


def _reads_back(kernel: Kernel) -> Iterator[str]:
    """The same, and that its text is all of it."""
    from tilec.ir.read import read_kernel
    from tilec.ir.text import print_kernel

    yield from _verified(kernel)
    text = print_kernel(kernel)
    if print_kernel(read_kernel(text)) != text:
        yield "its text does not read back identically"


def _laid(laid: Laid, target: Target) -> str:
    """The kernel, and under it where the elements of each tile live; what layouts of shared tiles were chosen from."""
    from tilec.ir.text import print_kernel
    from tilec.ir.warp_text import show_fragment, show_shared
    from tilec.passes.layout.atoms import scores, shared_accesses

    lines = [print_kernel(laid.kernel)]
    for name, fragment in laid.fragments.items():
        lines.append(f"fragment {name}: {show_fragment(fragment)}")
    reached = list(shared_accesses(laid.kernel, laid.fragments, laid.nest_layout))
    buffers = {buffer.name: buffer for buffer in laid.kernel.buffers}
    for name, shared in laid.shared.items():
        where = f"{shared.panels} panels of {shared.panel}, swizzle {shared.swizzle}"
        lines.append(f"shared {name}: {where if shared.placement is None else show_shared(shared)}")
        if name not in buffers or shared.placement is not None:
            continue
        patterns = [access.pattern for access in reached if access.tile == name]
        for swizzle, (cost, score) in scores(buffers[name], patterns, target.weights).items():
            taken = f"{cost.smem_transactions} transactions, {cost.live_registers} registers"
            lines.append(f"  swizzle {swizzle}: score {score:g} ({taken})")
    return "\n".join(lines) + "\n"
