from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.adaptive import (
    FAILED,
    FIRST_PAUSE,
    IDLE_AFTER,
    IDLE_TURNS,
    MOST_LANGUAGES,
    NO_IDEA,
    NOT_WORTH_IT,
    PROBE_TOKENS,
    AdaptiveDrafter,
    AdaptiveDrafts,
    PartState,
)
from specengine.drafters.base import Drafter, Learner, Observer, Remembers
from specengine.drafters.pass_times import Measured, PassTimes
from specengine.drafters.suffix import SuffixDrafts
from specengine.sampling import GREEDY, Sampling
from tests.specengine.tiny import ScriptedDrafts, tiny_decoder

PROMPT = [1, 2, 3]


def times(*ms: float) -> PassTimes:
    """Return times of passes of 1, 2, 4 and 8 rows."""
    return PassTimes(Measured((1, 2, 4, 8), (64,), (ms,)))


CHEAP_ROWS = (10.0, 10.1, 10.2, 10.4)
DEAR_ROWS = (10.0, 15.0, 25.0, 45.0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Guesser:
    """Proposes a draft of its own making, which takes some time; source and drafter in one."""

    name: str
    make: Callable[[int], Draft]
    """From the room."""
    clock: Clock
    ms: float = 0.0
    """Of a token."""
    calls: list[int] = field(default_factory=list[int])
    delays: Mapping[int, float] = field(default_factory=dict[int, float])
    """Milliseconds more that some calls take, by number."""

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Guesser:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        self.clock.now += self.delays.get(len(self.calls), 0.0) / 1000
        self.calls.append(max_tokens)
        self.clock.now += max_tokens * self.ms / 1000
        return self.make(max_tokens).first(max_tokens)

    def close(self) -> None:
        pass


def chain(name: str, chances: Sequence[float] = ()) -> Callable[[int], Draft]:
    """Return who proposes a chain of ones, with chances if it tells them."""
    parents = tuple(range(-1, 31))

    def make(room: int) -> Draft:
        number = len(chances) if chances else room
        return Draft((1,) * number, parents[:number], name, chances=tuple(chances))

    return make


def run(drafter: AdaptiveDrafter, num_right: int, passes: int, room: int = 7) -> list[Draft]:
    """Let drafts be verified, of which the first tokens are right; return them."""
    drafts: list[Draft] = []
    text = list(PROMPT)
    for _ in range(passes):
        draft = drafter.propose(text, room)
        assert draft is not None
        accepted = min(num_right, len(draft))
        drafter.verified(draft, accepted, 10.0 + len(draft) * 0.05)
        drafts.append(draft)
        text += [1] * (accepted + 1)
    return drafts


def made_of(
    *sources: Guesser, ms: Sequence[float] = CHEAP_ROWS, clock: Clock | None = None
) -> AdaptiveDrafts:
    return AdaptiveDrafts(sources, times(*ms), clock=clock or sources[0].clock)


def test_a_draft_is_cut_where_its_tokens_are_not_worth_their_rows() -> None:
    sure = Guesser("sure", chain("sure", (0.9, 0.8, 0.3, 0.2)), Clock())
    drafter = made_of(sure, ms=DEAR_ROWS).start(PROMPT)
    lengths = [len(draft) for draft in run(drafter, 2, 10)]
    assert lengths[-1] == 2


def test_among_others_a_row_must_be_worth_the_time_of_all() -> None:
    sure = Guesser("sure", chain("sure", (0.9, 0.8, 0.7, 0.6)), Clock())
    drafter = made_of(sure, ms=(10.0, 12.0, 16.0, 24.0)).start(PROMPT)
    run(drafter, 4, 10)
    lengths: list[int] = []
    for num_requests in (1, 2, 4, 1):
        drafter.among(num_requests)
        lengths += [len(draft) for draft in run(drafter, 4, 1)]
    assert lengths == sorted(lengths[:3], reverse=True) + lengths[:1]
    assert lengths[0] == 4
    assert lengths[2] == 0


def test_a_hopeless_draft_is_not_proposed_at_all() -> None:
    hopeless = Guesser("hopeless", chain("hopeless", (0.3, 0.1)), Clock())
    drafter = made_of(hopeless, ms=DEAR_ROWS).start(PROMPT)
    drafts = run(drafter, 0, 20)
    assert {(len(draft), draft.reason) for draft in drafts[1:]} == {(0, NOT_WORTH_IT)}


def test_where_rows_are_free_all_is_proposed() -> None:
    sure = Guesser("sure", chain("sure", (0.9, 0.5, 0.2, 0.1, 0.06)), Clock())
    drafter = made_of(sure, ms=(10.0, 10.0, 10.0, 10.0)).start(PROMPT)
    assert len(run(drafter, 1, 5)[-1]) == 5


def test_a_cheap_drafter_without_ideas_rests_most_of_the_time() -> None:
    silent = Guesser("silent", lambda room: NOTHING, Clock())
    run(made_of(silent).start(PROMPT), 0, 100 + IDLE_AFTER)
    assert IDLE_AFTER < len(silent.calls) <= IDLE_AFTER + 100 // IDLE_TURNS + 2


def test_a_cheap_drafter_that_has_an_idea_again_is_asked_each_time() -> None:
    ideas = iter([False] * (IDLE_AFTER + 5) + [True] * 50)

    def make(room: int) -> Draft:
        return chain("copy", (0.9,))(room) if next(ideas) else NOTHING

    drafts = run(made_of(Guesser("copy", make, Clock())).start(PROMPT), 1, 60)
    assert [len(draft) for draft in drafts[-20:]] == [1] * 20


def test_chances_that_do_not_come_true_are_believed_less() -> None:
    boaster = Guesser("boaster", chain("boaster", (0.9, 0.9, 0.9)), Clock())
    drafter = made_of(boaster, ms=DEAR_ROWS).start(PROMPT)
    drafts = run(drafter, 0, 40)
    assert len(drafts[1]) == 3
    assert len(drafts[-1]) == 0


def test_a_drafter_that_is_always_right_is_asked_for_all_there_is_room_for() -> None:
    clock = Clock()
    model = Guesser("model", chain("model"), clock, ms=1.5)
    drafts = run(made_of(model).start(PROMPT), 31, 60)
    assert len(drafts[0]) == PROBE_TOKENS
    assert len(drafts[-1]) == 7


def test_a_drafter_that_is_always_wrong_is_no_longer_asked() -> None:
    clock = Clock()
    model = Guesser("model", chain("model"), clock, ms=1.5)
    source = made_of(model)
    run(source.start(PROMPT), 0, 30)
    model.calls.clear()
    drafts = run(source.start(PROMPT), 0, FIRST_PAUSE - 10)
    assert model.calls in ([], [PROBE_TOKENS])
    assert min(map(len, drafts)) == 0
    (state,) = source.snapshot()
    assert state.reason == NOT_WORTH_IT


def test_it_is_tried_again_ever_more_seldom() -> None:
    clock = Clock()
    model = Guesser("model", chain("model"), clock, ms=3.0)
    source = made_of(model)
    drafts = run(source.start(PROMPT), 0, 1000)
    assert [len(draft) for draft in drafts[500:]].count(0) >= 498
    assert any(len(draft) for draft in drafts[100:])


def test_a_drafter_that_has_become_good_is_used_again() -> None:
    clock = Clock()
    model = Guesser("model", chain("model"), clock, ms=1.5)
    source = made_of(model)
    run(source.start(PROMPT), 0, 100)
    drafts = run(source.start(PROMPT), 31, 1000)
    assert len(drafts[-1]) == 7


def test_a_cheap_sure_draft_comes_before_a_dear_one() -> None:
    clock = Clock()
    copy = Guesser("copy", chain("copy", (0.95, 0.9, 0.9, 0.9)), clock)
    model = Guesser("model", chain("model"), clock, ms=2.0)
    source = made_of(copy, model)
    drafts = run(source.start(PROMPT), 31, 30)
    assert {draft.drafter for draft in drafts[5:]} == {"copy"}


def test_a_dear_draft_comes_where_the_cheap_one_is_unsure() -> None:
    clock = Clock()
    copy = Guesser("copy", chain("copy", (0.1,)), clock)
    model = Guesser("model", chain("model"), clock, ms=0.5)
    source = made_of(copy, model)
    text, drafts = list(PROMPT), list[Draft]()
    drafter = source.start(PROMPT)
    for _ in range(40):
        draft = drafter.propose(text, 7)
        assert draft is not None
        drafter.verified(draft, len(draft) if draft.drafter == "model" else 0, 10.0)
        drafts.append(draft)
    assert {draft.drafter for draft in drafts[10:]} == {"model"}


@pytest.mark.parametrize("num_right", [0, 1, 7])
@pytest.mark.parametrize("ms_per_token", [0.2, 2.0, 9.0])
@pytest.mark.parametrize("rows_ms", [CHEAP_ROWS, DEAR_ROWS])
def test_decoding_is_never_slower_than_without_drafts_for_long(
    num_right: int, ms_per_token: float, rows_ms: tuple[float, ...]
) -> None:
    """Law 2: so many tokens are right of each draft, whatever it and its rows cost."""
    clock, measured = Clock(), times(*rows_ms)
    model = Guesser("model", chain("model"), clock, ms=ms_per_token)
    drafter = AdaptiveDrafts([model], measured, clock=clock).start(PROMPT)
    num_tokens, pass_ms = 0, 0.0
    for _ in range(600):
        draft = drafter.propose(PROMPT, 7)
        assert draft is not None
        accepted = min(num_right, len(draft))
        took_ms = measured.measured.at(1 + len(draft), len(PROMPT))
        drafter.verified(draft, accepted, took_ms)
        pass_ms += took_ms
        num_tokens += accepted + 1
    plain_ms = rows_ms[0] * num_tokens
    assert pass_ms + 1000 * clock.now <= 1.03 * plain_ms


@dataclass
class Slow:
    """A drafter that is ready at every third call; source and drafter in one."""

    clock: Clock
    name: str = "slow"
    asked: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Slow:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        self.asked.append((len(token_ids), max_tokens))
        self.clock.now += 0.002
        return Draft.chain([7] * max_tokens, "slow") if len(self.asked) % 3 == 0 else None

    def close(self) -> None:
        pass


def test_a_draft_that_is_not_ready_is_waited_for_with_the_same_wish() -> None:
    clock = Clock()
    slow = Slow(clock)
    drafter = AdaptiveDrafts([slow], times(*CHEAP_ROWS), clock=clock).start(PROMPT)
    text = list(PROMPT)
    for _ in range(20):
        first, second = drafter.propose(text, 7), drafter.propose(text, 7)
        assert (first, second) == (None, None)
        draft = drafter.propose(text, 7)
        assert draft is not None
        assert len(draft)
        drafter.verified(draft, len(draft), 10.0)
        text += [7] * (len(draft) + 1)
    wishes = [slow.asked[at : at + 3] for at in range(0, len(slow.asked), 3)]
    assert all(len(set(three)) == 1 for three in wishes)
    assert len(slow.asked) == 60


def test_a_call_asks_a_drafter_once() -> None:
    """Else a cancel would be seen only after two forward passes."""
    clock = Clock()
    slow = Slow(clock)
    drafter = AdaptiveDrafts([slow], times(*CHEAP_ROWS), clock=clock).start(PROMPT)
    for _ in range(60):
        before = len(slow.asked)
        draft = drafter.propose(PROMPT, 7)
        assert len(slow.asked) <= before + 1
        if draft is not None:
            drafter.verified(draft, len(draft), 10.0)
    assert len(slow.asked) > 30


def broken(room: int) -> Draft:
    raise RuntimeError("a drafter with a bug")


def test_one_that_fails_is_passed_over_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    good = Guesser("good", chain("good", (0.9,)), clock)
    source = made_of(Guesser("bad", broken, clock), good)
    drafts = run(source.start(PROMPT), 31, 10)
    assert drafts[-1].drafter == "good"
    assert caplog.text.count("drafter bad failed") == 1
    assert [state.reason for state in source.snapshot()] == [FAILED, ""]


def test_drawn_tokens_do_not_decide_how_much_of_a_draft_is_kept() -> None:
    """With rejection sampling that would change the law of what is kept."""
    clock = Clock()
    law = torch.tensor([0.5, 0.5])

    def drawn(chances: tuple[float, ...]) -> Callable[[int], Draft]:
        return lambda room: Draft((1, 0), (ROOT, 0), "drawn", (law, law), chances)

    kept = set[int]()
    for chances in ((0.9, 0.8), (0.1, 0.01)):
        source = made_of(Guesser("drawn", drawn(chances), clock), ms=(10.0, 11.0, 12.0, 14.0))
        kept.add(len(run(source.start(PROMPT), 1, 12)[-1]))
    assert len(kept) == 1


def test_a_drawn_draft_is_proposed_as_it_was_drawn() -> None:
    """Seven tokens are worth a wider pass, one is not; an end that was drawn decides nothing."""

    def drawn(room: int) -> Draft:
        return Draft((1,), (ROOT,), "drawn", laws=(torch.ones(4) / 4,))

    clock = Clock()
    step = times(10.0, 17.0, 17.0, 17.0)
    auto = AdaptiveDrafts([Guesser("drawn", drawn, clock, 0.3)], step, clock=clock)
    (part,) = auto._parts  # pyright: ignore[reportPrivateUsage]
    part.asked, part.ms, part.tokens = 10.0, 20.0, 70.0
    part.tried, part.right = [100.0] * 7, [60.0, *[95.0] * 6]
    draft = auto.start(PROMPT).propose(PROMPT, 7)
    assert draft is not None
    assert len(draft) == 1


def test_a_tree_is_taken_as_a_whole_by_what_trees_brought() -> None:
    clock = Clock()

    def tree(room: int) -> Draft:
        return Draft((1, 2, 3, 4), (ROOT, ROOT, 0, 0), "heads").first(room)

    source = made_of(Guesser("heads", tree, clock, ms=0.4), ms=(10.0, 10.5, 11.0, 12.0))
    assert len(run(source.start(PROMPT), 2, 20)[-1]) >= 3
    drafts = run(source.start(PROMPT), 0, 200)
    assert [len(draft) for draft in drafts[-20:]].count(0) >= 18


@dataclass
class Watcher:
    """A drafter that sees streams; source and drafter in one."""

    layers: tuple[int, ...]
    name: str = "watcher"
    seen: list[tuple[set[int], int]] = field(default_factory=list[tuple[set[int], int]])
    is_broken: bool = False

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Watcher:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        return NOTHING

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        if self.is_broken:
            raise RuntimeError("cannot look")
        self.seen.append((set(streams), start))

    def close(self) -> None:
        pass


def test_drafters_that_look_at_the_target_see_their_layers() -> None:
    low, high = Watcher((1, 2)), Watcher((2, 5))
    drafter = AdaptiveDrafts([low, ScriptedDrafts([]), high], times(*CHEAP_ROWS)).start(PROMPT)
    assert isinstance(drafter, Observer)
    assert drafter.layers == (1, 2, 5)
    drafter.observe({layer: torch.zeros(1, 4) for layer in drafter.layers}, 3)
    assert (low.seen, high.seen) == ([({1, 2}, 3)], [({2, 5}, 3)])


def test_one_that_cannot_look_leaves_the_others_their_sight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Watcher((1,), is_broken=True), Watcher((1,))
    drafter = AdaptiveDrafts([bad, good], times(*CHEAP_ROWS)).start(PROMPT)
    assert isinstance(drafter, Observer)
    for _ in range(2):
        drafter.observe({1: torch.zeros(1, 4)}, 0)
    assert (len(bad.seen), len(good.seen)) == (0, 2)
    assert caplog.text.count("failed") == 1


@dataclass
class Sharer(Watcher):
    """A drafter that takes the request's cache."""

    caches: list[KVCache] = field(default_factory=list[KVCache])

    def share(self, cache: KVCache) -> None:
        if self.is_broken:
            raise RuntimeError("wants one of its own")
        self.caches.append(cache)


def test_drafters_that_run_on_the_cache_get_it(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Sharer((1,), is_broken=True), Sharer((1,))
    drafter = AdaptiveDrafts([bad, ScriptedDrafts([]), good], times(*CHEAP_ROWS)).start(PROMPT)
    cache = KVCache(tiny_decoder().kv_shape, 8)
    drafter.share(cache)
    assert good.caches == [cache]
    assert caplog.text.count("failed") == 1


def test_without_such_drafters_streams_are_not_asked_for() -> None:
    drafter = AdaptiveDrafts([ScriptedDrafts([])], times(*CHEAP_ROWS)).start(PROMPT)
    assert not isinstance(drafter, Observer)
    assert isinstance(drafter, Learner)


def test_a_text_that_is_learnt_reaches_those_that_remember() -> None:
    suffix = SuffixDrafts()
    source = AdaptiveDrafts([ScriptedDrafts([]), suffix], times(*CHEAP_ROWS))
    assert isinstance(source, Remembers)
    source.learn([7, 8, 9])
    assert suffix.start([8]).propose([7, 8], 1).token_ids == (9,)
    source.forget()
    assert suffix.start([8]).propose([7, 8], 1) == NOTHING


def test_a_snapshot_has_values_of_each_drafter() -> None:
    clock = Clock()
    source = made_of(Guesser("copy", chain("copy", (0.9, 0.9)), clock))
    run(source.start(PROMPT), 1, 10)
    (state,) = source.snapshot()
    assert state.acceptance == pytest.approx(0.5, abs=0.05)
    assert replace(state, acceptance=0.5) == PartState("copy", 0.5, 0.0, 10, 20, 10, "")


def test_a_pass_without_a_draft_tells_why() -> None:
    clock = Clock()
    ideas = iter([0.9, 0.0, 0.9, 0.1])

    def make(room: int) -> Draft:
        chance = next(ideas)
        return chain("copy", (chance,))(room) if chance else NOTHING

    drafter = made_of(Guesser("copy", make, clock), ms=DEAR_ROWS).start(PROMPT)
    assert [draft.reason for draft in run(drafter, 1, 4)] == ["", NO_IDEA, "", NOT_WORTH_IT]


def test_no_room_gives_nothing() -> None:
    drafter = made_of(Guesser("copy", chain("copy", (0.9,)), Clock())).start(PROMPT)
    draft = drafter.propose(PROMPT, 0)
    assert draft is not None
    assert len(draft) == 0


class Stubborn:
    name = "stubborn"

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Drafter:
        raise RuntimeError("cannot start")


def test_a_source_that_cannot_start_leaves_no_other_open() -> None:
    good = ScriptedDrafts([])
    with pytest.raises(RuntimeError, match="cannot start"):
        AdaptiveDrafts([good, Stubborn()], times(*CHEAP_ROWS)).start(PROMPT)
    assert good.started[0].num_closed == 1


def test_every_drafter_is_closed_once() -> None:
    sources = [ScriptedDrafts([]), ScriptedDrafts([])]
    AdaptiveDrafts(sources, times(*CHEAP_ROWS)).start(PROMPT).close()
    assert [source.started[0].num_closed for source in sources] == [1, 1]


def test_what_is_learnt_in_one_language_is_not_held_against_another() -> None:
    source = made_of(Guesser("copy", chain("copy", (0.9, 0.9)), Clock()))
    run(source.of_language("json").start(PROMPT), 2, 40)
    run(source.of_language("prose").start(PROMPT), 0, 40)
    states = {state.language: state for state in source.snapshot()}
    assert states["json"].acceptance == 1.0
    assert states["prose"].acceptance < 0.9
    assert states[""].drafts == 0


def test_a_new_language_begins_with_what_was_believed_in_the_one_before() -> None:
    source = made_of(Guesser("copy", chain("copy", (0.9, 0.9)), Clock()))
    run(source.of_language("json").start(PROMPT), 0, 40)
    source.of_language("yaml")
    states = {state.language: state for state in source.snapshot()}
    assert states["yaml"].acceptance == states["json"].acceptance
    assert states["yaml"].drafts == 0


def test_only_so_many_languages_are_told_apart() -> None:
    source = made_of(Guesser("copy", chain("copy", (0.9,)), Clock()))
    for number in range(2 * MOST_LANGUAGES):
        source.of_language(f"language {number}").start(PROMPT).close()
    assert len(source.snapshot()) == MOST_LANGUAGES


@pytest.mark.parametrize("late_call", [0, 1, 40])
def test_one_call_that_took_long_does_not_end_a_drafter_s_use(late_call: int) -> None:
    clock = Clock()
    guesser = Guesser("able", chain("able"), clock, ms=0.5, delays={late_call: 600.0})
    drafter = AdaptiveDrafts([guesser], times(*CHEAP_ROWS), clock=clock).start(PROMPT)
    run(drafter, 7, 400)
    assert len(guesser.calls) > 300
