"""Drafts by a smaller model with the same tokens, greedily.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache, Slot
from specengine.draft import NOTHING, Draft
from specengine.errors import ModelsIncompatible, SettingsInvalid
from specengine.models.registry import ModelEntry
from specengine.models.target import ChainTarget, Target
from specengine.models.tokenizer import Tokenizer
from specengine.noise import Stream, draw
from specengine.sampling import GREEDY, NEVER, Behind, Sampling, choose, probabilities, processed


class ModelDrafts:
    """Source that owns the draft model and its stored KV."""

    name = "draft_model"

    def __init__(
        self,
        model: Target,
        end_ids: frozenset[int],
        num_slots: int,
        capacity: int,
        vocab_size: int | None = None,
    ) -> None:
        """``vocab_size`` is the target's, where it pads its tokens otherwise."""
        self._model = model
        self._vocab_size = vocab_size or model.vocab_size
        self._end_ids = end_ids
        self._prefixes = PrefixCache(lambda: KVCache(model.kv_shape, capacity), num_slots)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> ModelDrafter:
        """Return a drafter on a slot of the draft model's own cache."""
        return ModelDrafter(
            self._model, self._end_ids, self._prefixes, prompt_ids, sampling, self._vocab_size
        )


class ModelDrafter:
    """The draft model on one request."""

    def __init__(
        self,
        model: Target,
        end_ids: frozenset[int],
        prefixes: PrefixCache,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        vocab_size: int,
    ) -> None:
        self._model = model
        self._chains = model if isinstance(model, ChainTarget) else None
        self._vocab_size = vocab_size
        # What penalties would change is left to the target.
        self._sampling = replace(
            sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
        )
        self._end_ids = end_ids
        self._prefixes = prefixes
        self._slot: Slot = prefixes.lease(prompt_ids)
        self._known = list(self._slot.token_ids)
        """Tokens whose rows the cache holds, drafted ones among them."""
        self._drafted: list[int] = []
        """What there is of the draft that is being made."""
        self._laws: list[torch.Tensor] = []
        """What its tokens were drawn from, if the target's verdict asks for it."""
        self._base_len = 0
        """Length of the text that it continues."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        """Return how the draft model goes on, ended by an end token at the latest.

        It chooses as the target will: greedily, with the same noise, or by a draw of its own.

        A pass reads a piece of what it has not read yet, or drafts one token. Where a pass would
        wait for the host, the whole draft is one call.
        """
        max_tokens = min(max_tokens, self._slot.cache.capacity - len(token_ids))
        if max_tokens <= 0:
            return NOTHING
        if not self._drafted or len(token_ids) != self._base_len:
            self._rewind(token_ids)
            self._drafted, self._laws, self._base_len = [], [], len(token_ids)
        pending = self._drafted[-1:] or list(token_ids[len(self._known) :])
        most = self._model.prompt_rows
        if len(pending) > most:
            self._forward(pending[:most], num_logits=0)
            return None
        if self._chains is not None and self._sampling.is_greedy:
            return self._chain(self._chains, pending, max_tokens)
        self._drafted.append(self._choose(self._forward(pending, num_logits=1)))
        if len(self._drafted) < max_tokens and self._drafted[-1] not in self._end_ids:
            return None
        draft = Draft.chain(self._drafted, ModelDrafts.name, self._laws)
        self._drafted, self._laws = [], []
        return draft

    def close(self) -> None:
        """Give the slot back; its rows serve the next request."""
        # A chain that a device could not end has left rows of tokens that nobody knows.
        self._slot.cache.truncate(len(self._known))
        self._prefixes.release(self._slot, self._known)

    def _rewind(self, token_ids: Sequence[int]) -> None:
        # The last committed token is read again at least: only a forward pass gives logits.
        limit = min(len(self._known), len(token_ids) - 1)
        length = next((at for at in range(limit) if self._known[at] != token_ids[at]), limit)
        del self._known[length:]
        self._slot.cache.truncate(length)

    def _forward(self, token_ids: list[int], *, num_logits: int) -> torch.Tensor:
        logits = self._model.forward(token_ids, self._slot.cache, num_logits=num_logits)
        self._known += token_ids
        return logits

    def _chain(self, model: ChainTarget, pending: list[int], num: int) -> Draft:
        """Return a draft that the device makes by itself."""
        token_ids = model.greedy_chain(pending, self._slot.cache, num)
        self._known += pending + token_ids[:-1]
        ends = (at + 1 for at, token_id in enumerate(token_ids) if token_id in self._end_ids)
        return Draft.chain(token_ids[: next(ends, num)], ModelDrafts.name)

    def _choose(self, logits: torch.Tensor) -> int:
        sampling, position = self._sampling, self._base_len + len(self._drafted)
        # What is drawn must be a token of the target: to cut it off later would bias the text.
        missing = self._vocab_size - logits.shape[1]
        logits = F.pad(logits, (0, missing), value=NEVER)
        rows = processed(logits, [Behind((), ())], sampling)
        if sampling.method == "seeded" or sampling.is_greedy:
            return choose(rows, [position], sampling)[0]
        law = probabilities(rows, sampling)[0]
        self._laws.append(law)
        return draw(law, sampling.seed, position, Stream.PROPOSAL, turn=self._base_len)


def partner_of(target: ModelEntry, chosen: str) -> str:
    """Return the draft model of a target: the chosen one, or its partner in models.toml.

    Raises:  SettingsInvalid when there is neither.
    """
    name = chosen or target.draft
    if not name:
        raise SettingsInvalid(
            f"models.toml pairs no draft model with {target.name}.",
            hint="Name one with --draft-model, or choose another drafter.",
        )
    return name


def check_same_tokens(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a draft model whose token ids mean other text; padded vocabularies are allowed.

    Raises:  ModelsIncompatible with the first difference.
    """
    difference = target.difference(draft)
    if difference is not None:
        raise ModelsIncompatible(
            f"target and draft model have different tokens: {difference}.",
            hint="Choose a draft model of the same family.",
        )
