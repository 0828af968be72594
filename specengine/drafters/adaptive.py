"""Several ways of drafting, each used as far as it pays: the drafter ``auto``.

Before each pass the value of every possible draft is its expected accepted tokens, less what it
adds to the pass and what drafting costs, both paid at the rate at which decoding makes tokens. The
best one is proposed, at its best length; if none is worth more than nothing, none is. So decoding
is not slower than without drafts for long, whatever the text, the model and the machine.

It knows no drafter by name. Drafters that cost next to nothing are asked first and judged by the
chances that they tell; of others the acceptance at each place of their drafts is tracked. One that
does not pay is tried again, less and less often.

Source: Leviathan et al. 2023, arXiv 2211.17192, section 3.5, for the best length; Oliaro et al.
2024, arXiv 2411.04975, for a suffix draft where its score beats a model's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Final

import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.drafters.base import (
    Drafter,
    DrafterSource,
    Observer,
    Remembers,
    SharesCache,
    layers_of,
    show,
)
from specengine.drafters.pass_times import PassTimes
from specengine.sampling import GREEDY, Sampling
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)

FADE: Final = 0.98
"""What each draft leaves of the weight of those before it."""

FIRST_BELIEF: Final = 0.5
"""Chance of a token of a drafter that nobody has tried."""

BELIEF_WEIGHT: Final = 4.0
"""Verdicts that this weighs as much as."""

CHEAP: Final = 0.2
"""A drafter that takes less than this share of a pass is asked before every pass."""

IDLE_AFTER: Final = 16
"""Passes in a row without a draft worth asking for, after which a cheap drafter"""

IDLE_TURNS: Final = 4
"""is asked before every fourth pass only,"""

IDLE_SHARE: Final = 0.02
"""or so seldom that it takes no more than this share of the time."""

PROBE_TOKENS: Final = 2
"""Length of a draft that only shows whether a drafter pays by now."""

PROBE_VALUE: Final = float("inf")
"""What is learnt is worth more than any draft, if seldom."""

PROBE_FADE: Final = 0.5
"""What a probe leaves of the weight of what was known."""

FIRST_PAUSE: Final = 32
"""Passes until a drafter that does not pay is tried again; twice as many each time."""

LONGEST_PAUSE: Final = 2048

MOST_LANGUAGES: Final = 16
"""That are told apart; a client may name what it likes."""

OUTLIER: Final = 4.0
OUTLIER_MS: Final = 1.0
"""What asking a drafter took counts as so many times the mean at most, and a millisecond."""

RATE_TOKENS: Final = 12.0
"""A request's rate of decoding is that of about so many tokens."""

NO_IDEA: Final = "no idea"
NOT_WORTH_IT: Final = "not worth it"
FAILED: Final = "failed"
"""Why a drafter has not proposed."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class PartState:
    """How one drafter does, for metrics."""

    name: str
    acceptance: float
    """Of its drafted tokens, the recent ones counting most."""
    draft_ms: float
    """What asking it costs."""
    drafts: int
    drafted: int
    accepted: int
    reason: str
    """Why it did not propose when it was its turn the last time; empty if it did."""
    language: str = ""
    """Of the texts that this is of; empty where nobody has named it."""


@dataclass
class Part:
    """One drafter of the composite, over all requests. Recent drafts count most."""

    source: DrafterSource
    tried: list[float] = field(default_factory=lambda: [BELIEF_WEIGHT])
    """By place: drafted tokens whose forerunners were all accepted,"""
    right: list[float] = field(default_factory=lambda: [BELIEF_WEIGHT * FIRST_BELIEF])
    """and those of them that were accepted. They begin with what is believed."""
    num_asked: int = 0
    asked: float = 0.0
    """How often it was asked of late; with it"""
    ms: float = 0.0
    """the time that this took,"""
    tokens: float = 0.0
    """drafted tokens,"""
    hits: float = 0.0
    """accepted ones,"""
    hopes: float = 0.0
    """and how many of them it said would be;"""
    noted: float = 0.0
    """drafts of which that is known."""
    makes_trees: bool = False
    pause: int = FIRST_PAUSE
    passes_left: int = FIRST_PAUSE
    """Until it is tried again, if it does not pay."""
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    reason: str = NO_IDEA

    def believed(self) -> Part:
        """Return the same drafter with what is believed of it, and nothing that it has done."""
        return replace(
            self, tried=[*self.tried], right=[*self.right], drafts=0, drafted=0, accepted=0
        )

    @property
    def mean_ms(self) -> float:
        """Return what asking it takes."""
        return self.ms / self.asked if self.asked else 0.0

    @property
    def is_new(self) -> bool:
        """Whether it was never asked."""
        return not self.asked

    def chances(self, num_tokens: int) -> list[float]:
        """Return how likely each of so many tokens is accepted, with all before it."""
        chances: list[float] = []
        chance = belief = self.right[0] / self.tried[0]
        for at in range(num_tokens):
            if 0 < at < len(self.tried):
                # A place that was seldom tried is believed to be like the one before it.
                weight = self.tried[at] + BELIEF_WEIGHT
                belief = (self.right[at] + BELIEF_WEIGHT * belief) / weight
            chance = chance * belief if at else belief
            chances.append(chance)
        return chances

    def best_length(self, costs: Sequence[float], price: float) -> tuple[int, float]:
        """Return how long a draft should be, 0 for none, and its expected worth.

        ``costs`` are those of verifying 0, 1, … tokens, ``price`` that of a millisecond.
        """
        num_tokens = len(costs) - 1
        if self.makes_trees and self.noted > BELIEF_WEIGHT:
            # A tree's tokens do not stand one behind the other: it is taken as a whole.
            mean_len = min(round(self.tokens / self.noted), num_tokens)
            worth = self.hits / self.noted - costs[mean_len] - price * self.mean_ms
            return (num_tokens, worth) if worth > 0 else (0, 0.0)
        token_cost = price * self.ms / max(self.tokens, self.asked, 1.0)
        best, value, expected = 0, 0.0, 0.0
        for length, chance in enumerate(self.chances(num_tokens), 1):
            expected += chance
            if (worth := expected - costs[length] - length * token_cost) > value:
                best, value = length, worth
        return best, value

    def told(self, draft: Draft) -> Sequence[float]:
        """Return the chances of a draft's tokens: what it says, as far as that has come true."""
        if not draft.chances or any(law is not None for law in draft.laws):
            # What was drawn must not decide whether it is kept, or its law would be another.
            return self._by_depth(draft)
        trust = (self.hits + BELIEF_WEIGHT) / (self.hopes + BELIEF_WEIGHT)
        return [min(trust, 1.2) * chance for chance in draft.chances]

    def _by_depth(self, draft: Draft) -> list[float]:
        """Return the chances of tokens by how deep they stand; siblings share that of the first."""
        depths = [len(draft.path(node)) for node in range(len(draft))]
        chances = self.chances(max(depths))
        return [
            chances[depth - 1] if depth not in depths[:node] else 0.0
            for node, depth in enumerate(depths)
        ]

    def note_asked(self, took_ms: float) -> None:
        """Take in what asking it took; one time that was many times as long says little."""
        self.num_asked += 1
        if self.num_asked > 1:
            took_ms = min(took_ms, OUTLIER * self.mean_ms + OUTLIER_MS)
        if self.num_asked == 2:
            # The first one may have set things up, and is no longer believed.
            self.asked = self.ms = 0.0
        self.asked = self.asked * FADE + 1
        self.ms = self.ms * FADE + took_ms

    def note(self, draft: Draft, num_accepted: int) -> None:
        """Take in what a draft came to; an empty one, that there was none."""
        depth = 1
        if len(draft):
            depth = max(len(draft.path(node)) for node in range(len(draft)))
            self.drafts += 1
            self.drafted += len(draft)
            self.accepted += num_accepted
            self.makes_trees = self.makes_trees or not draft.is_chain
        self.noted = self.noted * FADE + 1
        self.tokens = self.tokens * FADE + len(draft)
        self.hits = self.hits * FADE + num_accepted
        self.hopes = self.hopes * FADE + sum(draft.chances)
        self.tried += [0.0] * (depth - len(self.tried))
        self.right += [0.0] * (depth - len(self.right))
        for at in range(min(num_accepted + 1, depth)):
            self.tried[at] = self.tried[at] * FADE + 1
            self.right[at] = self.right[at] * FADE + (at < num_accepted)

    def is_probe_due(self) -> bool:
        """Count a pass without it; return whether it is time to try it again."""
        self.passes_left -= 1
        if self.passes_left > 0:
            return False
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        self.passes_left = self.pause
        self.tried = [PROBE_FADE * each for each in self.tried]
        self.right = [PROBE_FADE * each for each in self.right]
        return True

    def pays(self) -> None:
        """Take in that it pays."""
        self.pause = self.passes_left = FIRST_PAUSE

    def state(self, language: str) -> PartState:
        """Return how it does."""
        return PartState(
            name=self.source.name,
            acceptance=self.hits / self.tokens if self.tokens else 0.0,
            draft_ms=self.mean_ms,
            drafts=self.drafts,
            drafted=self.drafted,
            accepted=self.accepted,
            reason=self.reason,
            language=language,
        )


class AdaptiveDrafts:
    """Source over other sources, those that cost least first."""

    def __init__(
        self,
        sources: Sequence[DrafterSource],
        times: PassTimes,
        name: str = "auto",
        clock: Clock = perf_counter,
    ) -> None:
        self.name = name
        self._parts = [Part(source) for source in sources]
        self._times = times
        self._clock = clock
        self._languages: dict[str, AdaptiveDrafts] = {"": self}
        self._latest: AdaptiveDrafts = self

    @property
    def sources(self) -> tuple[DrafterSource, ...]:
        """Return what it is made of."""
        return tuple(part.source for part in self._parts)

    def of_language(self, language: str) -> AdaptiveDrafts:
        """Return the same drafters, with what is learnt of them from texts in one language.

        A new language begins with what was believed in the one before.
        """
        if language not in self._languages:
            if len(self._languages) >= MOST_LANGUAGES:
                return self
            fresh = AdaptiveDrafts((), self._times, self.name, self._clock)
            fresh._parts = [part.believed() for part in self._latest._parts]
            self._languages[language] = fresh
        self._latest = self._languages[language]
        return self._latest

    def snapshot(self) -> tuple[PartState, ...]:
        """Return how each drafter does in each language that was asked for; values only."""
        languages = list(self._languages.items())
        return tuple(part.state(name) for name, each in languages for part in each._parts)

    def learn(self, token_ids: Sequence[int]) -> None:
        """Let those that draft from what they have seen take in a text."""
        for source in self.sources:
            if isinstance(source, Remembers):
                source.learn(token_ids)

    def forget(self) -> None:
        """Let them forget all texts; what was learnt of chances and costs stays."""
        for source in self.sources:
            if isinstance(source, Remembers):
                source.forget()

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> AdaptiveDrafter:
        """Return a drafter over one drafter of each source."""
        with contextlib.ExitStack() as started:
            members: list[Member] = []
            for part in self._parts:
                drafter = part.source.start(prompt_ids, sampling)
                started.callback(drafter.close)
                members.append(Member(part, drafter))
            layers = layers_of([member.drafter for member in members])
            kind = ObservingDrafter if layers else AdaptiveDrafter
            return kind(members, self._times, self._clock, started.pop_all())


@dataclass
class Member:
    """A drafter of one request."""

    part: Part
    drafter: Drafter
    has_failed: bool = False
    num_idle: int = 0
    """Passes in a row for which it had nothing worth asking it for."""

    def rests(self, plain_ms: float) -> bool:
        """Whether it is not worth the time to ask it before this pass."""
        turns = max(IDLE_TURNS, round(self.part.mean_ms / (IDLE_SHARE * plain_ms)))
        return self.num_idle >= IDLE_AFTER and self.num_idle % turns > 0

    def fail(self) -> None:
        """Log the exception that is being handled; the request goes on without it."""
        name = self.part.source.name
        log_trouble(logger, f"drafter {name} failed; this request goes on without it")
        self.has_failed = True


@dataclass(frozen=True)
class Choice:
    """What could be proposed."""

    value: float
    """Expected accepted tokens, less what they cost."""
    member: Member | None = None
    """Who proposes it."""
    draft: Draft = NOTHING
    """Empty where it must be made first,"""
    num_tokens: int = 0
    """of this length."""


@dataclass
class Plan:
    """A draft that is being made, which may take several calls."""

    member: Member
    num_tokens: int
    costs: Sequence[float]
    instead: Choice
    """What is proposed if nothing comes of it."""
    is_probe: bool = False
    """Whether it is verified in any case, to learn from it."""
    ms: float = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether its drafter was called already."""
        return self.ms > 0


class AdaptiveDrafter:
    """The drafters of one request."""

    def __init__(
        self,
        members: Sequence[Member],
        times: PassTimes,
        clock: Clock,
        started: contextlib.ExitStack,
    ) -> None:
        self._members = members
        self._times = times
        self._clock = clock
        self._started = started
        self._plan: Plan | None = None
        self._num_requests = 1
        """That share the coming pass; each row delays them all."""
        self._speed = 1.0
        """Tokens in the time of a pass of one row, of late."""
        self._context = 0
        self._draft_ms = 0.0
        """What drafting has taken for the coming pass."""
        self._by: Member | None = None
        """Who has made its draft."""

    def among(self, num_requests: int) -> None:
        """Take in how many requests share the coming pass."""
        self._num_requests = num_requests

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        """Return the draft that is worth most; wait for one that is not ready."""
        if self._plan is not None:
            return self._go_on(self._plan, token_ids)
        self._context, self._draft_ms, self._by = len(token_ids), 0.0, None
        best = self._best_choice(token_ids, max_tokens)
        if isinstance(best, Plan):
            self._plan = best
            return None if best.has_begun else self._go_on(best, token_ids)
        return self._take(best)

    def verified(self, draft: Draft, num_accepted: int, ms: float | None) -> None:
        """Learn what the last draft came to, in a pass that took so long."""
        if len(draft) and self._by is not None:
            self._by.part.note(draft, num_accepted)
        if ms is None:
            return
        self._times.note(1 + len(draft), self._context, ms)
        plain_ms = self._times.ms(1, self._context)
        took_ms = self._times.ms(1 + len(draft), self._context) + self._draft_ms
        speed = (num_accepted + 1) * plain_ms / took_ms
        share = min((num_accepted + 1) / RATE_TOKENS, 1.0)
        # Nobody is forced to draft: no rate is below that of passes of one row.
        self._speed = max(self._speed + (speed - self._speed) * share, 1.0)

    def share(self, cache: KVCache) -> None:
        """Hand the request's cache to those that run on it."""
        for member in self._members:
            if isinstance(member.drafter, SharesCache):
                try:
                    member.drafter.share(cache)
                except Exception:
                    member.fail()

    def close(self) -> None:
        """Close all of them, also when one of them fails to."""
        self._started.close()

    def _best_choice(self, token_ids: Sequence[int], max_tokens: int) -> Choice | Plan:
        """Return the best draft there is, or the plan of one that is better."""
        plain_ms = self._times.ms(self._num_requests, self._context)
        price = self._num_requests * self._speed / plain_ms
        extra_ms = self._times.extra_ms(max_tokens, self._context, self._num_requests)
        costs = [price * ms for ms in extra_ms]
        best = planned = Choice(0.0)
        for member in self._members:
            part = member.part
            if member.has_failed:
                part.reason = FAILED
            elif part.is_new:
                # Nothing is known of what it costs: a short draft will show it.
                if max_tokens:
                    return Plan(member, min(PROBE_TOKENS, max_tokens), costs, best, is_probe=True)
            elif part.mean_ms >= CHEAP * plain_ms:
                planned = _better(planned, self._weighed(member, max_tokens, costs, price))
            elif member.rests(plain_ms):
                member.num_idle += 1
            else:
                plan = Plan(member, max_tokens, costs, best)
                if (draft := self._call(plan, token_ids)) is None:
                    return plan
                choice = self._cut_to_worth(member, draft, costs)
                is_worth_asking = choice.value > price * part.mean_ms
                member.num_idle = 0 if is_worth_asking else member.num_idle + 1
                best = _better(best, choice)
        if planned.member is not None and planned.value > best.value:
            is_probe = planned.value == PROBE_VALUE
            return Plan(planned.member, planned.num_tokens, costs, best, is_probe)
        return best

    def _weighed(
        self, member: Member, max_tokens: int, costs: Sequence[float], price: float
    ) -> Choice:
        """Return what asking a drafter that costs time is worth, at the best length."""
        part = member.part
        best, value = part.best_length(costs, price)
        if best:
            part.pays()
            return Choice(value, member, num_tokens=best)
        part.reason = NOT_WORTH_IT
        if max_tokens and part.is_probe_due():
            return Choice(PROBE_VALUE, member, num_tokens=min(PROBE_TOKENS, max_tokens))
        return Choice(0.0)

    def _cut_to_worth(self, member: Member, draft: Draft, costs: Sequence[float]) -> Choice:
        part = member.part
        if not len(draft):
            part.reason = NO_IDEA
            return Choice(0.0)
        if any(law is not None for law in draft.laws):
            # What was drawn must be proposed. To cut it, or to prefer another draft, because of
            # what was drawn, an end say, would change the law of the text.
            part.reason = ""
            return Choice(PROBE_VALUE, member, draft)
        best, value, expected = 0, 0.0, 0.0
        for at, chance in enumerate(part.told(draft)[: len(costs) - 1], 1):
            expected += chance
            if expected - costs[at] > value:
                best, value = at, expected - costs[at]
        part.reason = "" if best else NOT_WORTH_IT
        return Choice(value, member, draft.first(best))

    def _go_on(self, plan: Plan, token_ids: Sequence[int]) -> Draft | None:
        draft = self._call(plan, token_ids)
        if draft is None:
            return None
        self._plan = None
        if not len(draft):
            plan.member.part.note(draft, 0)
        if plan.is_probe and len(draft):
            return self._take(Choice(0.0, plan.member, draft))
        choice = self._cut_to_worth(plan.member, draft, plan.costs)
        return self._take(choice if len(choice.draft) else plan.instead)

    def _call(self, plan: Plan, token_ids: Sequence[int]) -> Draft | None:
        """Ask a drafter; one that fails is passed over for the rest of the request."""
        started = self._clock()
        try:
            draft = plan.member.drafter.propose(token_ids, plan.num_tokens)
        except Exception:
            plan.member.fail()
            draft = NOTHING
        took_ms = (self._clock() - started) * 1000
        plan.ms += took_ms
        self._draft_ms += took_ms
        if draft is not None:
            plan.member.part.note_asked(plan.ms)
        return draft

    def _take(self, choice: Choice) -> Draft:
        self._by = choice.member
        if len(choice.draft):
            return choice.draft
        reasons = {member.part.reason for member in self._members}
        return replace(NOTHING, reason=NOT_WORTH_IT if NOT_WORTH_IT in reasons else NO_IDEA)


class ObservingDrafter(AdaptiveDrafter):
    """The drafters of one request, some of which look at the target's residual streams."""

    def __init__(
        self,
        members: Sequence[Member],
        times: PassTimes,
        clock: Clock,
        started: contextlib.ExitStack,
    ) -> None:
        super().__init__(members, times, clock, started)
        self._observing = [
            (member, member.drafter) for member in members if isinstance(member.drafter, Observer)
        ]
        self.layers = layers_of([member.drafter for member in members])
        """Those that any of them wants to see."""

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Show each of them its layers."""
        for member, observer in self._observing:
            if not member.has_failed:
                try:
                    show(observer, streams, start)
                except Exception:
                    member.fail()


def _better(one: Choice, other: Choice) -> Choice:
    return other if other.value > one.value else one
