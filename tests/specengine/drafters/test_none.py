from __future__ import annotations

from specengine.draft import NOTHING
from specengine.drafters.none import NoDrafts


def test_it_never_has_an_idea() -> None:
    drafter = NoDrafts().start([1, 2, 1, 2])
    assert drafter.propose([1, 2, 1, 2], 7) == NOTHING
    drafter.close()
    assert NoDrafts.name == "none"
