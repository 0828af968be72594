"""Everything at once: requests of all kinds beside and behind each other, none of which may notice.

Small models, and targets whose rows are exact in every bit, so that a single differing token is a
fault. ``EXACT_PROMPTS`` asks for more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Limits, Models, Session, Share
from specengine.draft import Draft
from specengine.drafters.adaptive import AdaptiveDrafts
from specengine.drafters.base import DrafterSource
from specengine.drafters.composite import CompositeDrafts
from specengine.drafters.draft_model import ModelDrafts
from specengine.drafters.none import NoDrafts
from specengine.drafters.pass_times import Measured, PassTimes
from specengine.drafters.suffix import SuffixDrafts
from specengine.models.registry import ModelEntry
from specengine.models.target import Target
from specengine.models.targets import decoder_from, find_kernel, integer_decoder_from
from specengine.native.build import Kernel
from specengine.sampling import GREEDY, Sampling
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_tensors, tiny_tokenizer

NUM_REQUESTS = 25 * int(os.environ.get("EXACT_PROMPTS", "2"))
TEXT = "def f(self):\n    return self\n\ndef g(self):\n    x = self\n    return x\n" * 4
TOKENIZER = tiny_tokenizer()
LAYOUT = PromptLayout(ModelEntry(name="tiny", source="/tiny"), TOKENIZER, 256)
TIMES = PassTimes(Measured((1, 8), (64,), ((9.0, 10.0),)))
WISHES = (
    GREEDY,
    GREEDY,
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.2, seed=2, top_k=30, top_p=0.95, min_p=0.001),
    Sampling(temperature=0.7, seed=3, repetition_penalty=1.2, frequency_penalty=0.2),
    Sampling(presence_penalty=0.5, logit_bias=((40, 2.0), (41, -5.0))),
)


@dataclass
class Guesses:
    """Trees of guesses: random tokens and such that stood in the text before."""

    seed: int
    name: str = "guesses"
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Guesses:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        num = self.rng.randrange(max_tokens + 1)
        parents = [self.rng.randrange(-1, node) for node in range(num)]
        ids = [self.rng.choice([*token_ids[-30:], self.rng.randrange(290)]) for _ in range(num)]
        return Draft(tuple(ids), tuple(parents), self.name)

    def close(self) -> None:
        pass


@pytest.fixture(params=["float32", "int8"])
def target(request: pytest.FixtureRequest) -> Target:
    architecture = tiny_architecture()
    if request.param == "float32":
        return tiny_decoder()
    kernel = find_kernel(architecture)
    if isinstance(kernel, Kernel):
        return integer_decoder_from(architecture, tiny_tensors(architecture), kernel)
    return decoder_from(architecture, tiny_tensors(architecture), "int8")


def models_of(target: Target, num_slots: int) -> Models:
    prefixes = PrefixCache(lambda: KVCache(target.kv_shape, 512), num_slots)
    return Models(target, TOKENIZER, target.vocab_size, prefixes)


def sources(target: Target, seed: int) -> list[DrafterSource]:
    ends = TOKENIZER.end_ids | TOKENIZER.special_ids
    other = tiny_decoder(seed=9)
    return [
        NoDrafts(),
        SuffixDrafts(),
        Guesses(seed),
        ModelDrafts(target, ends, 4, 512),
        CompositeDrafts([SuffixDrafts(), ModelDrafts(other, ends, 4, 512)]),
        AdaptiveDrafts(
            [SuffixDrafts(), ModelDrafts(target, ends, 4, 512), Guesses(seed + 1)], TIMES
        ),
    ]


@dataclass
class Request:
    """A session on its way, and what it must write."""

    session: Session
    expected: tuple[int, ...]
    passes_left: int
    """Before it is cancelled."""


def plain(target: Target, prefix: str, sampling: Sampling, max_tokens: int) -> tuple[int, ...]:
    session = session_of(models_of(target, 1), NoDrafts(), prefix, sampling, max_tokens)
    while session.stop_reason is None:
        session.advance()
    session.close()
    return session.written_ids


def session_of(
    models: Models, source: DrafterSource, prefix: str, sampling: Sampling, max_tokens: int
) -> Session:
    prompt = LAYOUT.lay_out(prefix, "")
    drafter = source.start(prompt.token_ids, sampling)
    return Session(models, prompt, drafter, sampling, Limits(max_tokens, 7))


@pytest.mark.parametrize("seed", range(2))
def test_no_request_notices_another_a_draft_or_a_cancel(target: Target, seed: int) -> None:
    dice = random.Random(seed)
    models, drafters = models_of(target, 3), sources(target, seed)
    running: list[Request] = []
    started = num_compared = num_shared = 0
    while started < NUM_REQUESTS or running:
        while started < NUM_REQUESTS and len(running) < 3:
            started += 1
            prefix = TEXT[: dice.randrange(5, len(TEXT))]
            sampling, max_tokens = dice.choice(WISHES), dice.randrange(1, 30)
            session = session_of(models, dice.choice(drafters), prefix, sampling, max_tokens)
            expected = plain(target, prefix, sampling, max_tokens)
            running.append(Request(session, expected, dice.choice([1, 4, 1000, 1000])))
        together = dice.sample(running, dice.randrange(1, len(running) + 1))
        # Whatever it gets of a pass, by whatever rule: the text must be the same.
        shares = [
            Share(dice.randrange(1, 32 // len(together) + 1), dice.randrange(1, 9))
            for _ in together
        ]
        prepared = [
            (each, rows)
            for each, share in zip(together, shares, strict=True)
            if (rows := each.session.prepare(share))
        ]
        num_shared += len(prepared) > 1
        logits = target.forward_batch([rows for _, rows in prepared]) if prepared else []
        for (each, _), own in zip(prepared, logits, strict=True):
            each.session.take(own)
        for each in together:
            each.passes_left -= 1
            written = each.session.written_ids
            if each.session.stop_reason is not None:
                assert written == each.expected
                num_compared += len(written)
            elif each.passes_left > 0:
                continue
            assert written == each.expected[: len(written)]
            each.session.close()
            running.remove(each)
            models.prefixes.check_integrity()
    assert num_compared > 4 * NUM_REQUESTS
    assert num_shared > NUM_REQUESTS / 2
    assert models.prefixes.num_leased == 0
