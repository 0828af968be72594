from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from specengine.bench.contestants import Written
from specengine.bench.decode import Conditions, TokenSet, measure, summarise

CONDITIONS = Conditions("tiny", "bfloat16", runs=3)
SETS = [TokenSet("short", [(1, 2), (3, 4, 5, 6)], 8)]


def nothing(fraction: float, detail: str) -> None:
    pass


@dataclass
class Scripted:
    """Writes what it is told, run by run, and as fast as it is told."""

    engine: str
    drafter: str
    decode_ms: Sequence[float]
    """Of a prompt, in each run."""
    passes: int = 7
    text: tuple[int, ...] = (9,) * 8
    calls: list[tuple[Sequence[int], int]] = field(default_factory=list[tuple[Sequence[int], int]])

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        run = max(0, len(self.calls) - 1) // 2
        self.calls.append((prompt_ids, num_tokens))
        drafted = 0 if self.drafter == "none" else 10
        return Written(
            token_ids=self.text[:num_tokens],
            num_prompt=len(prompt_ids),
            prefill_ms=10.0,
            decode_ms=self.decode_ms[run],
            num_decoded=num_tokens - 1,
            passes=self.passes,
            drafted=drafted,
            accepted=drafted // 2,
            draft_ms=self.passes * 0.5,
            drafts=drafted // 5,
            accepted_at=(2, 2, 1)[: drafted // 2],
        )


def test_rates_are_medians_and_speed_is_held_against_plain_of_the_same_run():
    plain = Scripted("ours", "none", [70, 140, 700])
    fast = Scripted("ours", "suffix", [35, 35, 70], passes=2)
    plain_row, fast_row = measure(SETS, [plain, fast], CONDITIONS, nothing)
    assert plain_row.decode_tok_s == 50.0
    assert plain_row.speedup_vs_plain == 1.0
    assert plain_row.acceptance is None
    assert plain_row.tokens_per_pass == 1.0
    assert plain_row.prefill_tok_s == 300.0
    assert plain_row.spread == pytest.approx((100 - 10) / 50)
    assert fast_row.decode_tok_s == 200.0
    assert fast_row.speedup_vs_plain == 4.0
    assert fast_row.acceptance == 0.5
    assert fast_row.accepted_at == (1.0, 1.0, 0.5)
    assert fast_row.draft_ms == 0.5
    assert fast_row.tokens_per_pass == 3.5
    assert fast_row.ms_per_pass == pytest.approx(140 / 6, abs=1e-3)
    assert (fast_row.set, fast_row.texts, fast_row.runs) == ("short", 2, 3)


def test_engines_are_compared_with_themselves_only():
    contestants = [
        Scripted("ours", "none", [10] * 3),
        Scripted("theirs", "none", [70] * 3, text=(5,) * 8),
        Scripted("theirs", "lookup", [35] * 3, text=(5,) * 8),
    ]
    rows = measure(SETS, contestants, CONDITIONS, nothing)
    assert [row.speedup_vs_plain for row in rows] == [1.0, 1.0, 2.0]
    assert [row.texts_differ for row in rows] == [0, 0, 0]


def test_texts_that_differ_from_plain_are_counted():
    plain = Scripted("ours", "none", [10] * 3)
    other = Scripted("ours", "suffix", [10] * 3, text=(8,) * 8)
    rows = measure(SETS, [plain, other], CONDITIONS, nothing)
    assert [row.texts_differ for row in rows] == [0, 2]


def test_contestants_take_turns_after_a_warm_up():
    plain, fast = Scripted("ours", "none", [10] * 3), Scripted("ours", "suffix", [10] * 3)
    fractions: list[float] = []
    measure(SETS, [plain, fast], CONDITIONS, lambda fraction, _: fractions.append(fraction))
    assert len(plain.calls) == len(fast.calls) == 1 + 3 * 2
    assert plain.calls[1] == ((1, 2), 8)
    assert fractions == [0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]


def test_plain_decoding_must_come_first():
    with pytest.raises(AssertionError, match="plain decoding comes first"):
        measure(SETS, [Scripted("ours", "suffix", [10] * 3)], CONDITIONS, nothing)


def test_the_prompt_that_gains_least_is_told():
    @dataclass
    class Uneven(Scripted):
        """Slower than plain on the second prompt."""

        def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
            written = super().write(prompt_ids, num_tokens)
            factor = 1.25 if len(prompt_ids) == 4 else 0.5
            return replace(written, decode_ms=factor * written.decode_ms)

    plain, uneven = Scripted("ours", "none", [70] * 3), Uneven("ours", "suffix", [70] * 3)
    plain_row, row = measure(SETS, [plain, uneven], CONDITIONS, nothing)
    assert plain_row.worst_speedup == 1.0
    assert row.worst_speedup == 0.8
    assert row.speedup_vs_plain == pytest.approx(140 / 122.5, abs=1e-3)


def test_no_prompt_finds_the_answer_of_an_earlier_run():
    @dataclass
    class Mindful(Scripted):
        """Notes when it forgets."""

        def forget(self) -> None:
            self.calls.append(((), 0))

    plain, mindful = Scripted("ours", "none", [10] * 9), Mindful("ours", "suffix", [10] * 9)
    measure(SETS, [plain, mindful], CONDITIONS, nothing)
    lengths = [len(prompt_ids) for prompt_ids, _ in mindful.calls]
    assert lengths[1:] == [0, 2, 4] * 3


def test_what_nobody_tells_of_drafting_is_not_shown_as_nothing():
    written = Written((9,) * 8, 2, 10.0, 70.0, 7, 7, 0, 0)
    row = summarise("short", Scripted("theirs", "none", [70]), CONDITIONS, [[written]], [[written]])
    assert (row.draft_ms, row.accepted_at) == (None, ())
