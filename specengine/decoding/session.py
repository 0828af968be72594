"""One request from its prompt to its last token: a state that ``advance`` moves by one pass.

It knows no queue and no socket. Whoever holds it may stop calling ``advance`` at any time and
must call ``close``, which leaves cache and drafter as if the request had never been.
"""

from __future__ import annotations

import codecs
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache, Slot
from specengine.decoding import loop
from specengine.decoding.forced_text import ForcedText
from specengine.decoding.prompt import Prompt
from specengine.decoding.stopping import StopStrings
from specengine.draft import NOTHING, ROOT, Draft, Verdict
from specengine.drafters.base import Drafter, KnowsOthers, Learner, Observer, SharesCache
from specengine.models.target import Rows, Tap, Target
from specengine.models.tokenizer import Tokenizer
from specengine.protocol import StopReason, TokenLogprobs
from specengine.sampling import Behind, Sampling, choose, probabilities, processed
from specengine.trouble import log_trouble
from specengine.verify.match import match
from specengine.verify.rejection import reject, reject_block

logger = logging.getLogger(__name__)

HEALING = "healing"
"""Drafter name of the tokens that were stepped over at the cursor."""


@dataclass(frozen=True)
class Limits:
    """When a completion ends at the latest, and how wide a pass may be."""

    max_tokens: int
    """Written tokens; one that writes nothing but what stands before the cursor does not count."""
    num_draft_tokens: int
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the text; one that is forced to stand before the cursor does not."""


@dataclass
class Drafting:
    """What came of the drafts of one drafter, or of passes without a draft."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list[int])
    """Accepted tokens by their place in the draft."""
    timed_tokens: int = 0
    """Tokens of the passes that the times below are of: those for one request that read no part of
    its prompt."""
    draft_ms: float = 0.0
    verify_ms: float = 0.0

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Count one draft."""
        self.drafts += 1
        self.drafted += num_drafted
        self.accepted += num_accepted
        self.accepted_at += [0] * (num_accepted - len(self.accepted_at))
        for at in range(num_accepted):
            self.accepted_at[at] += 1

    def add(self, other: Drafting) -> None:
        """Count all that another one has counted."""
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.accepted_at += [0] * (len(other.accepted_at) - len(self.accepted_at))
        for at, number in enumerate(other.accepted_at):
            self.accepted_at[at] += number
        self.timed_tokens += other.timed_tokens
        self.draft_ms += other.draft_ms
        self.verify_ms += other.verify_ms


@dataclass
class Counts:
    """Tokens and times of one request, as they stand."""

    reused: int = 0
    prefilled: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    steps: int = 0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    has_drafter_failed: bool = False
    """Whether the drafter raised an error, so that the request went on without it."""
    by_drafter: dict[str, Drafting] = field(default_factory=dict[str, Drafting])
    """By the name in each draft; empty for passes that had none."""
    undrafted: dict[str, int] = field(default_factory=dict[str, int])
    """Passes that had none, by the reason, if the drafter gave one."""

    def add(self, other: Counts) -> None:
        """Count all that another one has counted."""
        self.reused += other.reused
        self.prefilled += other.prefilled
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.steps += other.steps
        self.prefill_ms += other.prefill_ms
        self.draft_ms += other.draft_ms
        self.verify_ms += other.verify_ms
        self.has_drafter_failed |= other.has_drafter_failed
        for name, told in other.by_drafter.items():
            self.by_drafter.setdefault(name, Drafting()).add(told)
        for reason, number in other.undrafted.items():
            self.undrafted[reason] = self.undrafted.get(reason, 0) + number


@dataclass(frozen=True)
class Share:
    """What a request gets of a pass."""

    rows: int = sys.maxsize
    """At most; at least 1."""
    num_requests: int = 1
    """That share the pass, itself among them."""


WHOLE: Final = Share()
"""Of a pass for one request."""


@dataclass(frozen=True)
class Models:
    """What sessions share: the target, its tokens, its stored KV."""

    target: Target
    tokenizer: Tokenizer
    vocab_size: int
    prefixes: PrefixCache

    def ends_text(self, token_id: int) -> bool:
        """Whether a token says that the text is over; one that stands for no text does too."""
        return token_id in self.tokenizer.end_ids or token_id in self.tokenizer.special_ids


@dataclass
class Session:
    """The state of one request."""

    models: Models
    prompt: Prompt
    drafter: Drafter
    sampling: Sampling
    limits: Limits
    drafter_name: str = ""
    """For the trace."""
    clock: Callable[[], float] = time.perf_counter
    stop_reason: StopReason | None = None
    """Set once, when the completion has ended by itself."""
    counts: Counts = field(default_factory=Counts)
    num_logprobs: int | None = None
    """Likeliest tokens to note for each written one; None to note nothing."""

    def __post_init__(self) -> None:
        self._token_ids = list(self.prompt.token_ids)
        self._slot: Slot | None = None
        self._forced: ForcedText = self.prompt.forced
        self._num_hidden_bytes = len(self.prompt.forced.remaining)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopStrings(self.limits.stop)
        self._logprobs: list[TokenLogprobs] = []
        # What the drafter can do is asked once: to ask takes longer than to do.
        drafter = self.drafter
        self._observer = drafter if isinstance(drafter, Observer) else None
        self._learner = drafter if isinstance(drafter, Learner) else None
        self._sharer = drafter if isinstance(drafter, KnowsOthers) else None
        self._tap = None if self._observer is None else Tap(self._observer.layers)
        self._draft: Draft | None = None
        """What the pass that was prepared verifies; None where it reads a part of the prompt."""
        self._prepared_at = 0.0
        self._reads_prompt = False
        """Whether that pass reads the last tokens of the prompt too."""
        self._share = WHOLE
        """What this request has of it."""
        self._asked_room: int | None = None
        """Of a draft that is being made."""
        self._told_draft_ms = 0.0
        """As much of the time for drafting as is told by drafter."""
        self._num_written = 0
        self._is_closed = False
        self._has_drafter_failed = False

    @property
    def written_ids(self) -> tuple[int, ...]:
        """Return the committed tokens after the prompt, healed ones first."""
        return tuple(self._token_ids[len(self.prompt.token_ids) :])

    @property
    def num_healed_bytes(self) -> int:
        """Return how many bytes of those tokens stand before the cursor already."""
        return len(self.prompt.forced.remaining)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Return nothing: a session writes one completion."""
        return ()

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return what the target thought of each of ``written_ids``, if that is noted."""
        return tuple(self._logprobs[: len(self.written_ids)])

    @property
    def most_rows(self) -> int:
        """Return how many rows the next pass has at most."""
        slot, target = self._slot, self.models.target
        num_pending = len(self._token_ids) - (0 if slot is None else slot.cache.length)
        most = target.prompt_rows
        if num_pending <= target.prompt_rows:
            most = num_pending + loop.draft_room(num_pending, self.limits.num_draft_tokens)
        # Of a prompt that was not leased yet, all but one token may turn out to be stored.
        return most if slot is not None else max(most, 1 + self.limits.num_draft_tokens)

    @property
    def _is_timed(self) -> bool:
        """Whether the time of a pass says what its draft cost."""
        return not self._reads_prompt and self._share.num_requests == 1

    def prepare(self, share: Share = WHOLE) -> Rows | None:
        """Return what the target must compute next; ``take`` must follow, with its logits.

        None when the draft model has made a pass instead.
        """
        assert self.stop_reason is None, "the completion has ended"
        assert not self._is_closed, "the session is closed"
        slot = self._slot or self._lease()
        self._draft, self._share = None, share
        rows = loop.prompt_rows(self.models.target, slot.cache, self._token_ids, share.rows)
        if rows is None:
            num_pending = len(self._token_ids) - slot.cache.length
            self._reads_prompt = num_pending > 1
            started = self.clock()
            self._draft = self._propose(num_pending)
            self.counts.draft_ms += self._ms_since(started)
            if self._draft is None:
                return None
            rows = loop.step_rows(slot.cache, self._token_ids, self._draft)
        self._prepared_at = self.clock()
        return replace(rows, tap=self._tap)

    def take(self, logits: torch.Tensor) -> str:
        """Verify and commit after the pass; return the text that it added."""
        slot, draft = self._slot, self._draft
        assert slot is not None
        if draft is None:
            self.counts.prefill_ms += self._ms_since(self._prepared_at)
            self._show(slot.cache.length, NOTHING, ())
            return ""
        num_before = len(self._token_ids)
        verdict = self._verify(logits, draft)
        self._show(num_before, draft, verdict.accepted)
        loop.commit(slot.cache, self._token_ids, draft, verdict)
        took_ms = self._ms_since(self._prepared_at)
        if self._reads_prompt:
            self.counts.prefill_ms += took_ms
        else:
            self.counts.verify_ms += took_ms
        self.counts.steps += 1
        if draft.drafter != HEALING:
            self.counts.drafted += len(draft)
            self.counts.accepted += len(verdict.accepted)
            self._tell_drafting(draft, len(verdict.accepted), took_ms)
            self._teach(draft, len(verdict.accepted), took_ms if self._is_timed else None)
        return self._commit(num_before)

    def advance(self) -> str:
        """Make one forward pass, of target or draft model, and return the text that it added."""
        rows = self.prepare()
        if rows is None:
            return ""
        (logits,) = self.models.target.forward_batch([rows])
        return self.take(logits)

    def finish_text(self) -> str:
        """Return what was held back, when no more tokens will come."""
        return self._stops.feed(self._decoder.decode(b"", final=True)) + self._stops.finish()

    def close(self) -> None:
        """Give back slot and drafter; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._slot is not None:
            # Rows behind the last kept token belong to nothing that a later prompt could share.
            cache = self._slot.cache
            cache.truncate(min(cache.length, len(self._token_ids)))
            self.models.prefixes.release(self._slot, self._token_ids[: cache.length])
        self.drafter.close()

    def _lease(self) -> Slot:
        self._slot = self.models.prefixes.lease(self._token_ids)
        self.counts.reused = self._slot.cache.length
        self.counts.prefilled = len(self._token_ids) - self._slot.cache.length
        self._lend(self._slot.cache)
        return self._slot

    def _lend(self, cache: KVCache) -> None:
        """Hand the cache to a drafter that runs on it."""
        if not isinstance(self.drafter, SharesCache):
            return
        try:
            self.drafter.share(cache)
        except Exception:
            self._give_up_drafter()

    def _propose(self, num_pending: int) -> Draft | None:
        """Return what to verify, or None if the drafter needs another pass for it."""
        room = loop.draft_room(num_pending, self.limits.num_draft_tokens)
        room = min(room, self._share.rows - num_pending)
        if self._forced.remaining:
            healed = self.prompt.healed_ids[len(self.written_ids) :]
            return Draft.chain(healed[:room], HEALING)
        if self._has_drafter_failed:
            return NOTHING
        try:
            if self._sharer is not None:
                self._sharer.among(self._share.num_requests)
            # One that is not ready is asked again for the same.
            asked = room if self._asked_room is None else self._asked_room
            draft = self.drafter.propose(self._token_ids, asked)
        except Exception:
            self._give_up_drafter()
            return NOTHING
        self._asked_room = asked if draft is None else None
        return None if draft is None else draft.cut(self.models.vocab_size, room)

    def _show(self, length: int, draft: Draft, accepted: Sequence[int]) -> None:
        """Let an observer see what the pass has computed of ``length`` and accepted tokens."""
        observer, tap = self._observer, self._tap
        if observer is None or tap is None or self._has_drafter_failed:
            return
        num_pending = tap.streams.shape[1] - len(draft)
        rows: Sequence[int] | slice = [
            *range(num_pending),
            *(num_pending + node for node in accepted),
        ]
        if rows[-1] == len(rows) - 1:
            rows = slice(len(rows))  # As most are: nothing needs to be copied.
        streams = {layer: tap.streams[at, rows] for at, layer in enumerate(tap.layers)}
        try:
            observer.observe(streams, length - num_pending)
        except Exception:
            self._give_up_drafter()

    def _teach(self, draft: Draft, num_accepted: int, took_ms: float | None) -> None:
        """Let a learner see what its draft came to."""
        if self._has_drafter_failed or self._learner is None:
            return
        try:
            self._learner.verified(draft, num_accepted, took_ms)
        except Exception:
            self._give_up_drafter()

    def _give_up_drafter(self) -> None:
        # A drafter can only cost time. The request goes on without it; the log has the bug.
        log_trouble(logger, "a drafter failed; this request goes on without drafts")
        self._has_drafter_failed = self.counts.has_drafter_failed = True

    def _verify(self, logits: torch.Tensor, draft: Draft) -> Verdict:
        """Return what the target says to a draft, of which row 0 stands before its first token."""
        paths = [draft.path(node) for node in (ROOT, *range(len(draft)))]
        written_ids = self.written_ids
        behind = [self._behind(draft, path, written_ids) for path in paths]
        rows = processed(logits, behind, self.sampling)
        positions = [len(self._token_ids) + len(path) for path in paths]
        if self.sampling.method == "seeded" or self.sampling.is_greedy:
            verdict = match(draft, choose(rows, positions, self.sampling))
        else:
            targets = probabilities(rows, self.sampling)
            verify = reject_block if draft.is_chain else reject
            verdict = verify(draft, targets, positions, self.sampling.seed)
        if self.num_logprobs is not None:
            self._note_logprobs(logits, draft, verdict)
        return verdict

    def _tell_drafting(self, draft: Draft, num_accepted: int, took_ms: float) -> None:
        told = self.counts.by_drafter.setdefault(draft.drafter, Drafting())
        if len(draft):
            told.note(len(draft), num_accepted)
        elif draft.reason:
            undrafted = self.counts.undrafted
            undrafted[draft.reason] = undrafted.get(draft.reason, 0) + 1
        if self._is_timed:
            told.timed_tokens += num_accepted + 1
            told.draft_ms += self.counts.draft_ms - self._told_draft_ms
            told.verify_ms += took_ms
        self._told_draft_ms = self.counts.draft_ms

    def _note_logprobs(self, logits: torch.Tensor, draft: Draft, verdict: Verdict) -> None:
        assert self.num_logprobs is not None
        token_ids = [*(draft.token_ids[node] for node in verdict.accepted), verdict.next_id]
        rows = [0, *(node + 1 for node in verdict.accepted)]
        for row, token_id in zip(rows, token_ids, strict=True):
            logprobs = logits[row].log_softmax(-1)
            best = logprobs.topk(self.num_logprobs)
            top = [(int(at), float(value)) for value, at in zip(*best, strict=True)]
            self._logprobs.append(TokenLogprobs(token_id, float(logprobs[token_id]), tuple(top)))

    def _behind(self, draft: Draft, path: Sequence[int], written_ids: tuple[int, ...]) -> Behind:
        drafted_ids = [draft.token_ids[node] for node in path]
        forced = self._forced
        for token_id in drafted_ids:
            forced = forced.after(token_id)
        return Behind(self.prompt.token_ids, (*written_ids, *drafted_ids), forced.allowed())

    def _commit(self, num_before: int) -> str:
        """Take over the new tokens up to where the completion ends; return their text."""
        text = ""
        for at in range(num_before, len(self._token_ids)):
            token_id = self._token_ids[at]
            if self.models.ends_text(token_id):
                self._end(at, StopReason.END_TOKEN)
                break
            if token_id in self.limits.stop_ids and not self._forced.remaining:
                self._end(at, StopReason.STOP_TOKEN)
                break
            num_bytes = len(self.models.tokenizer.token_bytes(token_id))
            num_forced = len(self._forced.remaining)
            # A token without bytes counts too, or a model that writes nothing else never ends.
            self._num_written += num_bytes > num_forced or num_forced == 0
            self._forced = self._forced.after(token_id)
            text += self._new_text(token_id)
            if self._stops.has_met:
                self._end(at + 1, StopReason.STOP_STRING)
                break
            if self._num_written == self.limits.max_tokens:
                self._end(at + 1, StopReason.LENGTH)
                break
        self.counts.emitted = len(self._token_ids) - len(self.prompt.token_ids)
        return text

    def _end(self, length: int, reason: StopReason) -> None:
        del self._token_ids[length:]
        self.stop_reason = reason

    def _new_text(self, token_id: int) -> str:
        """Return a token's text, without the part that stands before the cursor already."""
        new_bytes = self.models.tokenizer.token_bytes(token_id)
        hidden = min(self._num_hidden_bytes, len(new_bytes))
        self._num_hidden_bytes -= hidden
        return self._stops.feed(self._decoder.decode(new_bytes[hidden:]))

    def _ms_since(self, started: float) -> float:
        return (self.clock() - started) * 1000
