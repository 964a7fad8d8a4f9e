"""Build a kernel, run its PTX in the emulator, and compare every output with the tile-level reference."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions, Strategy, Value
from tilec.support.source import SourceFile

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "samples"

Form = tuple[str, Strategy]
FORMS: tuple[Form, ...] = (
    ("sm_80", "auto"),
    ("sm_80", "none"),
    ("sm_90a", "auto"),
    ("sm_90a", "unspecialize"),
    ("sm_90a", "none"),
)
"""Targets and strategies, each pair of which makes other code."""


def built(
    path: Path, target: str, strategy: Strategy = "auto", opt_level: int = 3, entry: str | None = None, **defines: Value
) -> tuple[SourceFile, Build]:
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    options = CompileOptions(
        target=target,
        opt_level=opt_level,
        entry=entry,
        defines=tuple(defines.items()),
        pipeline_strategy=strategy,
    )
    return source, build_kernel(source, options, Observer())


def agrees(
    path: Path,
    target: str,
    strategy: Strategy = "auto",
    opt_level: int = 3,
    seeds: Iterable[int] = (0,),
    strict: bool = True,
    entry: str | None = None,
    **defines: Value,
) -> Build:
    """Fails where an output of the emulated PTX differs from the reference by more than rounding, with the arguments of
    any seed; if `strict`, on a warning too. PTX that has agreed is not run again where another strategy or level makes
    the same of the same kernel."""
    source, made = built(path, target, strategy, opt_level, entry, **defines)
    if strategy == "auto" and strict:  # no spill, no serialised wgmma, every schedule proven
        # How often warps meet, and how long they wait, is a matter of speed.
        of_speed = ("barriers-exhausted", "assembled-interval", "too-few-stages")
        unexpected = [w.title for w in made.warnings if w.code not in of_speed]
        assert not unexpected
    for seed in seeds:
        case = hashlib.sha256(repr((source.text, entry, defines, seed, made.ptx)).encode()).digest()
        if case in _AGREED:
            continue
        found = emulate.draw_arguments(made.kernel, made.manifest, seed)
        expected = found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(made.kernel, expected)
        results = emulate.compare_arguments(made.kernel, made.manifest, found, expected)
        assert results, "the kernel writes nothing"
        for r in results:
            assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
        _AGREED.add(case)
    return made


_AGREED: set[bytes] = set()
"""Hashes of what has been run in this process, all of it: kernel, constants, arguments and PTX."""
