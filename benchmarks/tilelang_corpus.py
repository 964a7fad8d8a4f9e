"""How many TileLang kernels of a checkout can be compiled as they are, and what stands in the way of the others.

    python benchmarks/tilelang_corpus.py --source DIR [--under examples] [--target sm_90a ...]
        [--until front|check|build|emulate] [--opt-level 2] [--jobs 2] [--json FILE] [--show CODE ...]
        [--only PART] [--every N] [--seconds S]

DIR is a checkout of a repository with TileLang kernels; nothing of it is copied, and nothing of it runs. A kernel is a
function under `@tilelang.jit` or `@T.prim_func` at the top of a file, or one that returns such a function of its own.
The values that it takes are those of the repository's own calls (`tilelang_arguments`), or else usual ones by their
names (`USUAL`, `GUESSED`). Files about other machines are left out (`OTHERS`), and for a target the kernels that name a
later one (`NEEDS`), or whose tests ask for one. Of those that are refused, `tilelang_reasons` says which the repository
itself shows to be wrong, or not for this machine: the rate is given with and without them. Each kernel is compiled in a
process of its own, for at most `--seconds` of the processor. FILE is written after each kernel.

With `--until emulate` a kernel is built at small sizes where it can be, run in the emulator, and compared with its tile
IR run by numpy. Of a large grid some blocks run, and what they wrote is compared; that needs blocks that do not depend
on one another. What is too large even for that counts as an obstacle. Integer tensors are mostly indices: where a
kernel makes nothing of drawn ones, it runs again with ascending ones (`INDICES`). Two targets, or two values of
`--opt-level`, agree where each agrees with numpy.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import multiprocessing
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tilelang_arguments import Script, read_script
from tilelang_objects import Dtype, Tensor
from tilelang_reasons import explain_refusal, find_least_capability, is_for_another_machine

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.driver.emulation.compare import KernelArguments, has_finite_inputs, merge_written_masks
from tilec.emu import Fault
from tilec.frontend.syntax.parse import parse_file
from tilec.ir.text import print_kernel
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SECONDS = 60
OTHERS = re.compile(
    r"(^|/)(amd|ascend|metal|cpu|llvm|plot_layout|analyze|visual_layout_inference|autodd|aws|iket)(/|_|$)|rdna|cdna|mfma"
)
"""Other machines, and scripts that have no kernels to run."""
NEEDS = (
    (100, re.compile(r"tcgen05|tmem|sm_?1[02]0|blockscaled|tma_gather4|clc_")),
    (
        90,
        re.compile(
            r"wgmma|tma_copy|T\.ws\(|set_max_nreg|use_tma|Cluster|cluster_|[Hh]opper|sm_?90|_ws\b|InputTilePipeline"
        ),
    ),
)
"""What names a machine, in the path of a file or in the text of a kernel."""
ROUNDS = 8
"""Of looking up what is still missing."""
RUNS: dict[str, Callable[..., object]] = {
    "front": driver.load_kernels, "check": driver.check_file, "build": driver.build_library,
    "emulate": driver.load_kernels,
}  # fmt: skip
"""What is run of the compiler, by --until. What is emulated is elaborated first, for its values."""
SMALL = (256, 64)
"""The sizes of tensors in the emulator, where a kernel takes them; the second for what is too large with the first."""
MOST_ELEMENTS, MOST_BLOCKS, SAMPLE = 1 << 26, 64, 8
"""Of all tensors; of a grid that runs as a whole; and the blocks that run of a larger one."""
MOST_DEPENDENT_BLOCKS = 256
"""Of a grid whose blocks depend on one another, so that it runs as a whole or not at all."""
INDICES = ("drawn", "consecutive", "spread")
"""The orders of the integers that are tried, as long as they are to blame for what comes of a kernel."""
DEPENDENT = re.compile(r"atomic|sync_grid|grid_barrier")
"""What names a dependence between blocks, in tile IR."""
HEADS = re.compile(r"(?i)^h[qkv]?$|heads?(_num)?$|head_kv$")
HEADS_AND_GROUPS = re.compile(rf"{HEADS.pattern}|groups?$")
"""Counts of heads, which shrink by a common divisor, and the ratios between them."""
BATCHES = re.compile(r"(?i)b|batch|batch_size|bs")
OF_BLOCKS = re.compile(r"(?i)block|blk|tile|thread|stage|dim|head|chunk|topk|vec|^[b]?[dkv]$")
"""Sizes of parts, which no tensor has alone, up to `LARGEST_PART`."""
LARGEST_PART = 1024

USUAL: dict[str, object] = {
    "batch": 2, "batch_size": 2, "B": 2, "heads": 8, "num_heads": 8, "H": 8, "seq_len": 1024, "seqlen": 1024, "S": 1024,
    "seq_q": 1024, "seq_kv": 1024, "seqlen_q": 1024, "seqlen_kv": 1024, "dim": 64, "D": 64, "head_dim": 64, "M": 1024,
    "N": 1024, "K": 1024, "block_M": 64, "block_N": 64, "block_K": 32, "block_m": 64, "block_n": 64, "block_k": 32,
    "blk_m": 64, "blk_n": 64, "threads": 128, "num_threads": 128, "num_stages": 2, "num_split": 4, "num_splits": 4,
    "groups": 2, "dtype": "float16", "in_dtype": "float16", "out_dtype": "float16", "accum_dtype": "float32",
    "is_causal": False, "causal": False, "trans_A": False, "trans_B": False, "eps": 1e-6, "scale": 0.125,
    "chunk_size": 64, "DK": 64, "DV": 64, "block_DK": 64, "block_DV": 64, "dim_qk": 64, "dim_v": 64, "topk": 64,
    "group_size": 128, "split_k": 2, "num_bits": 4, "block_size": 64, "kv_heads": 2, "dim_k": 64, "n": 1024, "m": 1024,
    "thread_num": 128, "enable_rasteration": True, "enable_rasterization": True,
    "num_v_heads": 8, "num_k_heads": 8, "dim_kv": 64, "pe_dim": 64, "kv_head_num": 1, "block_H": 64, "num_expert": 8,
}  # fmt: skip
GUESSED: tuple[tuple[str, object], ...] = (
    (r"policy|list|fn|func|lambda|config", None), (r"dtype|type$", "float16"),
    (r"^(is|use|with|enable|has|trans)_", False),
    (r"total|max_|seq|len|tokens|^U|CTX|^S|pages", 1024), (r"block|blk|tile|dim|^[DKVd]|chunk", 64),
    (r"thread", 128), (r"stage", 2), (r"scale|eps", 0.125), (r"size|hidden|expert", 128), (r"", 4),
)  # fmt: skip
"""What names that nothing says more about are given, by a part of them."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of the corpus, and what came of it for a target: no `code` where it was built."""

    file: str
    name: str
    target: str
    code: str = ""
    title: str = ""
    line: str = ""
    seconds: float = 0.0
    defines: str = ""
    reason: str = ""
    """Why it was right to refuse it, if the repository itself says so."""


@dataclass(frozen=True)
class Run:
    """What is done with each kernel: the last step, tilec's optimisation level, and the seconds of the processor."""

    until: str = "build"
    opt_level: int = 3
    seconds: int = SECONDS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--under", default="examples")
    parser.add_argument("--target", nargs="*", default=["sm_90a", "sm_80"])
    parser.add_argument("--until", choices=tuple(RUNS), default="build")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", nargs="*", default=(), help="codes whose kernels are listed, with their messages")
    parser.add_argument("--only", default="", help="of files whose path has this in it")
    parser.add_argument("--every", type=int, default=1, help="only each Nth kernel")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of the processor, for one kernel")
    parser.add_argument("--opt-level", type=int, default=3, help="that of tilec, from 2 on with a cubin")
    given = parser.parse_args()
    asked: list[tuple[Path, str, str, str]] = []
    left_out: Counter[str] = Counter()
    for path in sorted((given.source / given.under).rglob("*.py")):
        place = str(path.relative_to(given.source))
        if OTHERS.search(place) or given.only not in place:
            continue
        tree = None
        for name, text in kernels(path):
            tree = tree or ast.parse(path.read_text(encoding="utf-8"))
            if is_for_another_machine(tree, name):
                continue
            least = find_least_capability(tree, name)
            for target in given.target:
                if is_for(f"{place}\n{text}", target, least):
                    asked.append((path, place, name, target))
                else:
                    left_out[target] += 1
    with suppress(CompileError):  # what says what is wrong with a text is made once, for all processes
        parse_file(SourceFile("k.tl", "x = = 1"))
    how = Run(given.until, given.opt_level, given.seconds)
    found: list[Kernel] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for kernel in pool.map(lambda each: compiled(*each, how), asked[:: given.every]):
            found.append(kernel)
            if given.json:
                given.json.write_text(json.dumps([asdict(each) for each in found], indent=1), encoding="utf-8")
    report(found, given.target, given.show, left_out)
    return 0


# ---- what there is ---------------------------------------------------------------------------------------------------


def kernels(path: Path) -> Iterator[tuple[str, str]]:
    """The names of the kernels of a file, with their text."""
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    for node in functions:
        if _is_kernel(node) or _gives_kernel(node):
            yield node.name, ast.get_source_segment(text, node) or ""


def _gives_kernel(function: ast.FunctionDef) -> bool:
    """Whether it returns a kernel that is in it, or a function that gives one: one that tunes or runs it does not."""
    own = [node for statement in function.body for node in _within(statement)]
    functions = [node for node in own if isinstance(node, ast.FunctionDef)]
    inside = {node.name for node in functions if _is_kernel(node) or _gives_kernel(node)}
    given = (node.value for node in own if isinstance(node, ast.Return))
    return any(isinstance(value, ast.Name) and value.id in inside for value in given)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without what functions in it have."""
    yield node
    if not isinstance(node, ast.FunctionDef):
        for part in ast.iter_child_nodes(node):
            yield from _within(part)


def _is_kernel(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    said = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(re.search(r"\b(prim_func|tilelang\.jit|(?<!\.)jit)\b", each) for each in said)


def is_for(text: str, target: str, capability: int = 0) -> bool:
    """Whether nothing in a kernel names a later machine, nor its tests ask for one, of this compute capability."""
    number = int(re.sub(r"\D", "", target))
    return number >= capability and all(number >= least or not found.search(text) for least, found in NEEDS)


def values(path: Path, name: str) -> dict[str, Any]:
    """What the file, and those beside it that import from it, give the kernel."""
    script = read_script(path)
    others = tuple(each for each, _ in kernels(path))
    for other in sorted(path.parent.glob("*.py")):
        text = other.read_text(encoding="utf-8")
        if other != path and re.search(rf"\b{path.stem} import|import {path.stem}\b", text):
            script.beside.append(read_script(other))
    return script.arguments(name, others)


# ---- one kernel ------------------------------------------------------------------------------------------------------


def compiled(path: Path, place: str, name: str, target: str, how: Run) -> Kernel:
    """A process for it, which has read the compiler already."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sending, str(path), name, target, how))
    process.start()
    sending.close()
    try:
        made = receiving.recv()
    except EOFError:
        made = ("ended", f"no answer in {how.seconds} s", "", float(how.seconds), "")
    process.join()
    code, title = made[:2]
    reason = explain_refusal(path.read_text(encoding="utf-8"), name, code, title) if code else ""
    return Kernel(place, name, target, *made, reason)


def child(answer: Any, path: str, name: str, target: str, how: Run) -> None:
    """Answer with what comes of a kernel, after at most the run's seconds of the processor."""
    used = math.ceil(time.process_time())  # what the parent did before the fork does not count, but its limit may
    resource.setrlimit(resource.RLIMIT_CPU, (used + how.seconds, used + how.seconds))
    made, shown = examine(path, name, target, how.until, how.opt_level)
    answer.send((made.code, made.title, made.line, made.seconds, shown))


def examine(path: str, name: str, target: str, until: str, opt_level: int = 3) -> tuple[Attempt, str]:
    """Compile a kernel, adding values as long as some are asked for. Returns the first mistake, and the values."""
    source = read_source(path)
    said = {k: given for k, v in values(Path(path), name).items() if (given := text_of(v)) is not None}
    of_file = Script(ast.parse(source.text)).known_in(None)
    function = next(n for n in ast.parse(source.text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    taken = set(parameters(function))
    defines = {k: v for k, v in said.items() if k in taken}
    run, options = RUNS[until], CompileOptions(target=target, entry=name, lint="off", opt_level=opt_level)
    for _ in range(ROUNDS):
        made = attempt(run, source, replace(options, defines=tuple(defines.items())))
        if made.error is None or not mended(defines, made.error, said, of_file):
            break
    if until == "emulate" and not made.code:
        made = attempt(driver.check_file, source, replace(options, defines=tuple(defines.items())))
        if not made.code:
            made, defines = emulate_smaller(source, options, defines, find_constants(function, of_file))
    return made, " ".join(f"-D {k}={v}" for k, v in defines.items())


@dataclass(frozen=True)
class Attempt:
    """What came of one run of the compiler: the first mistake, if there is one, and the seconds of the processor."""

    code: str = ""
    title: str = ""
    line: str = ""
    seconds: float = 0.0
    error: CompileError | None = None


class Obstacle(Exception):
    """What the tool itself finds: a wrong result, or a kernel too large to emulate."""

    def __init__(self, code: str, title: str) -> None:
        super().__init__(title)
        self.code, self.title = code, title


def attempt(run: Callable[..., object], source: SourceFile, options: CompileOptions) -> Attempt:
    """Run a part of the compiler, and keep its first mistake."""
    began = time.process_time()
    code = title = line = ""
    failed: CompileError | None = None
    try:
        run(source, options, driver.Observer())
    except CompileError as error:
        first, failed = error.diagnostics[0], error
        code, title = first.code, first.title
        if first.primary:
            span = first.primary.span
            title += f" ({first.primary.text})" if first.primary.text else ""
            line = f"{span.file or ''}:{span.line}"
    except Obstacle as obstacle:
        code, title = obstacle.code, obstacle.title
    except Fault as fault:
        code, title = "emulation-fault", f"{fault.kind}: {fault.message}"
    except InternalError as error:
        code, title = "internal", str(error)
    except Exception as error:
        code, title = "crash", f"{type(error).__name__}: {error}"
    return Attempt(code, title, line, round(time.process_time() - began, 2), failed)


def find_constants(function: ast.FunctionDef, of_file: dict[str, Any]) -> dict[str, int]:
    """Return the integers of the file that a function reads: -D replaces them too."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {a.arg for node in ast.walk(function) if isinstance(node, ast.FunctionDef) for a in node.args.args}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    read = {node.id for node in names} - own
    return {name: value for name, value in of_file.items() if name in read and type(value) is int}


def emulate_smaller(
    source: SourceFile, options: CompileOptions, defines: dict[str, Any], constants: dict[str, int]
) -> tuple[Attempt, dict[str, Any]]:
    """Emulate a kernel at small sizes, still smaller ones where it is too large; return what came of it, and those.
    `constants` are the file's."""
    made, sizes = Attempt("too-large"), defines
    for small in SMALL:
        if made.code == "too-large":
            sizes = choose_sizes(source, options, sizes, constants, small)
            run = partial(emulate_launches, small=small)
            made = attempt(run, source, replace(options, defines=tuple(sizes.items())))
    return made, sizes


def emulate_launches(source: SourceFile, options: CompileOptions, observer: driver.Observer, *, small: int) -> None:
    """Run each kernel that a function launches, in the emulator, and compare its outputs. `small` is what launch-time
    sizes are."""
    count = len(driver.load_kernels(source, options, observer))
    for number in range(count):
        name = options.entry if count == 1 else f"{options.entry}_{number + 1}"
        emulate_kernel(source, replace(options, entry=name), observer, small)


def emulate_kernel(source: SourceFile, options: CompileOptions, observer: driver.Observer, small: int) -> None:
    """Run a kernel in the emulator on drawn arguments, and compare its outputs with its tile IR run by numpy. Of a
    large grid of blocks that do not depend on one another, `SAMPLE` run. Where the drawn indices are to blame for what
    came of it, ascending ones are tried."""
    build = driver.build_kernel(source, options, observer)
    sizes = dict.fromkeys(build.manifest.size_scalars(), small)
    arguments = emulate.make_blank_arguments(build.kernel, build.manifest, sizes)
    elements = sum(a.size for a in arguments.tensors.values())
    blocks = math.prod(emulate.compute_grid(build.manifest, arguments))
    is_dependent = blocks > MOST_BLOCKS and bool(DEPENDENT.search(print_kernel(build.kernel)))
    if elements > MOST_ELEMENTS or (is_dependent and blocks > MOST_DEPENDENT_BLOCKS):
        dependent = " that depend on one another" if is_dependent and elements <= MOST_ELEMENTS else ""
        raise Obstacle("too-large", f"{elements:,} elements and {blocks:,} blocks{dependent} are not emulated")
    sample = SAMPLE if blocks > MOST_BLOCKS and not is_dependent else 0
    first: Obstacle | Fault | None = None
    for order in INDICES:
        arguments = emulate.draw_arguments(build.kernel, build.manifest, 0, sizes)
        has_indices = set_indices(build, arguments, order, small)
        try:
            compare_confirmed(build, arguments, sample)
        except (Obstacle, Fault) as error:
            first = first or error
            if not (has_indices and is_due_to_indices(error)):
                break
        else:
            return
    if first is not None:
        raise first


def set_indices(build: driver.Build, arguments: KernelArguments, order: str, last: int) -> bool:
    """Make indices of the integers that a kernel reads, and return whether it reads any: not negative as drawn, or
    along the last axis 0, 1, 2 and so on, or equal steps from 0 to `last`. A single one, mostly a length, is `last`."""
    inputs = [name for name in arguments.tensors if build.manifest.tensor(name).role != "out"]
    indices = [array for name in inputs if (array := arguments.tensors[name]).dtype in (np.int32, np.int64)]
    for array in indices:
        extent = array.shape[-1]
        match order:
            case "drawn":
                np.abs(array, out=array)
            case _ if extent == 1:
                array[...] = last
            case "consecutive":
                array[...] = np.arange(extent)
            case _:
                array[...] = np.linspace(0, last, extent)
    return bool(indices)


def is_due_to_indices(error: Obstacle | Fault) -> bool:
    """Return whether other indices may lead to a result: nothing was compared, blocks wrote one place or outside of a
    tensor, or a loop of too few iterations left a tile unwritten."""
    if isinstance(error, Obstacle):
        return error.code in ("meaningless", "nothing-compared")
    return error.kind in ("out-of-bounds", "unwritten-read") or (
        error.kind == "data-race" and "another block" in error.message
    )


def compare_confirmed(build: driver.Build, arguments: KernelArguments, sample: int) -> None:
    """Compare a run of `sample` blocks, or of all of them. Where a sample differs, all run: blocks that did not run may
    write the same places."""
    given = arguments.copy()
    try:
        compare_run(build, arguments, sample)
    except Obstacle as obstacle:
        if not sample or obstacle.code != "wrong-result":
            raise
        compare_run(build, given, 0)


def compare_run(build: driver.Build, arguments: KernelArguments, sample: int) -> None:
    """Run a kernel in the emulator, or `sample` blocks of it, and compare what it wrote with numpy's result."""
    expected = arguments.copy()
    finite = has_finite_inputs(build.kernel, build.manifest, arguments.tensors, arguments.scalars)
    done = emulate.emulate_build(build, arguments, options=emulate.RunOptions(sample=sample))
    written = merge_written_masks(build.manifest, done) if sample else None
    emulate.run_reference(build.kernel, expected)
    compare = partial(emulate.compare_arguments, build.kernel, build.manifest, arguments, expected, written)
    results = compare()
    for result in results:
        if not result.matches:
            allowed = f"{result.error:.3g} off, {result.allowed:.3g} allowed"
            raise Obstacle("wrong-result", f"{result.name} differs from its reference ({allowed})")
    if all(result.is_nothing_compared for result in results):
        raise Obstacle("nothing-compared", "the blocks that ran wrote no output")
    if finite and all(result.is_meaningless for result in compare(are_inputs_finite=True)):
        raise Obstacle("meaningless", "over half of each output is NaN or infinite, in numpy too")


def choose_sizes(
    source: SourceFile, options: CompileOptions, defines: dict[str, Any], constants: dict[str, int], small: int
) -> dict[str, Any]:
    """Return the values with smaller sizes, as far as the kernel passes its checks with them: all at once, or else one
    after another; then with fewer heads. Of `constants`, only those that become smaller are among them."""

    def passes_checks(sizes: dict[str, Any]) -> bool:
        """Return whether `tilec check` accepts the kernel with these values."""
        return not attempt(driver.check_file, source, replace(options, defines=tuple(sizes.items()))).code

    before = constants | defines
    changed = {name: size for name, size in reduced(before, small).items() if size != before[name]}
    chosen = defines
    if passes_checks(chosen | changed):
        chosen = chosen | changed
    else:
        for name, size in changed.items():
            if passes_checks(chosen | {name: size}):
                chosen = chosen | {name: size}
    for names in (HEADS, HEADS_AND_GROUPS):
        fewer = reduce_heads(chosen, names)
        if fewer != chosen and passes_checks(fewer):
            return fewer
    return chosen


def reduce_heads(defines: dict[str, Any], names: re.Pattern[str]) -> dict[str, Any]:
    """Return the values with the counts of these names divided by their greatest common divisor."""
    counts = {k: v for k, v in defines.items() if names.search(k) and type(v) is int and v > 0}
    divisor = math.gcd(*counts.values()) if counts else 1
    return defines | {name: count // divisor for name, count in counts.items()}


def reduced(defines: dict[str, Any], small: int = SMALL[0]) -> dict[str, Any]:
    """Return the values with `small` sizes of tensors, in place of larger ones, and one batch."""
    made = dict(defines)
    for name, value in defines.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if BATCHES.fullmatch(name):
            made[name] = min(value, 1)
        elif value > small and (value > LARGEST_PART or not OF_BLOCKS.search(name)):
            made[name] = small
    return made


def parameters(function: ast.FunctionDef) -> Iterator[str]:
    """The parameters that -D replaces: of a factory, and of those in it whose defaults are None."""
    if _is_decorated_kernel(function):
        return
    yield from (a.arg for a in (*function.args.args, *function.args.kwonlyargs))
    for inner in ast.walk(function):
        if isinstance(inner, ast.FunctionDef) and inner is not function:
            given = inner.args.defaults
            pairs = zip(inner.args.args[len(inner.args.args) - len(given) :], given, strict=True)
            yield from (a.arg for a, default in pairs if isinstance(default, ast.Constant) and default.value is None)


def _is_decorated_kernel(function: ast.FunctionDef) -> bool:
    return "prim_func" in "".join(map(ast.unparse, function.decorator_list))


def text_of(value: Any) -> int | float | str | None:
    """A value as -D takes it."""
    if isinstance(value, Dtype):
        return f"T.{value}"
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value):
        return str(list(value))
    return None


def mended(defines: dict[str, Any], error: CompileError, said: dict[str, Any], of_file: dict[str, Any]) -> bool:
    """Whether there are values for what is asked for, or one to leave out that nobody takes."""
    before = dict(defines)
    for each in error.diagnostics:
        if each.code in ("unknown-define", "bad-define") and (found := re.search(r"-D (\w+)", each.title)):
            defines.pop(found[1], None)
        elif each.code == "foreign-definition" and (found := re.search(r"`(\w+)` is not known", each.title)):
            if (value := text_of(of_file.get(found[1]))) is not None:
                defines[found[1]] = value
        elif each.code == "missing-define":
            for name in re.findall(r"-D (\w+)=", each.help or ""):
                value = said.get(name, of_file.get(name, USUAL.get(name, USUAL.get(name.upper()))))
                if isinstance(value, Tensor):
                    value = 1  # a kernel cannot read it: it asks whether there is one
                if value is None:
                    value = next(guess for part, guess in GUESSED if re.search(part, name))
                if isinstance(value, int | float | str):
                    defines[name] = value
    return defines != before


# ---- the table -------------------------------------------------------------------------------------------------------


def report(found: list[Kernel], targets: list[str], shown: list[str], left_out: Counter[str]) -> None:
    for target in targets:
        of = [each for each in found if each.target == target]
        built = [each for each in of if not each.code]
        right = Counter(each.reason for each in of if each.reason)
        print(f"{target}: {len(built)} of {len(of)} kernels ({len(built) / max(len(of), 1):.0%})", end="")
        rest = len(of) - right.total()
        print(f", {len(built) / max(rest, 1):.0%} of the {rest} that are not rightly refused", end="")
        print(f"; {left_out[target]} name a later machine")
        for reason, count in right.most_common():
            print(f"  {count:4}  rightly refused: {reason}")
        of = [each for each in of if not each.reason]
        for code, count in Counter(each.code for each in of if each.code).most_common():
            titles = Counter(re.sub(r"`[^`]*`|'[^']*'|\d+", "…", e.title) for e in of if e.code == code).most_common(3)
            print(f"  {count:4}  {code}: {'; '.join(f'{n}× {title[:90]}' for title, n in titles)}")
        slow = [each for each in built if each.seconds > 3]
        print(f"  {len(slow)} of those built take more than 3 s of the processor")
    for each in found:
        if each.code in shown or (shown and "all" in shown and each.code):
            reason = f" ({each.reason})" if each.reason else ""
            print(f"{each.target} {each.file}:{each.line} {each.name}: [{each.code}] {each.title}{reason}")


if __name__ == "__main__":
    sys.exit(main())
