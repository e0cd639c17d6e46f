"""What several ranks count, added up."""

from __future__ import annotations

from collections import Counter

from callbacks.over_ranks import without_repeats


def test_what_two_ranks_spent_on_the_same_thing_counts_once() -> None:
    shared, own = Counter(tokens=7, calls=1), Counter(tokens=5)
    one = (Counter(tokens=100 + 7, calls=3), {"who wrote it?": shared})
    two = (Counter(tokens=200 + 7 + 5, calls=1), {"who wrote it?": shared, "where?": own})
    assert without_repeats([one, two]) == Counter(tokens=312, calls=3)
    assert without_repeats([one]) == Counter(tokens=107, calls=3)
