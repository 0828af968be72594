"""Completions for several users in shared passes."""

from __future__ import annotations

from specengine.bench.own import OwnEngine
from specengine.bench.users import NUM_TOKENS, USERS, Round, measure

TEXTS = ["def f(self):\n    return self\n\ndef g(self):\n    ret", "class A:\n    def", "x = "]


def test_there_is_a_row_for_each_drafter_and_number_of_users(tiny_engine: OwnEngine) -> None:
    rows = measure(tiny_engine, ["none", "suffix"], TEXTS, 2, lambda fraction, detail: None)
    assert [(row.drafter, row.users) for row in rows] == [
        (drafter, users) for drafter in ("none", "suffix") for users in USERS
    ]
    for row in rows:
        assert row.completions == 2 * row.users
        assert row.p95_ms >= row.median_ms > 0
        assert row.tokens_s > 0
    assert [row.against_one for row in rows if row.users == 1] == [1.0, 1.0]


def test_every_user_gets_every_completion(tiny_engine: OwnEngine) -> None:
    one = Round(tiny_engine, tiny_engine.source("none"), TEXTS, each=3, users=2)
    assert one.run() > 0
    assert len(one.milliseconds) == 6
    assert one.num_tokens <= 6 * (NUM_TOKENS + 16)
