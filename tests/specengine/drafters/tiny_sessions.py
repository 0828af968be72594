"""Sessions on tiny decoders, and sources that note what is drafted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Limits, Models, Session
from specengine.draft import Draft
from specengine.drafters.base import Drafter, DrafterSource
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.registry import ModelEntry
from specengine.sampling import GREEDY, Sampling
from tests.specengine.tiny import tiny_tokenizer

LAYOUT = PromptLayout(ModelEntry(name="tiny", source="/tiny"), tiny_tokenizer(), 256)
PREFIX = "def f(self):\n    return self\n\ndef g(self):\n    ret" * 2
AnyDecoder = Decoder | IntegerDecoder


class Noting:
    """Notes what the drafters of a source propose, and how often they were called."""

    def __init__(self, source: DrafterSource) -> None:
        self.name, self._source = source.name, source
        self.drafts: list[Draft] = []
        self.num_calls = 0

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Drafter:
        drafter = self._source.start(prompt_ids, sampling)
        propose = drafter.propose

        def noting(token_ids: Sequence[int], max_tokens: int) -> Draft | None:
            draft = propose(token_ids, max_tokens)
            self.num_calls += 1
            if draft is not None:
                self.drafts.append(draft)
            return draft

        setattr(drafter, "propose", noting)  # noqa: B010
        return drafter


def models_of(decoder: AnyDecoder) -> Models:
    prefixes = PrefixCache(lambda: KVCache(decoder.kv_shape, 512), 2)
    return Models(decoder, tiny_tokenizer(), decoder.vocab_size, prefixes)


def session_of(
    models: Models, source: DrafterSource, prefix: str = PREFIX, sampling: Sampling | None = None
) -> Session:
    sampling = sampling or Sampling()
    prompt = LAYOUT.lay_out(prefix, "", heal=True)
    drafter = source.start(prompt.token_ids, sampling)
    return Session(models, prompt, drafter, sampling, Limits(32, 7))


def run(session: Session) -> tuple[int, ...]:
    while session.stop_reason is None:
        session.advance()
    session.close()
    return session.written_ids


def assert_stored_as_if_nothing_was_drafted(models: Models, session: Session) -> None:
    """Hold what a closed session has left against rows that the target computes by itself."""
    token_ids = [*session.prompt.token_ids, *session.written_ids]
    slot = models.prefixes.lease([*token_ids, 0])
    length = slot.cache.length
    assert length >= len(token_ids) - 1
    alone = KVCache(models.target.kv_shape, 512)
    models.target.forward(token_ids[:length], alone, num_logits=0)
    for layer in range(models.target.kv_shape.num_layers):
        for kept, own in zip(slot.cache.rows(layer), alone.rows(layer), strict=True):
            assert torch.equal(kept, own)
    models.prefixes.release(slot, token_ids[:length])
