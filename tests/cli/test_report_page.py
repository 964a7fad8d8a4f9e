"""`tilec report FILE --html`: what the page says, that it needs nothing else, and that it shows in a browser."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chromium
import drawn
import pytest
from command import GEMM, VECTOR_ADD, tilec
from drawn import listing, rows, text, tree, under

from tilec.ptx import disassemble
from tilec.ptx.assemble import assemble_module
from tilec.report.viewer import read_template
from tilec.support.display import show_share

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>&amp;"


def pages_of(folder: Path, kernel: Path | str, *given: str) -> tuple[str, dict[str, Any]]:
    """The page of a kernel, and the record of its trace."""
    page, trace = folder / "page.html", folder / "trace.json"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TILEC_CACHE_DIR", str(folder / "cache"))
        assert tilec("report", str(kernel), "--html", str(page), *given) == 0
        assert tilec(str(kernel), "--schedule-trace-file", str(trace), "-o", str(folder / "k.cubin"), *given) == 0
    record: dict[str, Any] = json.loads(trace.read_text(encoding="utf-8"))["tilec"]
    return page.read_text(encoding="utf-8"), record


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    return pages_of(tmp_path_factory.mktemp("gemm"), GEMM)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A kernel whose name, comments, strings, constants and warnings try to leave their place."""
    folder = tmp_path_factory.mktemp("hostile")
    text = Path(GEMM).read_text(encoding="utf-8")
    text = text.replace('"""C = A @ B."""', f'"""{HOSTILE}"""  # {HOSTILE} \x1b[2J\u202e')
    text = text.replace("dtype = ", f'note = "{HOSTILE}"\ndtype = ', 1)
    text = text.replace("num_stages=num_stages)", f'num_stages=num_stages, annotations={{"{HOSTILE}": 1}})')
    kernel = folder / "<b>&amp;'<script>alert(1)<!--.tl"
    kernel.write_text(text, encoding="utf-8")
    return pages_of(folder, kernel, "-D", f"note={HOSTILE}")


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_it_needs_nothing_else(gemm: tuple[str, dict[str, Any]]) -> None:
    page, _ = gemm
    page = page.replace('"http://www.w3.org/2000/svg"', "")  # the name of a kind of elements
    for outside in ("http:", "https:", "src=", "@import", "url(", "<link", "//cdn", str(Path(GEMM).parent)):
        assert outside not in page
    assert "default-src 'none'" in page and page.count("<script") == 3


def test_its_json_is_the_trace_and_the_report(gemm: tuple[str, dict[str, Any]]) -> None:
    """Whatever is drawn is drawn from these."""
    page, record = gemm
    assert drawn.traces(page) == [record]
    report = drawn.report(page)
    assert (report["file"], report["target"], report["optimisation_level"]) == ("gemm.tl", "sm_90a", 3)
    assert report["warnings"] == [] and report["code"]["files"][0]["name"] == "gemm.tl"
    kernel = Path(GEMM).read_text(encoding="utf-8")
    assert "\n".join(report["code"]["files"][0]["lines"]) == kernel
    (said,) = report["predictions"]
    assert said["kernel"] == "gemm" and said["roofline"] == max(said["compute"], said["dram"]) < said["predicted"]


def test_only_its_own_script_runs(gemm: tuple[str, dict[str, Any]]) -> None:
    page, _ = gemm
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in page


def test_the_links_lead_somewhere(gemm: tuple[str, dict[str, Any]]) -> None:
    root = tree(gemm[0])
    links = [node.attrib["href"] for node in root.iter("a")]
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert len(links) > 8 and len(set(ids)) == len(ids)
    assert {link for link in links if not link.startswith("#to-")} <= {f"#{name}" for name in ids}


def test_the_schedule_is_that_of_the_trace(gemm: tuple[str, dict[str, Any]]) -> None:
    page, record = gemm
    root, (loop,) = tree(page), record["loops"]
    assert any(text(h) == f"{loop['name']}: II {loop['ii']}, {loop['stages']} stages, optimal" for h in root.iter("h2"))

    shown = [text(title) for title in under(root, "Iterations", "svg").iter("title")]
    for op in loop["ops"]:
        for iteration in range(loop["stages"] + 2):
            start = op["start"] + iteration * loop["ii"]
            times = f"iteration {iteration}, cycles {start} to {start + op['latency']}, line {op['line']}"
            assert f"{op['name']}, {times}" in shown

    table = under(root, "Reservation table", "svg")
    labels = [text(label) for label in table.findall("text")]
    held = [slot for slot in loop["slots"] if slot["held"]]
    assert labels[: len(held)] == [f"{slot['name']} {slot['percent']}%" for slot in held]
    uses = sum(len(use["rows"]) for op in loop["ops"] for use in op["rows"])
    assert len(list(table.iter("title"))) == uses

    assert rows(under(root, "Rings", "table"))[1:] == [
        [ring["name"], *(f"{ring[fact]:,}" for fact in ("lifetime", "depth", "max_depth", "bytes", "total_bytes"))]
        for ring in loop["rings"]
    ]
    (ring,) = loop["rings"]
    occupied = under(root, "Ring occupancy", "svg")
    versions = [text(label) for label in occupied.findall("text")]
    assert versions == [f"{ring['name']} [{version}]" for version in range(ring["depth"])]
    last = loop["ii"] * ring["depth"]
    times = f"taken at {last}, full at {last + 1312}, free at {last + ring['lifetime']}"
    assert f"{ring['name']}[0], iteration {ring['depth']}: {times}" in [text(t) for t in occupied.iter("title")]

    assert [row[:3] for row in rows(under(root, "Decisions", "table"))[1:]] == [
        [decision["what"], decision["chosen"], decision["by"]] for decision in record["decisions"]
    ]
    because = [row[2] for row in rows(under(root, "Bounds on the interval", "table"))[1:]]
    assert sorted(because) == sorted(bound["culprit"] for bound in loop["bounds"])


def test_the_roofline_is_that_of_the_report(
    gemm: tuple[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    root = tree(gemm[0])
    assert tilec("report", GEMM) == 0
    said = capfd.readouterr().out
    predicted, bound = re.search(r"([\d.]+ µs) predicted", said), re.search(r"bound by +(.*)", said)
    assert predicted is not None and bound is not None
    summary = dict(rows(under(root, "Summary", "table"))[1:])
    assert summary["predicted"].startswith(predicted[1]) and summary["bound by"] == bound[1]
    roof = {name: int(cycles.replace(",", "")) for name, cycles, _ in rows(under(root, "Roofline", "table"))[1:]}
    assert roof["roofline"] == max(roof["computing, on all SMs"], roof["DRAM, each tensor once"]) < roof["predicted"]
    (point,) = under(root, "Roofline", "svg").iter("circle")
    share = roof["computing, on all SMs"] / roof["predicted"]
    assert text(point).startswith(f"gemm: {show_share(share)} of what the machine computes")


def test_lines_of_the_kernel_lead_to_their_instructions(gemm: tuple[str, dict[str, Any]]) -> None:
    root = tree(gemm[0])
    kernel = Path(GEMM).read_text(encoding="utf-8").splitlines()
    product = next(number for number, line in enumerate(kernel, 1) if "T.gemm" in line)
    (line,) = (node for node in listing(root, "Kernel").iter("span") if node.get("data-at") == f"1:{product}")
    assert text(line) == f"{product} T.gemm(A_shared, B_shared, C_local)"
    target = next(iter(line)).attrib["href"].removeprefix("#")
    runs = [node for node in listing(root, "PTX").iter("span") if node.get("data-at") == f"1:{product}"]
    assert runs[0].get("id") == target and all("wgmma" in text(run) for run in runs)
    multiplied = sum(text(run).count("wgmma.mma_async") for run in runs)
    assert multiplied == "".join(listing(root, "PTX").itertext()).count("wgmma.mma_async") > 0
    assert ".loc" not in text(listing(root, "PTX"))


def test_machine_code_with_the_assemblers_schedule(
    gemm: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert disassemble.find_disassembler() is not None, "nvidia-cuda-nvdisasm is one of the packages that tests have"
    sass = listing(tree(gemm[0]), "SASS")
    products = {(node.get("data-at"), text(node)) for node in sass.iter("span") if "HGMMA" in text(node)}
    assert "1:28" in {at for at, _ in products}
    assert all(re.search(r"/\*[0-9a-f]{4}\*/ B[-\d]{6}:R.:W.:[Y-]:S\d\d HGMMA\.64x128x16", run) for _, run in products)
    # Only here: others may have modules to import still.
    monkeypatch.setattr(disassemble, "sys", SimpleNamespace(path=[]))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert disassemble.find_disassembler() is None
    page, _ = pages_of(tmp_path, VECTOR_ADD, "-D", "N=2048")
    root = tree(page)
    assert "pip install nvidia-cuda-nvdisasm" in text(root)
    assert re.search(r"/\*[0-9a-f]{4}\*/ B[-\d]{6}:R.:W\d:[Y-]:S\d\d LDG ;", text(listing(root, "SASS")))


def test_loops_in_machine_code_beside_the_solved_interval(
    gemm: tuple[str, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    page, record = gemm
    (loop,) = record["loops"]
    consumer, producer = drawn.report(page)["machine_code"]
    assert (consumer["role"], producer["role"]) == ("products", "copies")
    for one in (consumer, producer):
        assert (one["kernel"], one["line"], one["solved"]) == ("gemm", 25, loop["ii"])
        assert one["stall_counts"] <= one["with_waits"] <= one["solved"]
    shown = rows(under(tree(page), "Loops in machine code", "table"))
    assert shown[1][:3] == ["gemm", "25", "products"] and shown[1][5:8] == [
        str(consumer[fact]) for fact in ("stall_counts", "with_waits", "solved")
    ]
    assert tilec("report", GEMM) == 0
    said = capfd.readouterr().out
    assert re.search(rf"25 +products .* {consumer['with_waits']} +{loop['ii']} +WARPGROUP waits", said)


def test_line_information_changes_no_instruction() -> None:
    assert tilec(GEMM, "--emit", "ptx", "-o", "gemm.ptx") == 0
    ptx = Path("gemm.ptx").read_text(encoding="utf-8")
    plain, lined = (
        disassemble.disassemble_cubin(assemble_module(ptx, "sm_90a", line_info=i).cubin) for i in (False, True)
    )
    assert plain is not None and lined is not None and "//##" in lined
    of_each = [[line for line in code.splitlines() if line.lstrip().startswith("/*")] for code in (plain, lined)]
    assert of_each[0] == of_each[1] != []


def test_what_a_person_wrote_stays_text(hostile: tuple[str, dict[str, Any]]) -> None:
    page, _ = hostile
    assert page.count("<script") == 3 and "<img" not in page and "\x1b" not in page
    root = tree(page)
    assert {node.tag for node in root.iter()}.isdisjoint({"script", "img", "b"})
    assert not any(sign in shown for shown in root.itertext() for sign in "\x1b\u202e")
    assert HOSTILE in "".join(listing(root, "Kernel").itertext())
    assert HOSTILE in "".join(under(root, "Warnings and lints", "pre").itertext())
    assert text(next(root.iter("h1"))) == "<b>&amp;'<script>alert(1)<!--.tl on sm_90a"


def test_the_same_bytes_wherever_it_lies(gemm: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    copy = tmp_path / "deep" / "gemm.tl"
    copy.write_bytes(Path(GEMM).read_bytes())
    assert pages_of(tmp_path, copy)[0] == gemm[0]


def test_a_file_with_imports_and_several_kernels(tmp_path: Path) -> None:
    (tmp_path / "parts.tl").write_text(
        "import tilelang.language as T\n\n\n@T.macro\ndef doubled(X, Y):\n"
        "    for i in T.Parallel(128):\n        Y[i] = X[i] + X[i]\n"
    )
    one = (
        "@T.prim_func\ndef {0}(X: T.Tensor((128,), 'float32'), Y: T.Tensor((128,), 'float32')):\n"
        "    with T.Kernel(1, threads=128) as bx:\n        doubled(X, Y)\n\n\n"
    )
    kernel = tmp_path / "two.tl"
    kernel.write_text(
        "import tilelang.language as T\nfrom .parts import doubled\n\n\n" + one.format("one") + one.format("two")
    )
    assert tilec("report", str(kernel), "--html", "two.html") == 0
    page = Path("two.html").read_text(encoding="utf-8")
    assert [trace["kernel"] for trace in drawn.traces(page)] == ["one", "two"]
    root = tree(page)
    headings = [text(heading) for heading in root.iter("h2")]
    assert [h for h in headings if h.startswith("two: ")] == [f"two: {h}" for h in
            ("Summary", "Roofline", "Decisions", "Schedule")]  # fmt: skip
    lines = {node.get("data-at"): text(node) for node in listing(root, "Kernel").iter("span")}
    assert lines["2:6"] == "6 for i in T.Parallel(128):"
    assert any(node.get("data-at") == "2:6" for node in listing(root, "PTX").iter("span"))


def test_of_several_there_is_a_folder_of_pages(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "other.tl").write_bytes(Path(VECTOR_ADD).read_bytes())
    (tmp_path / "out").mkdir()
    given = [VECTOR_ADD, "other.tl", "-D", "N=2048"]
    assert tilec("report", *given, "--target", "sm_80,sm_90a", "--html", "out") == 0
    said = [line.partition(":")[0] for line in capfd.readouterr().out.splitlines() if "predicted for 2 blocks" in line]
    assert said == ["vector_add on sm_80", "vector_add on sm_90a"] * 2
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()}
    index = pages.pop("index.html")
    links = re.findall(r'<a href="(.*?)">vector_add</a>', index)
    assert sorted(links) == sorted(pages) and index.count("<script") == 1 and "default-src 'none'" in index
    assert sorted(pages) == [f"{name}.{target}.html" for name in ("other", "vector_add") for target in
                             ("sm_80", "sm_90a")]  # fmt: skip
    of_each = {name: drawn.report(page) for name, page in pages.items()}
    assert {name: (of["file"], of["target"]) for name, of in of_each.items()} == {
        f"{name}.{target}.html": (f"{name}.tl", target)
        for name in ("other", "vector_add")
        for target in ("sm_80", "sm_90a")
    }
    assert tilec("report", VECTOR_ADD, "-D", "N=2048", "--html", "out/") == 0
    assert (tmp_path / "out" / "vector_add.html").exists()
    assert tilec("report", *given, "--schedule", "t.json") == 2


SORTING = """
const made = (values) => ({ children: values.map((value) => ({ textContent: String(value),
  getAttribute: () => typeof value === "number" ? String(value) : null })) });
const head = () => { const found = {}; return { getAttribute: (name) => found[name] ?? "none",
  setAttribute: (name, value) => { found[name] = value; } }; };
const rows = [made(["b", 9]), made(["c", 100]), made(["a", 20])], heads = [head(), head()], clicks = [];
const body = { children: rows, append: (...sorted) => { body.children = sorted; } };
const buttons = heads.map(() => ({ addEventListener: (_, clicked) => clicks.push(clicked) }));
const table = { querySelector: () => body, querySelectorAll: (what) => what === "th" ? heads : buttons };
const document = { querySelectorAll: () => [table] };
SCRIPT
const order = () => body.children.map((row) => row.children[0].textContent).join("");
const orders = [1, 1, 0].map((at) => { clicks[at](); return order(); });
console.log(orders.join(" "));
"""


def test_a_heading_of_the_index_sorts_it() -> None:
    if drawn.NODE is None:
        pytest.skip("no Node on the path to run the script with")
    script = SORTING.replace("SCRIPT", read_template("index.js").replace('"use strict";', ""))
    done = subprocess.run([drawn.NODE, "-e", script], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["bac", "cab", "abc"]


def test_it_opens_with_a_verdict_and_advice(gemm: tuple[str, dict[str, Any]]) -> None:
    root = tree(gemm[0])
    first = next(root.iter("section"))
    assert text(next(first.iter("h2"))) == "In short"
    time, binds, advice = (text(line) for line in first.iter("p"))
    assert time.endswith("µs predicted for 64 blocks of gemm on sm_90a.")
    assert binds.startswith("Bound by what the loop at line 25 computes; ")
    assert advice.startswith("Advice: 64 of 132 multiprocessors have a block: ")


def test_an_answer_without_a_price_is_not_weighed(gemm: tuple[str, dict[str, Any]]) -> None:
    page, record = gemm
    unpriced = [each for made in record["decisions"] for each in made.get("alternatives", ()) if each["price"] is None]
    assert unpriced
    weighed = [row[-1] for row in rows(under(tree(page), "Decisions", "table"))[1:]]
    assert not any("null" in cell for cell in weighed)


def test_what_is_no_report(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("report", GEMM, "--html", GEMM) == 1
    assert "it is the input" in capfd.readouterr().err
    assert tilec("report", GEMM, "-O1", "--html", "x.html") == 2
    assert tilec("report", "absent.tl", "--html", "x.html") == 1
    assert not Path("x.html").exists()


# ---- what a person does with it --------------------------------------------------------------------------------------


def test_a_button_switches_between_light_and_dark(gemm: tuple[str, dict[str, Any]]) -> None:
    press = "theme.meet('click'); seen.push([document.documentElement.dataset.theme, theme.textContent]);"
    seen = "(() => { const theme = document.getElementById('theme'), seen = [theme.textContent];"
    said = drawn.value(gemm[0], f"{seen} {press} {press} return seen; }})()")
    assert said == ["Dark", ["dark", "Light"], ["light", "Dark"]]


def test_a_line_lights_up_with_its_instructions(gemm: tuple[str, dict[str, Any]]) -> None:
    """Under the mouse and by the keyboard; a click brings them into view and goes nowhere."""
    meet = """(() => {
        const lit = () => document.querySelectorAll(".lit").map((one) => one.dataset.at);
        const number = document.querySelectorAll(".number").find((one) => one.name === "a"), before = lit();
        number.meet("mouseover");
        const panels = document.querySelectorAll(".code pre");
        for (const one of document.querySelectorAll("[data-at]")) one.offsetTop = 600;
        for (const one of panels) one.clientHeight = 300;
        const isPrevented = number.meet("click"), under = lit();
        const moved = panels.map((one) => [one.attributes["aria-label"], one.scrollTop ?? null]);
        document.querySelectorAll("h1")[0].meet("mouseover");
        const kept = lit().length;
        document.querySelectorAll("[data-at]").find((one) => one.dataset.at !== under[0]).meet("focusin");
        return [before, number.parent.dataset.at, under, kept, isPrevented, moved, lit()];
    })()"""
    before, at, under_it, kept, is_prevented, moved, after = drawn.value(gemm[0], meet)
    assert before == [] and len(under_it) == kept > 1 and set(under_it) == {at} and is_prevented
    assert moved == [["Kernel", None], ["PTX", 500], ["SASS", 500]]
    assert len(after) > 1 and set(after) != {at}


# ---- in a browser ----------------------------------------------------------------------------------------------------


DECISIONS = "document.querySelector('#decisions .scroll')"


@pytest.fixture(params=["gemm", "hostile"])
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    chrome = chromium.program()
    if chrome is None:
        pytest.skip("no Chromium on the path, and none in the variable CHROME")
    page, _ = request.getfixturevalue(request.param)
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    yield file, chrome


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_shows(shown: tuple[Path, str], width: int, scheme: Any, tmp_path: Path) -> None:
    file, chrome = shown
    with chromium.Page(file, tmp_path / "profile", width, scheme, chrome) as page:
        assert page.value("document.title").endswith(".tl on sm_90a"), "no script of the kernel has run"
        assert page.value("document.documentElement.scrollWidth") == width, "nothing is wider than the page"
        assert page.value(f"{DECISIONS}.scrollWidth <= {DECISIONS}.clientWidth"), "reasons are read without scrolling"
        sections = page.value("[...document.querySelectorAll('section[id]')].map(s => [s.id, s.clientHeight])")
        assert [name for name, _ in sections] == [
            "lints", "summary", "roofline", "decisions", "loop-0", "beside", "machine-code", "code",
        ]  # fmt: skip
        assert all(height > 40 for _, height in sections)
        colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        before = page.value(colours)
        assert page.value("document.getElementById('theme').textContent") == {"light": "Dark", "dark": "Light"}[scheme]
        page.value("document.getElementById('theme').click()")
        after = page.value(colours)
        assert {scheme: before}[scheme] != after and page.value("document.documentElement.dataset.theme") != scheme
        lit = "[...document.querySelectorAll('.lit')].map(one => one.dataset.at)"
        assert page.value(lit) == []
        of_product = "document.querySelector('pre[aria-label=PTX] [id^=to-1-]')"
        page.value(f"{of_product}.scrollIntoView({{block: 'center'}})")
        x, y = page.value(f"(r => [r.left + 40, r.top + 6])({of_product}.getBoundingClientRect())")
        page.move(x, y)
        at = page.value(f"{of_product}.dataset.at")
        found = page.value(lit)
        assert len(found) > 2 and set(found) == {at}
        assert page.problems == []
