"""Where the text of an expanded loop begins."""

from __future__ import annotations

from tilec.passes.cuts import first_step


def test_a_trip_begins_where_no_turn_goes_on() -> None:
    assert first_step([0, 1], [None, None], ()) == 0
    # The turn begins at the end of the interval and ends in the next one: a trip that begins with it has one stage.
    assert first_step([1, 1, 0], [(0, 1), None, (0, 0)], ()) == 2
    # One that began between its halves would cut it in two.
    assert first_step([0, 0, 0], [(0, 0), (0, 1), None], ()) == 0


def test_a_trip_begins_where_no_product_is_in_flight() -> None:
    nothing = (None,) * 4
    assert first_step([0, 0, 0, 0], nothing, [(1, 3)]) == 0
    assert first_step([1, 1, 0, 0], nothing, [(2, 1)]) == 2  # issued in step 2, waited for in the next trip's step 1
    assert first_step([0, 0, 0, 0], nothing, [(2, 0)]) == 1  # between two that would do: the first
    assert first_step([1, 1, 0, 0], nothing, [(2, 1), (1, 2)]) == 2  # one or the other: where fewer trips overlap
