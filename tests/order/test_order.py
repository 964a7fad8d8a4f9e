"""A kernel means what it means as Python: what is evaluated when, what is read before what is stored, which loop a
`break` leaves. `as_python.py` runs the text itself; what is drawn is in `drawn_order.py`.

`--hypothesis-profile=thorough` draws 250 kernels, `full` ten times as many.
"""

from __future__ import annotations

import pytest
from drawn_order import HEAD, drawn
from hypothesis import given, strategies as st
from judged_order import found, judged

BEFORE = """\
@T.prim_func
def kernel(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32"), C: T.Tensor((8,), "int32"),
           R: T.Tensor((8,), "int32"), p: T.int32, q: T.int32):
    with T.Kernel(1, threads=32) as bx:
        v = T.alloc_var("int32", 4)
        w = T.alloc_var("int32", 0)
"""

BODIES = {
    "break in a loop over a tuple": """
for k in T.serial(4):
    for c in (1, 2, 3):
        v += c
        if c == 2:
            break
    v += 100
A[0] = v
""",
    "break that is decided at run time": """
for k in T.serial(4):
    for c, d in zip((1, 2, 3), (5, 6, 7)):
        v += c
        if c + k == p % 4:
            break
        v += d
    w += v
A[0] = w
""",
    "jumps out of branches of branches": """
for k in range(6):
    if k > 1:
        v += 1
        if k > p % 5:
            if k == 4:
                break
            v += 10
            if p % 2 == 0:
                continue
        v += 100
    elif k == q % 3:
        continue
    v += 1000
A[0] = v
""",
    "jumps in a nest": """
for i in T.Parallel(8):
    for c in (1, 2, 3):
        if i == c:
            continue
        if A[i] > p:
            A[i] += c
            if B[i] > c * 2:
                break
        B[i] += c
    if i > 2:
        if A[i] > 5:
            C[i] = 7
            if B[i] > 5:
                continue
            C[i] += 1
    C[i] += 20
""",
    "a jump behind an atomic operation": """
for i in T.Parallel(8):
    if i > 1:
        if T.atomic_add(A[i], 3, return_prev=True) > 4:
            continue
        B[i] += 1
    C[i] += 20
""",
    "swaps and rotations": """
for i in T.Parallel(8):
    A[i], B[i] = B[i], A[i]
    A[i], B[i], C[i] = B[i], C[i], A[i]
A[0], v = v, A[0]
v, w, B[1] = w, B[1], v
A[1] = A[2] = A[1] + 1
C[0] = v * 10 + w
""",
    "a butterfly": """
for i in T.Parallel(4):
    A[i], A[i + 4] = A[i] + A[i + 4], A[i] - A[i + 4]
""",
    "tuples, lists and dictionaries hold values": """
x = (A[0], v)
y = [A[1] + k for k in range(2)]
z = {"a": A[2], "b": v + w}
A[0], A[1], A[2], v = 50, 51, 52, 53
B[0], B[1], B[2] = x[0], x[1], y[1]
B[3], B[4] = z["a"], z["b"]
""",
    "what a loop over values runs over": """
for x in (A[0], v, 7):
    A[0] += 1
    v += x
B[0] = v
""",
    "arguments of macros": """
C[0] = put(A[0], A[0], v)
C[1] = put(v + 1, v, v)
C[2] = put(A[v % 8], v, v)
put(A[3], B[v % 8], bump(v))
C[3] = total(v, bump(v)) * 100 + total(y=bump(v), x=v)
exchange(A[4], A[5])
exchange(v, A[6])
C[4] = v
""",
    "what stands before an effect": """
A[0] = v * 100 + bump(v)
A[1] = v - bump(v) * (v + bump(v))
A[v % 8] = bump(v)
A[bump(v) % 8] += bump(v)
A[2] += bump(A[2])
v += bump(v)
B[0] = R[v % 8] + R[bump(v) % 8] * v
if v > 3 and A[0] > 2:
    B[1] = v
for i in T.Parallel(8):
    C[i] = C[i] * 100 + T.atomic_add(C[i], i, return_prev=True) * 10 + C[i]
""",
    "defaults are those of the definition": """
fs = [lambda x, k=k: x + k for k in range(3)]
A[0] = fs[0](10) * 100 + fs[2](10)
""",
    "jumps in the middle of loops whose bounds are data": """
for k in T.serial(A[0] % 4):
    v += k
    for m in range(v % 3, 4):
        B[m] -= 3
        if B[m] < k:
            v -= 2
            continue
        w //= -2
        if w % 3 == m:
            break
        w += 7
    if v > 20:
        T.loop_break()
    v *= -3
    v %= 50
A[1], A[2] = v, w
""",
    "a loop that never runs": """
for k in range(2):
    while v < 9 and 5 < 3:
        v += 100
    v += 1
A[0] = v
""",
    "elements outside": """
w = A[v + 4] + B[v - 5] + 1
A[R[0]] = 50
B[v + 4] += 60
C[v - 5] = 70
for i in T.Parallel(8):
    A[i + 8 * (R[i] % 3 - 1)] //= -2
C[0] = w
""",
    "what an atomic operation finds decides": """
for i in T.Parallel(8):
    if T.atomic_max(A[i], 4, return_prev=True) < 4 and B[i] > 0:
        x = T.atomic_add(C[i], -3, return_prev=True)
        if x % 2 == 1:
            B[i] = x // -2
            continue
        A[i] -= x
    C[i] *= -2
""",
    "a bound is read once": """
A[0] = 3
for k in T.serial(A[0]):
    A[0] += 1
    v += k
w = 2
for k in T.serial(w):
    w += 1
    v += k
B[0] = v
""",
}


def kernel(body: str) -> str:
    return HEAD + BEFORE + "".join(f"        {line}\n" for line in body.strip().split("\n"))


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_body_means_what_python_says(name: str, seed: int) -> None:
    assert judged(kernel(BODIES[name]), seed) == ("agrees", "")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_its_ptx_means_that_too(target: str) -> None:
    """Every body once, by one of the targets each."""
    for place, body in enumerate(BODIES.values()):
        if place % 2 == (target == "sm_90a"):
            assert judged(kernel(body), 1, target) == ("agrees", "")


@given(st.integers(0, 10**9))
def test_drawn_bodies_mean_what_python_says(number: int) -> None:
    verdict, told = judged(drawn(number), number)
    assert verdict != "differs", f"drawn({number}): {told}"


@pytest.mark.some(1)
@pytest.mark.parametrize("part", range(20))
def test_the_ptx_of_drawn_bodies_means_that_too(part: int) -> None:
    """Of two kernels each; `order_campaign.py` tries more."""
    for number in (2 * part, 2 * part + 1):
        verdict, told = found(drawn(number), number, ("sm_80", "sm_90a")[number % 2], 2 + part % 2)
        assert verdict in ("agrees", "refused"), f"drawn({number}): {verdict}: {told}"


def test_most_that_is_drawn_is_accepted() -> None:
    verdicts = [judged(drawn(number), number)[0] for number in range(8)]
    assert verdicts.count("agrees") > 4


def test_code_grows_with_the_text() -> None:
    """`continue` in branches, one after another: what follows is not written twice."""
    from tilec.driver.build import Observer, load_kernel
    from tilec.ir.tile import walk_statements
    from tilec.support.options import CompileOptions
    from tilec.support.source import SourceFile

    def statements(count: int, head: str, place: str) -> int:
        part = "    if {0} > {1}:\n        {0} += 1\n        if {0} == {2}:\n            continue\n    {0} += 2\n"
        text = head + "\n" + "".join(part.format(place, k, k * 2) for k in range(count))
        made = load_kernel(SourceFile("kernel.tl", kernel(text)), CompileOptions(lint="off"), Observer())
        return sum(1 for _ in walk_statements(made.body))

    for head, place in (("for k in T.serial(4):", "v"), ("for i in T.Parallel(8):", "A[i]")):
        few, many = statements(4, head, place), statements(12, head, place)
        assert many < 4 * few
