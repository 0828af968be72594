from __future__ import annotations

import msgspec
import pytest

from specengine.bench.own import OwnContestant, OwnEngine, compiled_for, load_own, without_ends
from specengine.errors import SettingsInvalid
from tests.specengine.tiny import END_ID, greedy

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8] * 6


def test_drafts_change_passes_and_not_text(tiny_engine: OwnEngine):
    plain = OwnContestant(tiny_engine, "none").write(PROMPT, 24)
    fast = OwnContestant(tiny_engine, "suffix").write(PROMPT, 24)
    assert plain.token_ids == fast.token_ids
    assert plain.passes == plain.num_decoded == 23
    assert plain.drafted == 0
    assert fast.drafted > 0
    assert fast.num_prompt == len(PROMPT)


def test_text_is_that_of_the_model_without_any_stored_prefix(tiny_engine: OwnEngine):
    contestant = OwnContestant(tiny_engine, "none")
    contestant.write([*PROMPT, 5], 4)
    written = contestant.write(PROMPT, 8)
    model = tiny_engine.models.target
    assert written.token_ids == tuple(greedy(model, PROMPT, 8))  # type: ignore[arg-type]


def test_prefill_ends_with_the_first_written_token(tiny_engine: OwnEngine):
    ticks = iter(range(100))
    contestant = OwnContestant(tiny_engine, "none", clock=lambda: next(ticks))
    written = contestant.write(PROMPT, 3)
    # Two passes for 48 tokens, then two that write one token each.
    assert written.prefill_ms == 2000
    assert written.decode_ms == 2000
    assert written.num_decoded == written.passes == 2


def test_end_token_is_a_token_like_others(tiny_engine: OwnEngine):
    assert tiny_engine.models.ends_text(END_ID)
    assert not without_ends(tiny_engine.models).ends_text(END_ID)
    assert tiny_engine.models.ends_text(END_ID)


def test_draft_model_that_nobody_named_is_refused(tiny_engine: OwnEngine):
    with pytest.raises(SettingsInvalid, match="no draft model"):
        OwnContestant(tiny_engine, "draft_model")


def test_prompt_that_was_read_before_is_not_read_again(tiny_engine: OwnEngine):
    ticks = iter(range(100))
    contestant = OwnContestant(tiny_engine, "none", clock=lambda: next(ticks))
    # Two passes for 48 tokens from nothing; one where 47 of them are stored.
    assert contestant.resume_ms(PROMPT) == 1000
    assert contestant.write(PROMPT, 1).prefill_ms == 2000


def test_instructions_are_named(tiny_engine: OwnEngine):
    assert compiled_for(tiny_engine.models.target).startswith("torch ")
    loaded = load_own(
        msgspec.structs.replace(tiny_engine.settings, precision="int8"), lambda *_: None
    )
    assert compiled_for(loaded.models.target).startswith(("native ", "torch "))


def test_what_was_written_is_drafted_from_until_it_is_forgotten(tiny_engine: OwnEngine):
    cold = OwnContestant(tiny_engine, "suffix")
    warm = OwnContestant(tiny_engine, "suffix", remembers=True)
    assert (cold.drafter, warm.drafter) == ("suffix", "suffix, with history")
    first, again = warm.write(PROMPT, 24), warm.write(PROMPT, 24)
    assert again.token_ids == first.token_ids
    assert again.passes < first.passes
    warm.forget()
    forgetful = [warm.write(PROMPT, 24), cold.write(PROMPT, 24), cold.write(PROMPT, 24)]
    assert all(written.passes > again.passes for written in forgetful)


def test_only_some_drafters_remember(tiny_engine: OwnEngine):
    names = ("none", "suffix", "auto")
    can = [OwnContestant(tiny_engine, name).can_remember for name in names]
    assert can == [False, True, True]
