"""Target files: what ships is sound, prices are what the sources say, faults are named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import tilec
from tilec.driver.build import build_kernel
from tilec.driver.observer import Observer
from tilec.ir.tile import Buffer, Scope
from tilec.ir.types import FLOAT32
from tilec.ops.lowering import list_load_demands, list_store_demands
from tilec.support import resources
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.options import CALIBRATIONS, CompileOptions
from tilec.support.source import SourceFile
from tilec.target import table as target
from tilec.target.names import InstructionKind
from tilec.target.table import (
    _GENERATION_TARGETS,
    FormulaError,
    Target,
    evaluate_formula,
    load_target,
    parse_target,
    round_up_cycles,
)

COMMON = (
    *("cp.async", "ld.global", "st.global", "ld.shared", "st.shared", "mma.sync", "ldmatrix"),
    *("elementwise", "mufu", "reduce", "barrier", "mbarrier"),
)
ONLY_WITH = {
    "tma": ("tma.load", "tma.store"),
    "wgmma": ("wgmma.ss", "wgmma.rs"),
    "tcgen05": ("tcgen05.mma.ss", "tcgen05.ld"),
}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("name", resources.target_names())
def test_every_target_that_ships(name: str, calibration: str) -> None:
    machine = load_target(name, calibration)
    assert machine.name == name
    assert machine.limit("smem_bytes_per_cta") == machine.pool("smem").capacity
    assert all(machine.prices(kind) for kind in COMMON)
    for feature, kinds in ONLY_WITH.items():
        assert all(machine.prices(kind) == machine.has(feature) for kind in kinds)
    for kind in machine.kinds:
        small = machine.price(kind.name, **dict.fromkeys(kind.parameters, 64))
        large = machine.price(kind.name, **dict.fromkeys(kind.parameters, 128))
        assert small.latency <= large.latency and small.issue <= large.issue
        assert large.latency >= max((offset + cycles for _, cycles, offset in large.uses), default=0) // 2
        assert {slot for slot, _, _ in large.uses} <= {slot.name for slot in machine.slots}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("name", resources.target_names())
def test_every_number_has_a_public_source(name: str, calibration: str) -> None:
    machine = load_target(name, calibration)
    numbers = (*machine.limits, *machine.families, *machine.ceilings, *machine.kinds)
    for source in (number.source for number in numbers):
        assert len(source.where) > 10
        assert ".md" not in source.where, "sources are named in words, not as files of ours"


def test_hopper_numbers() -> None:
    hopper = load_target("sm_90a")
    assert hopper.has("wgmma") and hopper.has("tma") and not hopper.has("tcgen05")
    assert (hopper.limit("smem_bytes_per_cta"), hopper.limit("registers_per_sm")) == (232448, 65536)
    # Published cycles of wgmma m64nNk16, operands in shared memory and A in registers.
    for n, shared, registers in ((8, 18, 13), (16, 20, 13), (32, 24, 16), (64, 32, 32), (128, 64, 64), (256, 128, 128)):
        assert hopper.price("wgmma.ss", n=n, count=1, k_bytes=32).uses[0] == ("tc_and_mma", shared, 0)
        assert hopper.price("wgmma.rs", n=n, count=1).uses[0] == ("tc_and_mma", registers, 0)
    # 8, 16 and 32 KB boxes from HBM: 636, 677 and 751 ns.
    for kilobytes, ns in ((8, 636), (16, 677), (32, 751)):
        latency = hopper.price("tma.load", bytes=kilobytes * 1024).latency
        assert latency == pytest.approx(ns * 1.755, rel=0.01)
    # Of one multiprocessor, from L2: boxes of 16 KiB follow each other every 152.9 cycles.
    path = next(cycles for slot, cycles, _ in hopper.price("tma.load", bytes=16384).uses if slot == "tp_gnic_rd")
    assert path / hopper.slot("tp_gnic_rd").width == pytest.approx(152.9, rel=0.01)
    # 58 % of 1024 FMA · 4 tensor cores: 6.94 cycles a warp, 2361 FLOP a cycle.
    product = hopper.price("mma.sync", count=1000, warps=4)
    assert 2 * 16 * 8 * 16 * 1000 / product.uses[0][1] == pytest.approx(2361, rel=0.01)


def test_ampere_numbers() -> None:
    ampere = load_target("sm_80")
    assert ampere.has("cp.async") and not ampere.has("tma")
    assert ampere.limit("smem_bytes_per_cta") == 166912
    # 128 × 128 × 32 on four tensor cores of 256 FMA a cycle.
    assert ampere.price("mma.sync", count=256, warps=8).uses[0] == ("tc_and_mma", 512, 0)
    assert ampere.price("mma.sync", count=256, warps=2).uses[0] == ("tc_and_mma", 1024, 0)
    assert ampere.price("elementwise", ops=1, elements=4096, threads=128).uses[0][1] == 64
    assert load_target("sm_90a").price("elementwise", ops=1, elements=4096, threads=128).uses[0][1] == 32
    with pytest.raises(InternalError, match=re.escape("target sm_80 does not price 'wgmma.ss'")):
        ampere.price("wgmma.ss", n=64, count=1, k_bytes=32)


def test_blackwell_numbers() -> None:
    """Published cycles of tcgen05.mma, 32 bytes of k: steady per instruction, and alone with its commit and wait."""
    blackwell = load_target("sm_100a")
    assert blackwell.has("tcgen05") and not blackwell.has("wgmma")
    assert (blackwell.pool("tmem").capacity, blackwell.pool("tmem_banks").capacity) == (512, 4)
    for form, m, published in (
        ("ss", 64, ((64, 32.6, 152), (128, 64.6, 184), (256, 128.6, 248))),
        ("ss", 128, ((64, 48.6, 168), (128, 64.6, 200), (256, 128.6, 264))),
        ("ts", 128, ((64, 32.5, 136), (128, 64.5, 168), (256, 128.5, 232))),
        ("ss.pair", 256, ((128, 64.8, 234), (256, 128.7, 298))),
        ("ss.pair", 128, ((64, 25.7, 173), (128, 32.7, 197), (256, 64.7, 229))),
    ):
        for n, steady, alone in published:
            many = blackwell.price(f"tcgen05.mma.{form}", m=m, n=n, count=1000)
            assert many.uses[0][1] / 1000 == pytest.approx(steady, rel=0.05), (form, m, n)
            assert blackwell.price(f"tcgen05.mma.{form}", m=m, n=n, count=1).latency == pytest.approx(alone, abs=6)


@pytest.mark.parametrize("name", resources.target_names())
def test_the_book_prices_a_statement_by_rows(name: str) -> None:
    """Whatever the size; and with the families of the book."""
    machine = load_target(name, "book")
    assert {family.name: family.value for family in machine.families if family.name != "tma"} == {
        "dual_alu": 2, "alu": 4, "transport": 7, "tensor": 8,
    }  # fmt: skip
    for kind in machine.kinds:
        small = machine.price(kind.name, **dict.fromkeys(kind.parameters, 64))
        assert small == machine.price(kind.name, **dict.fromkeys(kind.parameters, 128))
        assert all(cycles <= 8 for _, cycles, _ in small.uses)


def held(machine: Target, kind: str, **parameters: int) -> dict[str, int]:
    return {slot: cycles for slot, cycles, _ in machine.price(kind, **parameters).uses}


def test_the_numbers_of_the_roofline_examples() -> None:
    """Hopper: 8 cycles of memory by 8 of compute. Blackwell: 8 + 7 by 8."""
    hopper, blackwell = load_target("sm_90a", "book"), load_target("sm_100a", "book")
    for machine in (hopper, blackwell):
        assert held(machine, "tma.load", bytes=16384) == {"tma": 8, "tp_smem_wr": 8}
    assert held(hopper, "wgmma.ss", n=128, count=4, k_bytes=32) == {"tc_and_mma": 8, "tp_mma": 8}
    assert held(blackwell, "tcgen05.cp", bytes=16384) == {"tp_tmem_wr": 7}
    assert held(blackwell, "tcgen05.mma.ss", m=128, n=128, count=4) == {"tc_and_mma": 8, "tp_mma": 8}
    assert held(blackwell, "tcgen05.ld", bytes=65536) == {"tp_tmem_rd": 7}


def table_under(heading: str, columns: int) -> list[list[str]]:
    """The rows of the table of targets/README.md whose first heading this is."""
    text = (Path(__file__).parents[2] / "targets" / "README.md").read_text(encoding="utf-8")
    lines = text.split(f"| {heading} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows and all(len(row) == columns for row in rows)
    return rows


PRIMARY_IN_THE_BOOK = {
    "fp32x2_fp16ultra", "alu_or_fmaheavy", "dual_alu", "tc_and_mma", "tp_gnic_rd", "tp_gnic_wr", "tp_smem_rd",
    "tp_smem_wr", "tp_tmem_rd", "tp_tmem_wr", "tp_mma", "unknown", "omitted_simt", "test_simt", "test_mma",
}  # fmt: skip
OTHERS_IN_THE_BOOK = {"issue", "xu", "xu64", "alu", "lsu", "tmem", "mma", "tma", "test_dma"}


def test_the_slots_that_differ_from_the_books() -> None:
    """All that are not primary there and are here, the other way round, or have another width."""
    ours = {slot.name: slot.width for slot in load_target("sm_100a").slots}
    assert (len(PRIMARY_IN_THE_BOOK), len(OTHERS_IN_THE_BOOK), len(ours)) == (15, 9, 15)
    rows = table_under("slot | the book | here | why", 4)
    told = {row[0].strip("`"): row[2] for row in rows}
    differ = {name for name in ours if name not in PRIMARY_IN_THE_BOOK or ours[name] > 1}
    differ |= (PRIMARY_IN_THE_BOOK | OTHERS_IN_THE_BOOK) - {*ours}
    assert told == {name: f"width {ours[name]}" if name in ours else "none" for name in differ}


def test_the_rows_that_differ_from_the_books() -> None:
    """The prices of the example, of every kind of either machine."""
    sizes = {"bytes": 16384, "elements": 8192, "threads": 128, "m": 128, "n": 128, "count": 4, "k_bytes": 32, "ops": 1}
    sizes["warps"] = 4
    rows = {row[0].strip("`"): row[1:3] for row in table_under("kind | `book` | `silicon` | why", 4)}
    assert set(rows) == {kind.name for name in ("sm_90a", "sm_100a") for kind in load_target(name).kinds}
    for name, cells in rows.items():
        for calibration, cell in zip(("book", "silicon"), cells, strict=True):
            machine = load_target("sm_90a" if name.startswith("wgmma") else "sm_100a", calibration)
            kind = next(kind for kind in machine.kinds if kind.name == name)
            price = machine.price(kind.name, **{parameter: sizes[parameter] for parameter in kind.parameters})
            uses = ", ".join(f"`{slot}` {cycles:,}" for slot, cycles, _ in price.uses)
            assert cell == "; ".join([uses] * bool(uses) + [f"{price.latency:,}"]), (name, calibration)


def test_ceilings_belong_to_the_book() -> None:
    ceilings = {
        name: {c.name: c.value for c in load_target(name, "book").ceilings} for name in resources.target_names()
    }
    assert ceilings["sm_80"] == {"far_memory": 5000}
    assert ceilings["sm_90a"] == ceilings["sm_100a"] == {"far_memory": 5000, "cross_cluster": 7000}
    assert all(load_target(name).ceilings == () for name in resources.target_names())


def test_pools() -> None:
    """Shared memory of a block, registers, barriers in hardware and carried across iterations."""
    smem = {"sm_80": 166912, "sm_86": 101376, "sm_87": 166912, "sm_89": 101376, "sm_90a": 232448, "sm_100a": 232448}
    smem |= {"sm_103a": 232448, "sm_110a": 232448, "sm_120a": 101376}
    for name, size in smem.items():
        pools = {pool.name: pool.capacity for pool in load_target(name).pools}
        assert pools["smem"] == size and pools["mbarriers"] == size // 8
        assert (pools["named_barriers"], pools["named_barriers_carried"]) == (16, 3)
        assert (pools["registers"], pools["registers_per_thread"]) == (65536, 255)
        assert ("tmem" in pools) == load_target(name).has("tcgen05")


def test_wrong_questions_are_bugs_of_ours() -> None:
    machine = load_target("sm_80")
    with pytest.raises(InternalError, match=re.escape("'mufu' on sm_80 is priced by (elements), not by (bytes)")):
        machine.price("mufu", bytes=4)
    for ask in (machine.limit, machine.slot, machine.pool):
        with pytest.raises(InternalError, match="target sm_80 has no"):
            ask("nonsense")


def test_every_kind_that_may_be_asked_for_is_priced_where_it_exists() -> None:
    """`load` refuses a file that lacks one of `_ASKED`: those are all there are, by the features that they need."""
    asked = [kind for features in target._REQUIRED_NAMES.values() for kind in features.kinds]
    assert sorted(asked) == sorted(get_args(InstructionKind))
    for name in resources.target_names():
        machine = load_target(name)
        priced = {kind.name for kind in machine.kinds}
        there = (wanted for feature, wanted in target._REQUIRED_NAMES.items() if not feature or machine.has(feature))
        assert all(priced.issuperset(wanted.kinds) for wanted in there)


def test_a_machine_without_what_all_code_uses_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(resources.target_text("sm_80").replace('"ldmatrix", ', ""), encoding="utf-8")
    with pytest.raises(CompileError, match="features: 'ldmatrix' is missing; every supported machine"):
        load_target(str(path))


def test_what_asks_for_a_price_names_its_parameters() -> None:
    """Every `demand(kind, ...)` and `price(kind, ...)` in the compiler that names its kind. Types hold the kinds."""
    wanted = {kind: set(names) for asked in target._REQUIRED_NAMES.values() for kind, names in asked.kinds.items()}
    found = set()
    for path in Path(tilec.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "make_demand(" in text or ".price(" in text else ():
            match node:
                case ast.Call(
                    func=ast.Name(id="make_demand") | ast.Attribute(attr="price"), args=[ast.Constant(value=str(kind))]
                ) if all(keyword.arg for keyword in node.keywords):
                    assert {keyword.arg for keyword in node.keywords} == wanted[kind], f"{path}:{node.lineno}"
                    found.add(kind)
                case _:
                    pass
    assert len(found) > 12


@pytest.mark.parametrize("scope", get_args(Scope))
@pytest.mark.parametrize("name", resources.target_names())
def test_an_access_to_any_buffer_has_a_price(name: str, scope: Scope) -> None:
    """Registers are nobody's memory, of a barrier it is the address alone, tensor memory has its own instructions."""
    buffer = Buffer("a", (64,), FLOAT32, scope)
    for asked in (*list_load_demands(buffer, 256, 128), *list_store_demands(buffer, 256, 128)):
        assert load_target(name).price(asked.kind, **dict(asked.parameters)).issue > 0
    assert (
        bool(list_load_demands(buffer, 256, 128))
        == bool(list_store_demands(buffer, 256, 128))
        == (scope in ("global", "shared"))
    )


def test_an_unknown_target_suggests_the_nearest() -> None:
    with pytest.raises(CompileError) as caught:
        load_target("sm_9a")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.title) == ("unknown-target", "unknown target 'sm_9a'")
    assert diagnostic.help == "did you mean 'sm_90a'?"
    assert diagnostic.notes == (f"known targets: {', '.join(resources.target_names())}",)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sm90", "write sm_90a"),
        ("sm_100", "write sm_100a"),
        ("compute_88", "write sm_87, whose cubins also run on sm_88"),
        ("sm_75", "no target has code for sm_75"),
        ("90", "write sm_90a"),
        ("SM_90", "write sm_90a"),
        ("9.0", "write sm_90a"),
        ("h100", "write --target sm_90a, and for its own limits --gpu H100-SXM or H100-PCIe"),
        ("H200", "write --target sm_90a, and for its own limits --gpu H200"),
        ("a100", "write --target sm_80, and for its own limits --gpu A100-40GB or A100-80GB"),
        ("a10", "write --target sm_86, and for its own limits --gpu A10"),
        ("b200", "write --target sm_100a, and for its own limits --gpu B200"),
        ("4090", "write --target sm_89, and for its own limits --gpu RTX-4090"),
        ("rtx 4090", "write --target sm_89, and for its own limits --gpu RTX-4090"),
        ("hopper", "write --target sm_90a"),
        ("Ampere", "write --target sm_80; others of its generation have sm_86, sm_87: `tilec targets`"),
        ("x100", None),
        ("rtx", None),
    ],
)
def test_a_gpu_by_its_number_or_name_is_told_what_it_runs(name: str, answer: str | None) -> None:
    with pytest.raises(CompileError) as caught:
        load_target(name)
    assert caught.value.diagnostics[0].help == answer


# --- GPUs ---


@pytest.mark.parametrize("name", resources.target_names())
def test_a_gpu_has_the_limits_of_its_target_but_for_its_own(name: str) -> None:
    target = load_target(name)
    for gpu in target.gpus:
        own = {limit.name: limit for limit in gpu.limits}
        product = load_target(name, gpu=gpu.name)
        assert (product.gpu, product.pools) == (gpu.name, target.pools)
        assert gpu.families or product.kinds == target.kinds
        assert product.limits == tuple(own.get(limit.name, limit) for limit in target.limits)
    assert target.gpu == "" and target.gpus


@pytest.mark.parametrize(
    ("target", "gpu", "answer"),
    [
        ("sm_90a", "H100", "choose H100-SXM or H100-PCIe"),
        ("sm_90a", "h200", "write H200"),
        ("sm_80", "A100", "choose A100-40GB or A100-80GB"),
        ("sm_90a", "B200", "write --target sm_100a, and for its own limits --gpu B200"),
        ("sm_90a", "H300", None),
        ("sm_86", "RTX-3090Ti", "did you mean 'RTX-3090'?"),
    ],
)
def test_a_gpu_of_another_number_is_never_suggested(target: str, gpu: str, answer: str | None) -> None:
    with pytest.raises(CompileError) as caught:
        load_target(target, gpu=gpu)
    assert caught.value.diagnostics[0].help == answer


def test_names_of_generations_stand_for_targets() -> None:
    assert {target for targets in _GENERATION_TARGETS.values() for target in targets} <= set(resources.target_names())


def test_an_unknown_gpu_suggests_the_nearest() -> None:
    with pytest.raises(CompileError) as caught:
        load_target("sm_90a", gpu="H100-SMX")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.title) == ("unknown-gpu", "target sm_90a has no GPU 'H100-SMX'")
    assert diagnostic.help == "did you mean 'H100-SXM'?"


@pytest.mark.parametrize(
    ("limit", "message"),
    [("smem", "there is no limit 'smem'"), ("registers_per_sm", "'registers_per_sm' is the size of a pool")],
)
def test_a_gpu_differs_in_limits_that_are_not_the_size_of_a_pool(limit: str, message: str) -> None:
    source = 'source = { kind = "guess", where = "x" }'
    row = f'[gpus.X]\nwhat = "x"\n[gpus.X.limits]\n{limit} = {{ value = 1, {source} }}\n'
    with pytest.raises(CompileError) as caught:
        parse_target(resources.target_text("sm_90a") + row, "x.toml")
    assert message in caught.value.diagnostics[0].title


def test_a_gpu_differs_in_cycles_of_a_family() -> None:
    """GeForce boards add into fp32 at half the rate of professional ones: 256 and 512 FMA a clock, of 2048 each."""
    for name, faster in (("sm_86", "A10"), ("sm_89", "L4")):
        for gpu, cycles in ((None, 32), (faster, 16)):
            assert held(load_target(name, gpu=gpu), "mma.sync", count=1, warps=1)["tc_and_mma"] == cycles
        assert load_target(name, "book", faster).kinds == load_target(name, "book").kinds
    row = '[gpus.X]\nwhat = "x"\n[gpus.X.families]\nmmma = { value = 1, source = { kind = "guess", where = "x" } }\n'
    with pytest.raises(CompileError) as caught:
        parse_target(resources.target_text("sm_86") + row, "x.toml")
    assert caught.value.diagnostics[0].title == (
        "x.toml: gpus.X.families: the silicon calibration has no family 'mmma'"
    )


# --- formulas ---


@pytest.mark.parametrize(
    ("formula", "cycles"),
    [
        *(("7", 7), ("n / 2", 4), ("max(n / 2, (64 + n) / 4)", 18), ("min(n, 3) * 2 - 1", 5)),
        *(("ceil(n / 3)", 3), ("0.1 * 30", 3), ("n / 3", 3), ("-n + 9", 1), ("max(n)", 8)),
    ],
)
def test_formulas(formula: str, cycles: int) -> None:
    assert round_up_cycles(evaluate_formula(formula, {"n": 8})) == cycles


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("m + 1", "unknown name 'm', expected one of: n"),
        ("n +", "is not a formula"),
        ("n ** 2", "'n ** 2' is not allowed in a formula"),
        ("__import__('os')", "is not allowed in a formula"),
        ("n.real", "'n.real' is not allowed in a formula"),
        ("True", "'True' is not allowed in a formula"),
        ("max()", "'max()' is not allowed in a formula"),
    ],
)
def test_what_is_no_formula(formula: str, says: str) -> None:
    with pytest.raises(FormulaError, match=re.escape(says)):
        evaluate_formula(formula, {"n": 8})


# --- files ---

SMALL = """
name = "toy"
ptx = { target = "sm_80", version = "8.0" }
features = ["mma.sync"]
[limits]
smem = { value = 1024, source = { kind = "guess", where = "nowhere in particular" } }
[slots.unit]
width = 1
what = "the only one"
[pools.smem]
limit = "smem"
[calibrations.silicon]
what = "the default"
[calibrations.silicon.families]
drain = { value = 2, source = { kind = "guess", where = "nowhere in particular" } }
[calibrations.book]
what = "another"
[calibrations.book.ceilings]
far = { value = 50, source = { kind = "guess", where = "nowhere in particular" } }
[layout]
smem_transactions = { value = 1, source = { kind = "guess", where = "nowhere in particular" } }
tmem_cycles = { value = 4, source = { kind = "guess", where = "nowhere in particular" } }
live_registers = { value = 0.25, source = { kind = "guess", where = "nowhere in particular" } }
[timing.work]
parameters = ["n"]
book = { uses = [], issue = 1, latency = 3, source = { kind = "guess", where = "nowhere in particular" } }
[timing.work.silicon]
uses = [{ slot = "unit", cycles = "n / 2", offset = 3 }]
issue = 1
latency = "occupancy + n + drain"
source = { kind = "guess", where = "nowhere in particular" }
"""


def test_a_small_file() -> None:
    machine: Target = parse_target(SMALL, "toy.toml")
    timing = machine.price("work", n=9)
    assert (timing.uses, timing.issue, timing.latency) == ((("unit", 5, 3),), 1, 19)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[limits]", "[limits", "toy.toml is not TOML"),
        ('name = "toy"', "", "toy.toml: 'name' is missing"),
        ('name = "toy"', "name = 3", "toy.toml: name: expected a string, found 3"),
        ("[limits]", "color = 1\n[limits]", "toy.toml: unknown member 'color'"),
        ('["mma.sync"]', '"mma.sync"', "toy.toml: features: expected an array, found 'mma.sync'"),
        ('["mma.sync"]', '["mma.sinc"]', "toy.toml: features[0]: expected one of 'atom.bf16', "),
        ("value = 1024", "value = 1.5", "toy.toml: limits.smem.value: expected a whole number, found 1.5"),
        ("width = 1", "width = 0", "toy.toml: slots.unit.width: expected a whole number from 1 to 2147483647, found 0"),
        (
            "value = 1024",
            "value = 0",
            "toy.toml: limits.smem.value: expected a whole number from 1 to 2147483647, found 0",
        ),
        (
            "value = 2,",
            "value = -2,",
            "toy.toml: calibrations.silicon.families.drain.value: expected a whole number from 0",
        ),
        ('limit = "smem"', 'limit = "tmem"', "toy.toml: pools.smem: there is no limit 'tmem'"),
        (
            'slot = "unit"',
            'slot = "xu"',
            "toy.toml: timing.work.silicon.uses: there is no slot 'xu', expected one of: unit",
        ),
        (
            "n / 2",
            "n * 1e9",
            "toy.toml: timing.work.silicon, where parameters are 64: expected a whole number from 0 to",
        ),
        ("n / 2", "m / 2", "toy.toml: timing.work.silicon: unknown name 'm', expected one of: drain, n"),
        (
            "occupancy + n + drain",
            "n - 100",
            "toy.toml: timing.work.silicon, where parameters are 64: expected a whole number from 0 to 10",
        ),
        (
            "issue = 1\n",
            "issue = true\n",
            "toy.toml: timing.work.silicon.issue: expected a number or a string, found True",
        ),
        (
            'latency = "occupancy + n + drain"\nsource = { kind = "guess"',
            'latency = 1\nsource = { kind = "rumour"',
            "toy.toml: timing.work.silicon.source.kind: expected one of 'vendor', 'measured', 'derived', 'guess'",
        ),
        ("ptx = {", "ptx = 8 # {", "toy.toml: ptx: expected an object or table, found 8"),
        ("book = { uses", "paper = { uses", "toy.toml: timing.work: unknown member 'paper'"),
        ("book = { uses", "# { uses", "toy.toml: timing.work: 'book' is missing"),
        ("latency = 3", 'latency = "drain"', "toy.toml: timing.work.book: unknown name 'drain', expected one of: n"),
        ("value = 50", "value = 0.5", "toy.toml: calibrations.book.ceilings.far.value: expected a whole number"),
        ("[calibrations.book]", "[calibrations.guess]", "toy.toml: calibrations: unknown member 'guess'"),
        (
            "value = 0.25",
            "value = nan",
            "toy.toml: layout.live_registers.value: expected a number that is finite, found nan",
        ),
        (
            "value = 0.25",
            f"value = {10**400}",
            "toy.toml: layout.live_registers.value: expected a number, found a number of 1329 bits",
        ),
        (
            "value = 0.25",
            "value = -0.25",
            "toy.toml: layout.live_registers.value: expected a number from 0 to 1000000, found -0.25",
        ),
        ("value = 0.25", 'value = "1"', "toy.toml: layout.live_registers.value: expected a number, found '1'"),
    ],
)
def test_faults_in_a_file_are_named(old: str, new: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(CompileError) as caught:
        parse_target(SMALL.replace(old, new), "toy.toml")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-target-file"
    assert diagnostic.title.startswith(says)


KERNEL = """import tilelang.language as T

@T.prim_func
def main(A: T.Tensor((64, 512), "float16"), B: T.Tensor((512, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, k * 64], a)
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)
"""


OPTIONAL_LIMITS = {"launch_cycles", "light_clock_mhz", "free_clock_mhz", "tma_latency_cycles",
                   "dram_read_bytes_per_cycle", "dram_even_bytes_per_cycle"}  # fmt: skip
"""Limits that only the model of whole launches, or their simulation, asks for, and takes as unknown where a file has
none."""


@pytest.mark.weekly
@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "sm_100a"])  # between them they have every table that is asked for
def test_what_a_file_lacks_is_said_before_it_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit, pool, kind and list of parameters by another name: refused, or never asked for."""
    text = resources.target_text(name)
    limits = [
        name
        for name in re.findall(r"^(\w+) = { value", text.partition("[slots")[0], re.M)
        if name not in OPTIONAL_LIMITS
    ]
    headers = re.findall(r"^\[((?:pools|timing)\.(?:\w+|\"[^\"]+\"))\]", text, re.M)
    parameters = set(re.findall(r"^parameters = \[.+\]$", text, re.M))
    assert len(limits) > 18 and len(headers) > 18 and len(parameters) > 3
    changed = [re.sub(rf"^{limit} = ", "other = ", text, flags=re.M) for limit in limits]
    changed += [re.sub(rf"^\[{re.escape(header)}(?=[.\]])", "[timing.other", text, flags=re.M) for header in headers]
    changed += [text.replace(listed, listed.replace("]", ', "others"]')) for listed in parameters]
    refused = 0
    for made in changed:
        monkeypatch.setattr(resources, "target_text", lambda _, made=made: made)
        load_target.cache_clear()
        try:
            build_kernel(SourceFile("k.tl", KERNEL), CompileOptions(target=name, scheduler="heuristic"), Observer())
        except CompileError as error:
            assert error.diagnostics[0].code == "bad-target-file"
            refused += 1
    load_target.cache_clear()
    assert refused > len(changed) - 5


def test_what_is_asked_of_machines_with_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    text = resources.target_text("sm_90a").replace('[timing."tma.load"', '[timing."load"')
    monkeypatch.setattr(resources, "target_text", lambda _: text)
    load_target.cache_clear()
    with pytest.raises(CompileError, match=r"sm_90a.toml: timing: 'tma.load' is missing; targets with tma need it"):
        load_target("sm_90a")
    load_target.cache_clear()


# --- resources ---


def test_resources_of_a_checkout() -> None:
    assert resources.target_names() == (
        "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a",
    )  # fmt: skip
    assert resources.target_text("sm_80").startswith("# Ampere")
    assert resources.grammar_text("tile.lark")


def test_resources_of_an_installed_package(tmp_path: Path) -> None:
    # As a wheel lays it out: the folders inside the package.
    package = tmp_path / "tilec"
    (package / "_data" / "targets").mkdir(parents=True)
    (package / "_data" / "targets" / "toy.toml").write_text(SMALL)
    (package / "__init__.py").write_text("")
    (package / "support").mkdir()
    (package / "support" / "resources.py").write_text(Path(resources.__file__).read_text())
    code = (
        "from tilec.support import resources; assert resources.target_names() == ('toy',); resources.target_text('toy')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_loading_is_lazy() -> None:
    code = "import sys; from tilec.target import table; assert not {'tomllib', 'difflib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(target.__file__).parents[2])
