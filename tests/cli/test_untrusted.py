"""Kernel files of strangers: nothing in them is executed, reads what it does not name, or writes what nobody named."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from command import VECTOR_ADD, tilec

from tilec import load
from tilec.ir.manifest import SYMBOL_PREFIX
from tilec.support import files
from tilec.support.diagnostics import CompileError

KERNEL = """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(64):
            A[i] = A[i] + %s
"""


def _written(folder: Path, line: str = "", value: str = "1.0") -> None:
    (folder / "k.tl").write_text(f"import tilelang.language as T\n{line}\n{KERNEL % value}")


# ---- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "from ..secret import x", "from ...secret import x", "from .. import secret", "from .a..secret import x",
        "from ./etc/passwd import x", "from '/etc/passwd' import x", "from .\0secret import x", "import .secret",
        "from .folder import x", "from .device import x", "from .pipe import x", "from .outside import x",
        "from .circle import x", "from .k import x", "from .linked.secret import x", "from .absent import x",
    ],
)  # fmt: skip
def test_imports_stay_where_they_are(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret.tl").write_text("x = 'classified'\n")
    (work / "folder.tl").mkdir()
    os.mkfifo(work / "pipe.tl")
    (work / "device.tl").symlink_to("/dev/zero")
    (work / "outside.tl").symlink_to("../secret.tl")
    (work / "linked").symlink_to("..")
    (work / "circle.tl").symlink_to("circle.tl")
    _written(work, line, "x")
    before = sorted(tmp_path.rglob("*"))
    assert tilec("work/k.tl", "-o", "work/k.cubin") == 1
    said = capfd.readouterr().err
    assert said.startswith("error[")
    assert "Traceback" not in said
    assert "classified" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_kernel_that_is_a_link_finds_what_lies_beside_it(tmp_path: Path) -> None:
    """As sandboxes of builds make them."""
    for folder in ("real", "sandbox"):
        (tmp_path / folder).mkdir()
    _written(tmp_path / "real", "from .parts import x", "x")
    (tmp_path / "real" / "parts.tl").write_text("x = 2.0\n")
    for name in ("k.tl", "parts.tl"):
        (tmp_path / "sandbox" / name).symlink_to(tmp_path / "real" / name)
    assert tilec("sandbox/k.tl", "-o", "a.cubin") == 0
    assert tilec("real/k.tl", "-o", "b.cubin") == 0
    assert (tmp_path / "a.cubin").read_bytes() == (tmp_path / "b.cubin").read_bytes()


@pytest.mark.parametrize("name", ["k.tl", "parts.tl"])
def test_a_large_file_is_refused_by_its_size(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "file-too-large"
    _written(tmp_path, "from .parts import x")
    (tmp_path / "parts.tl").write_text("x = 1\n")
    with (tmp_path / name).open("a") as file:
        file.write("#" * files.LARGEST_SOURCE)
    assert tilec("k.tl") == 1
    assert f"error[{code}]: {name} has more than 1,048,576 bytes" in capfd.readouterr().err


def test_what_does_not_end_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("/dev/zero") == 1
    assert capfd.readouterr().err.startswith("error[file-too-large]: /dev/zero has more than 1,048,576 bytes")


# ---- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch owned')", "open('owned', 'w')", "exec('1')", "eval('1')", "().__class__",
        "T.__loader__", "(lambda: 0).__globals__", "print.__self__", "getattr(T, '__dict__')", "''.format(1)",
        "'%s' % T", "f'{T.__class__}'", "[c for c in ().__class__.__mro__]", "globals()", "compile('1', '', 'eval')",
        "input()", "breakpoint()", "help()", "vars()", "type(1)", "object()", "__builtins__", "T.os", "math.os",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["constant", "kernel"])
def test_nothing_of_python_is_executed(
    expression: str, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _written(tmp_path, f"x = {expression}" if place == "constant" else "", "x" if place == "constant" else expression)
    assert tilec("check", "k.tl") == 1
    assert capfd.readouterr().err.startswith("error[")
    assert [path.name for path in tmp_path.iterdir()] == ["k.tl"]


@pytest.mark.parametrize(
    "define",
    ["x=__import__('os').system('touch owned')", "x=../../secret", "__class__=1", "a/b=1", "x=\0", "T=1", "=1"],
)
def test_definitions_are_values(define: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _written(tmp_path, "x = 1.0", "x")
    assert tilec("k.tl", "-D", define) == 1
    assert capfd.readouterr().err.startswith("error[")
    assert [path.name for path in tmp_path.iterdir()] == ["k.tl"]


# ---- names that go into outputs --------------------------------------------------------------------------------------


def test_names_of_files_cannot_say_more_than_a_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of all that goes into outputs, it alone is no identifier of the language."""
    name = 'a"*@x\n#error b.tl'
    (tmp_path / name).write_bytes(Path(VECTOR_ADD).read_bytes())
    assert tilec(name, "-o", "a", "--emit", "cubin,header,ptx", "--target", "sm_80") == 0
    header = (tmp_path / "a.h").read_text()
    assert not [line for line in header.splitlines() if line.startswith("#error b")]
    assert '.file 1 "a%22*@x%0A#error b.tl"' in (tmp_path / "a.ptx").read_text()
    assert tilec(name, "-o", "b.cubin", "-MD") == 1
    assert "no rule of make can name 'a" in capfd.readouterr().err
    assert not (tmp_path / "b.d").exists()
    for form in ("json", "github", "sarif"):
        assert tilec("check", name, "-D", "Q=1", "--diagnostics-format", form) == 1
        assert "\n#error b" not in capfd.readouterr().err


# ---- cubins and their manifests --------------------------------------------------------------------------------------

BACKSTOP = 60
"""Seconds of the processor, where it would be hours."""
MANIFEST = (
    '{"schema":1,"entry":"k","target":"sm_80","grid":[1,1,1],"block":[32,1,1],"cluster":[1,1,1],"dynamic_smem":0,'
    '"tensors":[{"name":"A","dtype":"float32","shape":[64],"role":"in"}],"scalars":[],'
    '"params":[{"kind":"pointer","tensor":"A"}]}'
)
_HEADER, _SECTION, _SYMBOL = 64, 64, 24


def _elf(contents: bytes, name: bytes = SYMBOL_PREFIX.encode() + b"k", symbols: int = 1, **lies: int) -> bytes:
    """A file with a section of `contents`, which `symbols` of one name stand for; `lies` are what it says instead."""
    names = b"\0" + name + b"\0"
    said = {
        "sections": _HEADER, "entry_size": _SECTION, "count": 4, "symbols_at": _HEADER + 4 * _SECTION,
        "symbols_size": symbols * _SYMBOL, "link": 2, "value": 0, "length": len(contents), "section": 3, "name_at": 1,
        "names_at": _HEADER + 4 * _SECTION + symbols * _SYMBOL, "address": 0,
    }  # fmt: skip
    said["contents_at"] = said["names_at"] + len(names)
    said |= lies
    header = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", said["sections"])
    header = header.ljust(0x3A, b"\0") + struct.pack("<HHH", said["entry_size"], said["count"], 0)
    rows = [
        (0,) * 10,
        (0, 2, 0, 0, said["symbols_at"], said["symbols_size"], said["link"], 0, 8, _SYMBOL),
        (0, 3, 0, 0, said["names_at"], len(names), 0, 0, 1, 0),
        (0, 1, 0, said["address"], said["contents_at"], len(contents), 0, 0, 1, 0),
    ]
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    symbol = struct.pack("<IBBHQQ", said["name_at"], 0, 0, said["section"], said["value"], said["length"])
    return header + table + symbol * symbols + names + contents


def _refused(data: bytes, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What both readers of a cubin say about it, and soon; nothing is written."""
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/k.cubin").write_bytes(data)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    began = time.process_time()
    with pytest.raises(CompileError) as refused:
        load(data)
    assert tilec("inspect", "a/b/k.cubin") == 1
    assert time.process_time() - began < BACKSTOP
    said = capfd.readouterr()
    assert said.out == "" and said.err.startswith(f"error[{refused.value.diagnostics[0].code}]: ")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    return said.err


def test_the_file_that_the_lies_are_about_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = _elf(MANIFEST.encode())
    assert load(data).manifest.entry == "k"
    (tmp_path / "k.cubin").write_bytes(data)
    assert tilec("inspect", "k.cubin") == 0
    assert capfd.readouterr().out.startswith("k for sm_80\n")


@pytest.mark.parametrize("field", ["sections", "symbols_at", "contents_at", "names_at", "value", "address", "length"])
@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**31, 5000])
def test_places_and_sizes_that_are_lies(
    field: str, value: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _refused(_elf(MANIFEST.encode(), **{field: value}), tmp_path, capfd)


@pytest.mark.parametrize(
    "lies",
    [
        {"count": 65535}, {"count": 0}, {"entry_size": 65535}, {"entry_size": 0}, {"symbols_size": 2**64 - 1},
        {"link": 2**32 - 1}, {"section": 65535}, {"section": 0}, {"name_at": 2**32 - 1}, {"name_at": 2},
    ],
    ids=str,
)  # fmt: skip
def test_counts_and_references_that_are_lies(
    lies: dict[str, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _refused(_elf(MANIFEST.encode(), **lies), tmp_path, capfd)


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("longest", [0, 60_000])
def test_what_many_symbols_stand_for_is_read_no_more_often_than_it_is_there(
    length: int, longest: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is small, all together would take hours."""
    name = SYMBOL_PREFIX.encode() + b"k" * longest
    _refused(_elf(MANIFEST.encode(), name, symbols=200_000, length=length), tmp_path, capfd)


@pytest.mark.parametrize(
    "lie",
    [
        ('"entry":"k"', '"entry":"../../owned"'),
        ('"entry":"k"', '"entry":"/owned"'),
        ('"entry":"k"', '"entry":"a b"'),
        ('"entry":"k"', '"entry":"k\\u001b[31m"'),
        ('"entry":"k"', '"entry":"k;system(0)"'),
        ('"entry":"k"', '"entry":7'),
        ('"target":"sm_80"', '"target":"../sm_80"'),
        ('"A","dtype"', '"B\\n","dtype"'),
        ('"grid":[1,1,1]', '"grid":[1,1]'),
        ('"block":[32,1,1]', '"block":[4294967296,1,1]'),
        ('"dynamic_smem":0', '"dynamic_smem":1e999'),
        ('"dynamic_smem":0', '"dynamic_smem":' + "9" * 5000),
        ('"shape":[64]', '"shape":' + "[" * 9000 + "]" * 9000),
        ('"schema":1', '"schema":99'),
        ('"schema":1', '"schema":"\\ud800\\u001b"'),
        ('"tensor":"A"', '"tensor":"__class__"'),
    ],
    ids=lambda lie: lie[1][:30],
)
def test_manifests_that_are_lies(lie: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = MANIFEST.replace(*lie)
    assert text != MANIFEST
    assert "\x1b" not in _refused(_elf(text.encode()), tmp_path, capfd)


def test_a_cubin_without_an_end_is_refused_by_its_size(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.read_bytes, "__defaults__", (1 << 24,))  # not gigabytes
    assert tilec("inspect", "/dev/zero") == 1
    assert capfd.readouterr().err.startswith("error[file-too-large]: /dev/zero has more than ")


# ---- what is too long or not known -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "code"), [(32, 0), (33, 1), (200, 1)])
def test_a_chain_of_imports_ends(length: int, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(length):
        then = f"from .m{number + 1} import N\n" if number < length - 1 else "N = 1.0\n"
        (tmp_path / f"m{number}.tl").write_text(then)
    _written(tmp_path, "from .m0 import N", "N")
    assert tilec("check", "k.tl") == code
    assert ("error[bad-import]: this is the end of a chain" in capfd.readouterr().err) == bool(code)


@pytest.mark.parametrize("words", [(), ("check",), ("fmt",), ("emulate",), ("inspect",)], ids=lambda w: "".join(w))
def test_a_first_word_of_5000_characters(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*words, "a" * 5000) == 1
    assert capfd.readouterr().err.startswith("error[unreadable-file]: cannot read aaa")


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.v99.u32 {%r0, %r1}, [%d0];", "ld.global.u33 %r0, [%d0];", "ld.nowhere.u32 %r0, [%d0];",
        "add.u32 %r0;", "add.q32 %r0, %r1, %r2;", "frobnicate %r0;", "mov.u32 %r0, %nothing;", "bra nowhere;",
        "mma.sync.aligned.m1n1k1.row.col.f32.f16.f16.f32 %r0, %r1, %r2, %r3;", "cvt.rn.f99.u32 %r0, %r1;",
        "shfl.sync.sideways.b32 %r0, %r1, 0, 31, -1;", "wgmma.mma_async.sync.aligned.m64n9k16.f32.f16.f16 {%r0}, 0, 0;",
        "cp.async.bulk.tensor.9d.shared::cluster.global.tile [%r0], [%d0, {%r1}], [%r2];", "call nothing;",
        "setp.maybe.u32 %p0, %r0, %r1;", "@%p9 add.u32 %r0, %r0, 1;", "add.u32 %r0, %r1, {%r2};", "st.global.u32 1, 2;",
    ],
)  # fmt: skip
def test_ptx_that_is_not_known_is_refused(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 A)
{{
.reg .b64 %d<2>; .reg .b32 %r<9>; .reg .pred %p<2>;
ld.param.u64 %d0, [A];
{line}
ret;
}}
"""
    (tmp_path / "k.ptx").write_text(text)
    assert tilec("emulate", "k.ptx", "--block", "32", "--arg", "zeros:uint32:128") == 1
    assert capfd.readouterr().err.startswith("error[")
