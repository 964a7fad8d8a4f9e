"""What `ncu --csv` writes, in its forms, units and locales."""

from __future__ import annotations

import pytest

from tilec.simulate.counters import Counter
from tilec.simulate.profiles import ProfiledLaunch, ProfileError, compare_profile, read_profile, select_launches

ROWS = """==PROF== Connected to process 1234
==PROF== Profiling "gemm" - 0: 0%....50%....100% - 9 passes
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1234","gemm(CUtensorMap, CUtensorMap)","","gpu__time_duration.sum","usecond","7.5"
"0","1234","gemm(CUtensorMap, CUtensorMap)","","dram__bytes_read.sum","Mbyte","4.25"
"0","1234","gemm(CUtensorMap, CUtensorMap)","","smsp__inst_executed.sum","inst","1,393,216"
"0","1234","gemm(CUtensorMap, CUtensorMap)","","launch__function_cache_configuration","","CachePreferNone"
"1","1234","other(int)","","gpu__time_duration.sum","nsecond","100"
==PROF== Disconnected from process 1234
"""
COLUMNS = """"ID","Kernel Name","gpu__time_duration.sum","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","msecond","%"
"0","gemm","0,0075","12,50"
"1","gemm","0,0085","12,70"
"""


def test_a_row_for_each_metric() -> None:
    gemm, other = read_profile(ROWS)
    assert gemm.kernel.startswith("gemm(")
    assert gemm.metrics == {
        "gpu__time_duration.sum": 7500.0,
        "dram__bytes_read.sum": 4.25e6,
        "smsp__inst_executed.sum": 1_393_216.0,
    }
    assert other.metrics == {"gpu__time_duration.sum": 100.0}


def test_a_column_for_each_metric() -> None:
    first, second = read_profile(COLUMNS)
    assert first.metrics["gpu__time_duration.sum"] == pytest.approx(7500)
    assert second.metrics["sm__warps_active.avg.pct_of_peak_sustained_active"] == 12.7


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1234.5", 1234.5),
        ("1,234.5", 1234.5),
        ("1234,5", 1234.5),
        ("1.234.567,5", 1234567.5),
        ("1,234", 1234),
        ("12 345", 12345),
        ("-0.5", -0.5),
        ("1e3", 1000),
    ],
)
def test_numbers_of_any_locale(written: str, meant: float) -> None:
    text = f'"Kernel Name","Metric Name","Metric Unit","Metric Value"\n"k","a__b.sum","inst","{written}"\n'
    assert read_profile(text)[0].metrics == {"a__b.sum": meant}


def test_rates_are_of_a_second() -> None:
    text = '"Kernel Name","a__b.per_second","c__d.per_second"\n"","Ghz","Tbyte/s"\n"k","1.6","4.1"\n'
    assert read_profile(text)[0].metrics == pytest.approx({"a__b.per_second": 1.6e9, "c__d.per_second": 4.1e12})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the header row with the column Kernel Name is missing"),
        ("a,b\n1,2\n", "the header row with the column Kernel Name is missing"),
        ('"Kernel Name","Metric Name"\n"k","a__b.sum"\n', "no column Metric Unit"),
        ('"Kernel Name","Metric Name","Metric Unit","Metric Value"\n', "no metric with a number"),
        ('"Kernel Name","Metric Name","Metric Unit","Metric Value"\n"k","a__b","","n/a"\n', "no metric with a number"),
        ('"ID","Kernel Name","a__b.sum"\n', "no metric with a number"),
    ],
)
def test_what_is_no_profile(text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        read_profile(text)


def test_the_kernel_is_found_by_its_name() -> None:
    launches = (ProfiledLaunch("gemm(int)", {}), ProfiledLaunch("gemm_split(int)", {}), ProfiledLaunch("_Z4gemmi", {}))
    assert select_launches(launches, "gemm") == launches[:1]
    assert select_launches(launches[1:], "gemm") == launches[1:]
    assert select_launches(launches, "softmax") == ()


def test_the_mean_of_launches_beside_the_prediction() -> None:
    launches = [
        ProfiledLaunch("k", {"a__b.sum": 8.0, "c__d.sum": 1.0}),
        ProfiledLaunch("k", {"a__b.sum": 12.0}),
        ProfiledLaunch("k", {}),
    ]
    compared = compare_profile(launches, [Counter("a__b.sum", "inst", 5.0), Counter("e__f.sum", "", 1.0)])
    (row,) = compared.rows
    assert (row.measured, row.predicted, row.ratio) == (10.0, 5.0, 0.5)
    assert compared.unmatched == ("c__d.sum",) and compared.launches == 3
    assert (
        compare_profile([ProfiledLaunch("k", {"a__b.sum": 0.0})], [Counter("a__b.sum", "", 1.0)]).rows[0].ratio is None
    )
