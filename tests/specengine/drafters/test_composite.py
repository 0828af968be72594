from __future__ import annotations

from specengine.draft import NOTHING, Draft
from specengine.drafters.composite import CompositeDrafts
from tests.specengine.tiny import ScriptedDrafts


def test_name_joins_the_names() -> None:
    assert CompositeDrafts([ScriptedDrafts([], "one"), ScriptedDrafts([], "two")]).name == "one+two"


def test_first_that_has_an_idea_proposes() -> None:
    first = ScriptedDrafts([[1], [], []], "first")
    second = ScriptedDrafts([[2, 3], []], "second")
    drafter = CompositeDrafts([first, second]).start([9])
    assert drafter.propose([9], 4) == Draft.chain([1], "first")
    assert drafter.propose([9, 1], 3) == Draft.chain([2, 3], "second")
    assert drafter.propose([9, 1, 2], 2) == NOTHING
    assert first.started[0].calls == [((9,), 4), ((9, 1), 3), ((9, 1, 2), 2)]
    assert second.started[0].calls == [((9, 1), 3), ((9, 1, 2), 2)]


def test_every_drafter_is_closed_once() -> None:
    sources = [ScriptedDrafts([]), ScriptedDrafts([])]
    CompositeDrafts(sources).start([9]).close()
    assert [source.started[0].num_closed for source in sources] == [1, 1]
