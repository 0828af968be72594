"""A request from its prompt to its last token."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Limits, Models, Session, Share
from specengine.draft import NOTHING, Draft
from specengine.drafters.base import DrafterSource
from specengine.drafters.none import NoDrafts
from specengine.drafters.suffix import SuffixDrafts
from specengine.models.registry import ModelEntry
from specengine.models.target import PROMPT_ROWS, Rows, Tree
from specengine.protocol import StopReason
from specengine.sampling import GREEDY, Sampling
from tests.exact import adversaries
from tests.specengine.tiny import END_ID, ScriptedDrafts, tiny_decoder, tiny_tokenizer

DECODER = tiny_decoder()
LAYOUT = PromptLayout(ModelEntry(name="tiny", source="/tiny"), tiny_tokenizer(), 256)
PREFIX = "def f(self):\n    return self\n\ndef g(self):\n    ret"


def new_models(num_slots: int = 2) -> Models:
    prefixes = PrefixCache(lambda: KVCache(DECODER.kv_shape, 512), num_slots)
    return Models(DECODER, tiny_tokenizer(), DECODER.vocab_size, prefixes)


def new_session(
    models: Models,
    source: DrafterSource | None = None,
    *,
    prefix: str = PREFIX,
    max_tokens: int = 24,
    sampling: Sampling | None = None,
    heal: bool = True,
    stop: tuple[str, ...] = (),
    num_logprobs: int | None = None,
) -> Session:
    prompt = LAYOUT.lay_out(prefix, "", heal=heal)
    return Session(
        models=models,
        prompt=prompt,
        drafter=(source or NoDrafts()).start(prompt.token_ids, sampling or Sampling()),
        sampling=sampling or Sampling(),
        limits=Limits(max_tokens, 7, stop),
        num_logprobs=num_logprobs,
    )


def run(session: Session) -> str:
    text = ""
    while session.stop_reason is None:
        text += session.advance()
    session.close()
    return text + session.finish_text()


def test_chunks_joined_are_the_text_of_the_tokens_behind_the_cursor() -> None:
    session = new_session(new_models())
    text = run(session)
    written = tiny_tokenizer().decode(session.written_ids)
    assert session.stop_reason is StopReason.LENGTH
    assert written.startswith(" ret")
    assert text == written.removeprefix(" ret")


def test_max_tokens_counts_what_is_written_behind_the_healed_tokens() -> None:
    """The healed text is " ret"; a token that ends in it writes nothing new."""
    session = new_session(new_models(), max_tokens=5)
    run(session)
    ends = [len(tiny_tokenizer().decode(session.written_ids[:n])) for n in range(1, 12)]
    num_healed = sum(end <= len(" ret") for end in ends)
    assert len(session.written_ids) == num_healed + 5


def test_an_end_token_ends_the_text_and_is_not_part_of_it() -> None:
    """The 8th token of the plain text is declared an end token."""
    models = new_models()
    plain = new_session(models)
    run(plain)
    at = next(i for i in range(6, 20) if plain.written_ids[i] not in plain.written_ids[:i])
    tokenizer = tiny_tokenizer()
    ends = replace(models, tokenizer=EndsAt(tokenizer, plain.written_ids[at]))
    for source in (NoDrafts(), ScriptedDrafts(adversaries.oracle(plain_text(plain)))):
        session = new_session(ends, source)
        run(session)
        assert session.stop_reason is StopReason.END_TOKEN
        assert session.written_ids == plain.written_ids[:at]


class EndsAt:
    """A tokenizer with one more end token."""

    def __init__(self, tokenizer: object, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.end_ids = frozenset({end_id, END_ID})

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)


def plain_text(session: Session) -> list[int]:
    return [*session.prompt.token_ids, *session.written_ids]


WISHES = (
    Sampling(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=1.2, seed=4, top_k=20, min_p=0.02),
    Sampling(temperature=1.0, seed=5, top_p=0.8, repetition_penalty=1.3),
    Sampling(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
    Sampling(temperature=0.7, seed=6, logit_bias=((65, 3.0), (66, -9.0)), frequency_penalty=0.5),
)


@pytest.mark.parametrize("sampling", WISHES)
def test_drafts_do_not_change_the_text(sampling: Sampling) -> None:
    """Every wish is applied at each drafted position as if it were the next."""
    plain = new_session(new_models(), sampling=sampling, max_tokens=60)
    expected = run(plain)
    truth = plain_text(plain)
    scripts = (
        adversaries.oracle(truth),
        adversaries.liar(truth, DECODER.vocab_size),
        adversaries.gambler(truth, DECODER.vocab_size, seed=1),
        adversaries.quitter(truth, END_ID),
        adversaries.stranger(truth, DECODER.vocab_size),
    )
    sources: Sequence[DrafterSource] = [SuffixDrafts(), *map(ScriptedDrafts, scripts)]
    for source in sources:
        session = new_session(new_models(), source, sampling=sampling, max_tokens=60)
        assert run(session) == expected
        assert session.written_ids == plain.written_ids


class RandomTrees:
    """Drafts of random shape that hold the right token here and there."""

    name = "trees"

    def __init__(self, truth: list[int], seed: int) -> None:
        self._truth, self._rng = truth, random.Random(seed)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> RandomTrees:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        num, rng = self._rng.randrange(max_tokens + 1), self._rng
        parents = [rng.randrange(-1, node) for node in range(num)]
        ids: list[int] = []
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
            right = self._truth[len(token_ids) + depths[-1] :][:1]
            is_right = rng.random() < 0.6
            ids.append(right[0] if right and is_right else rng.randrange(DECODER.vocab_size))
        return Draft(tuple(ids), tuple(parents), self.name)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("sampling", WISHES)
def test_trees_do_not_change_the_text(sampling: Sampling) -> None:
    plain = new_session(new_models(), sampling=sampling, max_tokens=60)
    expected = run(plain)
    for seed in range(8):
        source = RandomTrees(plain_text(plain), seed)
        session = new_session(new_models(), source, sampling=sampling, max_tokens=60)
        assert run(session) == expected
        assert session.written_ids == plain.written_ids
        assert 0 < session.counts.accepted < session.counts.drafted
        assert session.counts.steps < plain.counts.steps


@pytest.mark.parametrize("seed", range(3))
def test_rejection_needs_a_drafter_to_differ_from_what_it_draws_alone(seed: int) -> None:
    """Without drafts every token is drawn from the target; with them a text is again one of its."""
    sampling = Sampling(temperature=1.0, seed=seed, method="rejection")
    texts = [
        run(new_session(new_models(), source, sampling=sampling, max_tokens=30))
        for source in (None, None, SuffixDrafts(), SuffixDrafts())
    ]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_right_drafts_save_passes() -> None:
    plain = new_session(new_models(), max_tokens=60)
    run(plain)
    oracle = ScriptedDrafts(adversaries.oracle(plain_text(plain)))
    session = new_session(new_models(), oracle, max_tokens=60)
    run(session)
    assert session.counts.steps <= plain.counts.steps / 6
    assert session.counts.accepted > 40


class Watching:
    """Drafts what a scripted drafter drafts, and notes what it sees."""

    name = "watching"
    layers = (0, 2)

    def __init__(self, script: DrafterSource, fails: bool = False) -> None:
        self._script, self._fails = script, fails
        self.seen: list[tuple[int, torch.Tensor]] = []

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Watching:
        self._drafter = self._script.start(prompt_ids, sampling)
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        return self._drafter.propose(token_ids, max_tokens)

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        if self._fails:
            raise RuntimeError("blind")
        assert tuple(streams) == self.layers
        self.seen.append((start, streams[0]))

    def close(self) -> None:
        self._drafter.close()


class Bushy:
    """Drafts a wrong token and beside it the right path."""

    name = "bushy"

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Bushy:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        truth = self._text[len(token_ids) : len(token_ids) + max_tokens - 1]
        wrong = (truth[0] + 1) % DECODER.vocab_size if truth else 0
        parents = (-1, -1, *range(1, len(truth)))
        return Draft((wrong, *truth), parents[: len(truth) + 1], self.name)

    def close(self) -> None:
        pass


LONG = PREFIX * 3


@pytest.mark.parametrize("script", ["none", "oracle", "adversary", "tree"])
def test_an_observer_sees_the_stream_of_each_committed_token_once(script: str) -> None:
    plain = new_session(new_models(), prefix=LONG)
    run(plain)
    text = plain_text(plain)
    sources: dict[str, DrafterSource] = {
        "none": NoDrafts(),
        "oracle": ScriptedDrafts(adversaries.oracle(text)),
        "adversary": ScriptedDrafts(adversaries.liar(text, DECODER.vocab_size)),
        "tree": Bushy(text),
    }
    watching = Watching(sources[script])
    models = new_models()
    session = new_session(models, watching, prefix=LONG)
    run(session)
    assert session.written_ids == plain.written_ids
    ends = [start + len(streams) for start, streams in watching.seen]
    assert [start for start, _ in watching.seen] == [0, *ends[:-1]]
    streams = torch.cat([streams for _, streams in watching.seen])
    # The embedding of each token, whose stream before all layers it is.
    expected = DECODER.weights.embedding[plain_text(session)[: len(streams)]]
    assert torch.equal(streams[: len(expected)], expected)
    assert len(expected) >= len(plain_text(session)) - 1


def test_an_observer_does_not_see_what_a_stored_prefix_saves() -> None:
    models = new_models()
    run(new_session(models, prefix=LONG))
    watching = Watching(NoDrafts())
    session = new_session(models, watching, prefix=LONG + " x")
    run(session)
    assert watching.seen[0][0] == session.counts.reused > 0


def test_an_observer_that_raises_costs_its_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    plain = new_session(new_models())
    session = new_session(new_models(), Watching(SuffixDrafts(), fails=True))
    assert run(session) == run(plain)
    assert session.counts.drafted == 0
    assert "a drafter failed" in caplog.text


class Learning:
    """Drafts what a scripted drafter drafts, and notes what it learns."""

    name = "learning"

    def __init__(self, script: DrafterSource, fails: bool = False) -> None:
        self._script, self._fails = script, fails
        self.learnt: list[tuple[int, int, float | None]] = []

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Learning:
        self._drafter = self._script.start(prompt_ids, sampling)
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        return self._drafter.propose(token_ids, max_tokens)

    def verified(self, draft: Draft, num_accepted: int, ms: float | None) -> None:
        if self._fails:
            raise RuntimeError("cannot learn")
        self.learnt.append((len(draft), num_accepted, ms))

    def close(self) -> None:
        self._drafter.close()


def test_a_learner_sees_what_each_draft_came_to() -> None:
    plain = new_session(new_models(), prefix=LONG, max_tokens=60, heal=False)
    run(plain)
    text = plain_text(plain)
    learning = Learning(ScriptedDrafts(adversaries.gambler(text, DECODER.vocab_size, seed=1)))
    session = new_session(new_models(), learning, prefix=LONG, max_tokens=60, heal=False)
    run(session)
    assert session.written_ids == plain.written_ids
    assert sum(drafted for drafted, _, _ in learning.learnt) == session.counts.drafted
    assert sum(accepted for _, accepted, _ in learning.learnt) == session.counts.accepted > 0
    # The pass that read the end of the prompt took longer than its draft did.
    assert [ms is None for _, _, ms in learning.learnt][:2] == [True, False]
    assert len(learning.learnt) == session.counts.steps


def test_a_learner_that_raises_costs_its_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    plain = new_session(new_models())
    session = new_session(new_models(), Learning(SuffixDrafts(), fails=True))
    assert run(session) == run(plain)
    assert session.counts.steps == len(session.written_ids)
    assert "a drafter failed" in caplog.text


class Sharing(Watching):
    """Takes the request's cache, and overwrites what lies behind its rows before each draft."""

    name = "sharing"
    caches: list[KVCache]

    def share(self, cache: KVCache) -> None:
        if self._fails:
            raise RuntimeError("alone")
        self.caches.append(cache)

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        (cache,) = self.caches
        rows = torch.full((max_tokens, 2, 16), 9.0)
        cache.layers(0, 2).write(1, rows, rows)
        return super().propose(token_ids, max_tokens)


@pytest.mark.parametrize("prefix", [PREFIX, PREFIX * 3])
def test_a_drafter_may_write_behind_the_rows_of_the_request(prefix: str) -> None:
    plain, models = new_session(new_models(), prefix=prefix), new_models()
    expected = run(plain)
    for _ in range(2):  # the second finds rows of the first
        source = Sharing(SuffixDrafts())
        source.caches = []
        session = new_session(models, source, prefix=prefix)
        assert run(session) == expected
        assert len(source.caches) == 1
        assert session.counts.drafted > 0


def test_a_drafter_that_cannot_take_the_cache_is_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = new_session(new_models(), Sharing(SuffixDrafts(), fails=True))
    assert run(session) == run(new_session(new_models()))
    assert session.counts.drafted == 0
    assert "a drafter failed" in caplog.text


def test_a_drafter_that_raises_costs_its_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    expected = run(new_session(new_models()))
    with caplog.at_level(logging.ERROR):
        session = new_session(new_models(), ScriptedDrafts(adversaries.bungler))
        assert run(session) == expected
    assert len(caplog.records) == 1, "it is not asked again"
    assert "a drafter failed" in caplog.text
    assert session.counts.drafted == 0


def test_a_shared_prefix_is_not_computed_again() -> None:
    models = new_models()
    first = new_session(models)
    run(first)
    second = new_session(models, prefix=PREFIX + "u")
    text = run(second)
    assert second.counts.reused == len(second.prompt.token_ids) - 1
    assert second.counts.prefilled == 1
    assert text == run(new_session(new_models(), prefix=PREFIX + "u"))


@pytest.mark.parametrize("num_passes", range(6))
def test_a_session_closed_early_gives_everything_back(num_passes: int) -> None:
    """In prefill and between steps; the next answer is that of a cold cache."""
    long_prefix = PREFIX.replace("\n\n", "\n    # " + "xy " * 60 + "\n")
    expected = run(new_session(new_models(), prefix=long_prefix))
    models, source = new_models(1), ScriptedDrafts([])
    session = new_session(models, source, prefix=long_prefix)
    for _ in range(num_passes):
        session.advance()
    session.close()
    session.close()
    models.prefixes.check_integrity()
    assert models.prefixes.num_leased == 0
    assert source.started[0].num_closed == 1
    assert run(new_session(models, prefix=long_prefix)) == expected


def test_what_is_typed_is_written_in_the_tokens_that_the_model_prefers() -> None:
    """Without healing the text goes on behind a token that the model would not have used."""
    session = new_session(new_models(), prefix="x = 1\n    ")
    run(session)
    written = tiny_tokenizer().decode(session.written_ids)
    assert written.startswith("\n    ")
    assert tiny_tokenizer().decode(session.prompt.token_ids) == "x = 1"


def test_healing_can_be_switched_off() -> None:
    session = new_session(new_models(), heal=False)
    assert session.prompt.healed_ids == ()
    run(session)
    assert tiny_tokenizer().decode(session.prompt.token_ids) == PREFIX


class ScriptedTarget:
    """A target that writes given tokens at given positions."""

    prompt_rows = PROMPT_ROWS

    def __init__(self, written: dict[int, int]) -> None:
        self._written = written

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        return [
            self.forward(part.token_ids, part.cache, num_logits=part.num_logits) for part in parts
        ]

    def forward(
        self, token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        cache.advance(len(token_ids))
        logits = torch.zeros(num_logits, DECODER.vocab_size)
        for row in range(num_logits):
            logits[row, self._written[cache.length - num_logits + row + 1]] = 1
        return logits


def byte_token(byte: int) -> int:
    tokenizer = tiny_tokenizer()
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


def test_half_a_character_is_held_back_until_it_is_whole_or_the_text_ends() -> None:
    prompt = LAYOUT.lay_out("ab", "", heal=False)
    first, second = (byte_token(byte) for byte in "é".encode())
    at = len(prompt.token_ids)
    target = ScriptedTarget({at: first, at + 1: second, at + 2: first})
    session = new_session(replace(new_models(), target=target), prefix="ab", heal=False)
    session.limits = Limits(max_tokens=3, num_draft_tokens=0)
    assert [session.advance(), session.advance(), session.advance()] == ["", "é", ""]
    assert session.stop_reason is StopReason.LENGTH
    assert session.finish_text() == "\ufffd"
    session.close()


def test_tokens_without_text_count_so_that_every_completion_ends() -> None:
    """A padded vocabulary has ids that stand for nothing."""
    prompt = LAYOUT.lay_out("ab", "", heal=False)
    at, unused = len(prompt.token_ids), tiny_tokenizer().special_id("<begin>")
    target = ScriptedTarget(dict.fromkeys(range(at, at + 9), unused))
    tokenizer = copy.copy(tiny_tokenizer())
    tokenizer.special_ids = frozenset()
    models = replace(new_models(), target=target, tokenizer=tokenizer)
    session = new_session(models, prefix="ab", heal=False, max_tokens=4)
    run(session)
    assert session.written_ids == (unused,) * 4


def test_a_stop_string_ends_the_text_and_is_no_part_of_it() -> None:
    whole = run(new_session(new_models(), max_tokens=60))
    stop = whole[20:23]
    session = new_session(new_models(), max_tokens=60, stop=(stop, "never"))
    assert run(session) == whole[: whole.index(stop)]
    assert session.stop_reason is StopReason.STOP_STRING


def test_tokens_end_with_the_one_that_completes_a_stop_string_whatever_was_drafted() -> None:
    plain = new_session(new_models(), max_tokens=60)
    stop = run(plain)[20:23]
    right = ScriptedDrafts(adversaries.oracle(plain_text(plain)))
    one, other = (
        new_session(new_models(), source, max_tokens=60, stop=(stop,), num_logprobs=0)
        for source in (None, right)
    )
    assert run(one) == run(other)
    assert one.written_ids == other.written_ids
    assert one.logprobs == other.logprobs


def test_no_pass_has_more_rows_than_was_said_also_where_the_prompt_is_stored() -> None:
    models = new_models()
    run(new_session(models))
    session = new_session(models, ScriptedDrafts(lambda ids, room: [7] * room))
    session.limits = replace(session.limits, num_draft_tokens=31)
    while session.stop_reason is None:
        most = session.most_rows
        rows = session.prepare()
        assert rows is not None
        assert len(rows.token_ids) <= most
        (logits,) = models.target.forward_batch([rows])
        session.take(logits)
    session.close()


def test_a_small_share_of_each_pass_changes_nothing_but_the_number_of_passes() -> None:
    plain = new_session(new_models())
    text = run(plain)
    guesses = ScriptedDrafts(adversaries.oracle(plain_text(plain)))
    for most in (1, 3, 8):
        models = new_models()
        session, written = new_session(models, guesses), ""
        while session.stop_reason is None:
            rows = session.prepare(Share(most, 2))
            assert rows is not None
            assert len(rows.token_ids) <= most
            (logits,) = models.target.forward_batch([rows])
            written += session.take(logits)
        session.close()
        assert written + session.finish_text() == text
        assert session.counts.accepted > 0 or most == 1


def test_a_draft_that_is_being_made_is_asked_for_as_at_first_whatever_the_share() -> None:
    asked: list[int] = []

    def propose(token_ids: Sequence[int], room: int) -> list[int] | None:
        asked.append(room)
        return ([], None, [7] * room)[len(asked) - 1]

    session = new_session(new_models(), Unready(propose), heal=False)
    session.advance()
    assert session.prepare() is None
    rows = session.prepare(Share(3, 2))
    assert rows is not None
    assert len(rows.token_ids) == 3
    assert asked[1:] == [7, 7]
    session.close()


def test_passes_that_others_share_teach_a_drafter_no_times() -> None:
    models, learner = new_models(), Neighbour()
    session = new_session(models, learner)
    while session.stop_reason is None:
        rows = session.prepare(Share(8, 3))
        assert rows is not None
        session.take(models.target.forward_batch([rows])[0])
    session.close()
    assert learner.told
    assert set(learner.told) == {None}
    assert set(learner.others) == {3}
    assert all(not told.timed_tokens for told in session.counts.by_drafter.values())


class Unready:
    """Source and drafter; what it returns at a call may be None: not ready."""

    name = "unready"

    def __init__(self, call: Callable[[Sequence[int], int], list[int] | None]) -> None:
        self._call = call

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Unready:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        ids = self._call(token_ids, max_tokens)
        return None if ids is None else Draft.chain(ids, self.name)

    def close(self) -> None:
        pass


class Neighbour:
    """Source and drafter that notes what it is told."""

    name = "learning"

    def __init__(self) -> None:
        self.told: list[float | None] = []
        self.others: list[int] = []

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Neighbour:
        return self

    def among(self, num_requests: int) -> None:
        self.others.append(num_requests)

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        return NOTHING

    def verified(self, draft: Draft, num_accepted: int, ms: float | None) -> None:
        self.told.append(ms)

    def close(self) -> None:
        pass


def test_a_stop_token_ends_the_text_and_is_no_part_of_it() -> None:
    plain = new_session(new_models())
    run(plain)
    at = next(i for i in range(8, 20) if plain.written_ids[i] not in plain.written_ids[:i])
    for source in (NoDrafts(), ScriptedDrafts(adversaries.oracle(plain_text(plain)))):
        session = new_session(new_models(), source)
        session.limits = replace(session.limits, stop_ids=frozenset({plain.written_ids[at]}))
        run(session)
        assert session.written_ids == plain.written_ids[:at]
        assert session.stop_reason is StopReason.STOP_TOKEN


def test_a_token_that_stands_before_the_cursor_stops_nothing() -> None:
    plain = new_session(new_models())
    run(plain)
    session = new_session(new_models())
    session.limits = replace(session.limits, stop_ids=frozenset({plain.written_ids[0]}))
    run(session)
    assert session.written_ids[0] == plain.written_ids[0]
    assert len(session.written_ids) > 1


def test_logprobs_are_those_of_the_model_whatever_was_drafted() -> None:
    sampling = Sampling(temperature=1.0, seed=3, top_k=5)
    plain = new_session(new_models(), sampling=sampling, max_tokens=40, num_logprobs=2)
    run(plain)
    assert [each.token_id for each in plain.logprobs] == list(plain.written_ids)
    for each in plain.logprobs:
        assert len(each.top) == 2
        assert each.logprob <= each.top[0][1] <= 0
        assert each.top[0][1] >= each.top[1][1]
    truth = plain_text(plain)
    for source in (
        ScriptedDrafts(adversaries.gambler(truth, DECODER.vocab_size, seed=1)),
        RandomTrees(truth, 1),
    ):
        session = new_session(
            new_models(), source, sampling=sampling, max_tokens=40, num_logprobs=2
        )
        run(session)
        assert session.logprobs == plain.logprobs


def test_without_a_wish_no_logprobs_are_noted() -> None:
    session = new_session(new_models(), max_tokens=5)
    run(session)
    assert session.logprobs == ()


def test_what_came_of_drafts_is_told_by_drafter_and_place() -> None:
    plain = new_session(new_models(), max_tokens=30)
    run(plain)
    right = plain_text(plain)
    oracle = ScriptedDrafts(adversaries.oracle(right), "oracle")
    session = new_session(new_models(), oracle, max_tokens=30)
    run(session)
    told = session.counts.by_drafter["oracle"]
    assert (told.drafted, told.accepted) == (session.counts.drafted, session.counts.accepted)
    assert sum(told.accepted_at) == told.accepted
    assert told.accepted_at == sorted(told.accepted_at, reverse=True)
    assert told.timed_tokens >= told.accepted - told.accepted_at[0]


def test_passes_without_a_draft_are_told_too() -> None:
    session = new_session(new_models(), max_tokens=30)
    run(session)
    (told,) = session.counts.by_drafter.values()
    assert (told.drafts, told.drafted, told.accepted_at) == (0, 0, [])
    assert 0 < told.timed_tokens <= session.counts.steps
    assert told.verify_ms == pytest.approx(session.counts.verify_ms)


class Asleep(NoDrafts):
    """Says why it drafts nothing."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        return replace(NOTHING, reason="asleep")


def test_why_a_pass_has_no_draft_is_counted() -> None:
    session = new_session(new_models(), Asleep(), heal=False)
    run(session)
    assert session.counts.undrafted == {"asleep": session.counts.steps}
