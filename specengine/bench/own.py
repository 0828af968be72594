"""Our engine inside this process: the same sessions as behind the socket, without queue or door."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from specengine.bench.contestants import Written, added
from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import Prompt, PromptLayout
from specengine.decoding.session import Limits, Models, Session
from specengine.drafters.base import DrafterSource, Remembers
from specengine.drafters.build import auto_parts, build, recipes
from specengine.drafters.draft_model import ModelDrafts, check_same_tokens, partner_of
from specengine.drafters.pass_times import PassTimes, known_or_measured
from specengine.drafters.trained import declared_drafts
from specengine.models import registry
from specengine.models.convert import ensure_model
from specengine.models.integer import IntegerDecoder
from specengine.models.registry import ModelEntry
from specengine.models.staging import OnProgress, cache_root
from specengine.models.target import Target
from specengine.models.targets import load_target
from specengine.models.tokenizer import Tokenizer
from specengine.sampling import GREEDY, Sampling
from specengine.settings import EngineSettings

Clock = Callable[[], float]

WITH_HISTORY: Final = ", with history"
"""Follows the name of a drafter that remembers."""


@dataclass(frozen=True)
class OwnEngine:
    """A loaded model with all that a session needs."""

    settings: EngineSettings
    entry: ModelEntry
    folder: Path
    models: Models
    layout: PromptLayout
    cache: KVCache
    """The one that sessions use, one after the other."""

    def source(self, drafter: str, history_bytes: int = 0) -> DrafterSource:
        """Return a drafter by its name; loads the draft model if the name asks for it.

        Without a history it remembers no text of earlier requests, as benchmarks ask for the same
        ones again.

        Raises:  ConfigError.
        """
        known = recipes(self._draft_model, self._head_drafts, history_bytes)
        return build(drafter, known, self._pass_times, auto_parts(self.entry.heads))

    def session(
        self,
        prompt: Prompt,
        drafter: DrafterSource,
        max_tokens: int,
        prefixes: PrefixCache | None = None,
        sampling: Sampling = GREEDY,
    ) -> Session:
        """Return a request; without ``prefixes`` nothing of its prompt is stored."""
        return Session(
            models=replace(self.models, prefixes=prefixes or self.nothing_stored()),
            prompt=prompt,
            drafter=drafter.start(prompt.token_ids, sampling),
            sampling=sampling,
            limits=Limits(max_tokens, self.settings.num_draft_tokens),
        )

    def nothing_stored(self) -> PrefixCache:
        """Return an empty store, which takes over the one cache."""
        self.cache.truncate(0)
        return PrefixCache(lambda: self.cache, 1)

    def _pass_times(self) -> PassTimes:
        self.cache.truncate(0)
        most_rows, folder = self.settings.num_draft_tokens + 1, cache_root() / "passes"
        return known_or_measured(self.models.target, self.cache, most_rows, folder)

    def _head_drafts(self, kind: str) -> DrafterSource:
        return declared_drafts(self.entry, kind, self.models.target, self.models.tokenizer, 1)

    def _draft_model(self) -> DrafterSource:
        if not self.settings.draft_model and "draft_model" in self.entry.heads:
            return self._head_drafts("draft_model")
        name = partner_of(self.entry, self.settings.draft_model)
        folder = ensure_model(registry.load().resolve(name))
        tokenizer = Tokenizer.load(folder)
        check_same_tokens(self.models.tokenizer, tokenizer)
        decoder = load_target(folder, self.settings.precision, device=self.settings.device)
        capacity = min(self.settings.context_tokens, decoder.architecture.context_len)
        ends = tokenizer.end_ids | tokenizer.special_ids  # as for the target
        return ModelDrafts(decoder, ends, 1, capacity, self.models.vocab_size)


class OwnContestant:
    """Our engine with one drafter, which may remember what it has written until it shall forget."""

    engine = "specengine"

    def __init__(
        self,
        own: OwnEngine,
        drafter: str,
        clock: Clock = time.perf_counter,
        *,
        remembers: bool = False,
    ) -> None:
        self._endless = replace(own, models=without_ends(own.models))
        self._source = own.source(drafter, own.settings.history_mb * 2**20 if remembers else 0)
        self._blank = own.layout.lay_out("", "", heal=False)
        self._clock = clock
        self.drafter = f"{self._source.name}{WITH_HISTORY if remembers else ''}"

    @property
    def can_remember(self) -> bool:
        """Whether its drafter is of a kind that drafts from earlier texts."""
        return isinstance(self._source, Remembers)

    def forget(self) -> None:
        """Forget what was written."""
        if isinstance(self._source, Remembers):
            self._source.forget()

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        """Continue a prompt; nothing is healed."""
        return self._write(prompt_ids, num_tokens, self._endless.nothing_stored())

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        """Return how long the first token takes when all but the last of the prompt is stored."""
        prefixes = self._endless.nothing_stored()
        self._write(prompt_ids[:-1], 1, prefixes)
        return self._write(prompt_ids, 1, prefixes).prefill_ms

    def _write(self, prompt_ids: Sequence[int], num_tokens: int, prefixes: PrefixCache) -> Written:
        prompt = replace(self._blank, token_ids=tuple(prompt_ids))
        session = self._endless.session(prompt, self._source, num_tokens, prefixes)
        started = self._clock()
        try:
            ends = [(len(session.written_ids), self._clock()) for _ in _passes(session)]
        finally:
            session.close()
        # The passes that read the prompt write nothing; the last of them writes its first tokens.
        ends = [end for end in ends if end[0]]
        num_first, first_at = ends[0]
        return Written(
            token_ids=session.written_ids,
            num_prompt=len(prompt_ids),
            prefill_ms=(first_at - started) * 1000,
            decode_ms=(ends[-1][1] - first_at) * 1000,
            num_decoded=len(session.written_ids) - num_first,
            passes=len(ends) - 1,
            drafted=session.counts.drafted,
            accepted=session.counts.accepted,
            draft_ms=session.counts.draft_ms,
            drafts=sum(each.drafts for each in session.counts.by_drafter.values()),
            accepted_at=added(each.accepted_at for each in session.counts.by_drafter.values()),
        )


def load_own(settings: EngineSettings, on_progress: OnProgress) -> OwnEngine:
    """Fetch, convert and load the model that the settings name.

    Raises:  ConfigError, LoadError.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    known = registry.load()
    entry = known.resolve(settings.model or known.default)
    folder = ensure_model(entry, on_progress)
    tokenizer = Tokenizer.load(folder)
    decoder = load_target(
        folder,
        settings.precision,
        device=settings.device,
        step_rows=settings.num_draft_tokens + 1,
    )
    cache = KVCache(decoder.kv_shape, settings.context_tokens)
    models = Models(decoder, tokenizer, decoder.vocab_size, PrefixCache(lambda: cache, 1))
    layout = PromptLayout(entry, tokenizer, settings.prompt_tokens)
    return OwnEngine(settings, entry, folder, models, layout, cache)


def compiled_for(target: Target) -> str:
    """Return the instructions that a target was compiled to use."""
    if isinstance(target, IntegerDecoder):
        return f"native {target.kernel.variant}"
    return f"torch {torch.backends.cpu.get_cpu_capability()}"


def without_ends(models: Models) -> Models:
    """Return models for which no token ends a text."""
    tokenizer = copy.copy(models.tokenizer)
    tokenizer.end_ids = tokenizer.special_ids = frozenset()
    return replace(models, tokenizer=tokenizer)


def _passes(session: Session) -> Iterator[str]:
    """Advance to the end; yield the text of each pass."""
    while session.stop_reason is None:
        yield session.advance()
