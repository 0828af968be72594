"""Who runs next, and that each request gets exactly one answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.decoding.session import WHOLE, Counts, Drafting, Share
from specengine.errors import EngineBusy, InternalFault, PromptTooLong, RequestError
from specengine.models.target import Rows
from specengine.protocol import CancelCause, Complete, SamplingOptions, StopReason, TokenLogprobs
from specengine.scheduler import Job, Key, Outcome, Scheduler


@dataclass
class FakeSession:
    """Adds one letter a pass; ends after as many as the request allows."""

    message: Complete
    journal: list[int]
    stop_reason: StopReason | None = None
    counts: Counts = field(default_factory=Counts)
    num_closed: int = 0
    written: int = 0
    drafter_name: str = "fake"
    logprobs: tuple[TokenLogprobs, ...] = ()
    alternatives: tuple[str, ...] = ()
    num_healed_bytes: int = 0
    rows: int = 4
    shares: list[Share] = field(default_factory=list[Share])

    @property
    def written_ids(self) -> tuple[int, ...]:
        return tuple(range(self.written))

    @property
    def most_rows(self) -> int:
        return self.rows

    def prepare(self, share: Share = WHOLE) -> Rows | None:
        assert self.num_closed == 0
        self.shares.append(share)
        if self.message.sampling.seed == 14:
            raise ZeroDivisionError("a bug")
        return Rows([self.message.request] * min(self.rows, share.rows), NO_CACHE, 1)

    def take(self, logits: torch.Tensor) -> str:
        assert self.num_closed == 0
        assert int(logits[0, 0]) == self.message.request
        self.journal.append(self.message.request)
        if self.message.sampling.seed == 13:
            raise ZeroDivisionError("a bug")
        self.written += 1
        if self.written == self.message.max_tokens:
            self.stop_reason = StopReason.LENGTH
        return "x"

    def finish_text(self) -> str:
        return "."

    def close(self) -> None:
        self.num_closed += 1


NO_CACHE = KVCache(KVShape(1, 1, 2, torch.float32, torch.device("cpu")), 1)


@dataclass
class FakeTarget:
    """Answers each part with its first token."""

    batch_rows: int
    passes: list[list[int]]
    poison: int = -1
    """A request with which every pass fails."""

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        requests = [part.token_ids[0] for part in parts]
        self.passes.append(requests)
        if self.poison in requests:
            raise ZeroDivisionError("a bug")
        return [torch.full((1, 1), float(request)) for request in requests]


class Desk:
    """A scheduler with fake sessions, and everything it said."""

    def __init__(self, *, max_running: int = 2, max_waiting: int = 4, batch_rows: int = 0) -> None:
        self.journal: list[int] = []
        """Requests in the order of their passes."""
        self.sessions: list[FakeSession] = []
        self.done: dict[int, Outcome] = {}
        self.failed: dict[int, RequestError] = {}
        self.texts: dict[int, str] = {}
        self.now = 0.0
        self.target = FakeTarget(batch_rows, [])
        self.scheduler = Scheduler(
            self._start,
            max_running=max_running,
            max_waiting=max_waiting,
            target=lambda: self.target,
            clock=lambda: self.now,
        )

    def _start(self, message: Complete) -> FakeSession:
        if message.prefix == "too long":
            raise PromptTooLong("9 tokens; allowed are 8.")
        if message.prefix == "bug":
            raise ZeroDivisionError("a bug")
        self.sessions.append(FakeSession(message, self.journal))
        return self.sessions[-1]

    def add(
        self,
        request: int,
        document: str | None = None,
        *,
        client: int = 1,
        max_tokens: int = 3,
        prefix: str = "",
        seed: int = 0,
        is_ahead: bool = False,
    ) -> None:
        message = Complete(
            request=request,
            document=document or f"doc{request}",
            prefix=prefix,
            max_tokens=max_tokens,
            sampling=SamplingOptions(seed=seed),
            is_ahead=is_ahead,
        )

        def on_text(text: str) -> None:
            self.texts[request] = self.texts.get(request, "") + text

        def on_done(outcome: Outcome) -> None:
            assert request not in self.answered
            self.done[request] = outcome

        def on_failed(error: RequestError) -> None:
            assert request not in self.answered
            self.failed[request] = error

        key = Key(client, request)
        self.scheduler.add(Job(key, message, on_text, on_done, on_failed, self.now))

    @property
    def answered(self) -> set[int]:
        return {*self.done, *self.failed}

    def run(self) -> None:
        while self.scheduler.has_work:
            self.scheduler.run_once()
            self.now += 1.0

    def check_all_closed(self) -> None:
        assert [session.num_closed for session in self.sessions] == [1] * len(self.sessions)


def test_a_request_runs_to_its_end() -> None:
    desk = Desk()
    desk.add(1)
    desk.run()
    outcome = desk.done[1]
    assert (outcome.text, outcome.stop_reason, outcome.cause) == ("xxx.", StopReason.LENGTH, None)
    assert outcome.token_ids == (0, 1, 2)
    assert desk.texts[1] == outcome.text
    desk.check_all_closed()


def test_a_request_that_looks_ahead_runs_when_nothing_else_does() -> None:
    desk = Desk(max_running=2)
    desk.add(1, max_tokens=2)
    desk.add(2, is_ahead=True, max_tokens=2)
    desk.run()
    assert desk.journal == [1, 1, 2, 2]
    assert desk.done[2].stop_reason is StopReason.LENGTH


def test_a_request_that_looks_ahead_delays_nobody_who_waits() -> None:
    desk = Desk(max_running=1)
    desk.add(1, max_tokens=2)
    desk.scheduler.run_once()
    desk.add(2, max_tokens=1)
    desk.add(3, is_ahead=True, max_tokens=1)
    desk.run()
    assert desk.journal == [1, 1, 2, 3]


def test_any_other_request_ends_those_that_look_ahead() -> None:
    """Whoever's they are: the pass that it would share could be a longer one."""
    desk = Desk(max_running=2)
    desk.add(1, is_ahead=True, max_tokens=9, client=1)
    desk.scheduler.run_once()
    desk.add(2, is_ahead=True, client=2)
    assert not desk.answered
    desk.add(3, client=3)
    assert [desk.done[one].cause for one in (1, 2)] == [CancelCause.SUPERSEDED] * 2
    desk.run()
    assert desk.journal == [1, 3, 3, 3]
    desk.check_all_closed()


def test_a_newer_request_of_the_document_supersedes_running_and_waiting_ones() -> None:
    desk = Desk(max_running=1)
    desk.add(1, "a", max_tokens=9)
    desk.scheduler.run_once()
    desk.add(2, "a")
    desk.add(3, "a")
    for request in (1, 2):
        assert desk.done[request].stop_reason is StopReason.CANCELLED
        assert desk.done[request].cause is CancelCause.SUPERSEDED
    desk.run()
    assert desk.done[3].stop_reason is StopReason.LENGTH
    assert desk.journal == [1, 3, 3, 3]


def test_another_client_with_the_same_document_is_left_alone() -> None:
    desk = Desk()
    desk.add(1, "a", client=1)
    desk.add(2, "a", client=2)
    desk.run()
    assert {outcome.stop_reason for outcome in desk.done.values()} == {StopReason.LENGTH}


def test_the_newest_starts_first_and_running_ones_take_turns() -> None:
    desk = Desk(max_running=2)
    desk.add(1)
    desk.scheduler.run_once()
    desk.add(2)
    desk.run()
    assert desk.journal == [1, 2, 1, 2, 1, 2]


def test_of_those_that_wait_the_newest_comes_first() -> None:
    desk = Desk(max_running=1)
    for request in (1, 2, 3):
        desk.add(request, max_tokens=1)
    desk.run()
    assert desk.journal == [3, 2, 1]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_cancelled_request_makes_no_further_pass(is_running: bool) -> None:
    desk = Desk()
    desk.add(1)
    if is_running:
        desk.scheduler.run_once()
    num_passes = len(desk.journal)
    desk.scheduler.cancel(Key(1, 1), CancelCause.CLIENT)
    desk.run()
    assert len(desk.journal) == num_passes
    assert desk.done[1].cause is CancelCause.CLIENT
    assert desk.done[1].text == "x" * num_passes
    desk.check_all_closed()


def test_a_cancel_for_an_ended_or_foreign_request_does_nothing() -> None:
    desk = Desk()
    desk.add(1)
    desk.scheduler.cancel(Key(2, 1), CancelCause.CLIENT)
    desk.run()
    desk.scheduler.cancel(Key(1, 1), CancelCause.CLIENT)
    desk.scheduler.stop(Key(1, 1))
    assert desk.done[1].stop_reason is StopReason.LENGTH


def test_a_stopped_request_keeps_its_text() -> None:
    desk = Desk()
    desk.add(1)
    desk.scheduler.run_once()
    desk.scheduler.stop(Key(1, 1))
    assert desk.done[1].stop_reason is StopReason.STOPPED
    assert desk.done[1].text == "x."
    desk.check_all_closed()


def test_a_client_that_leaves_takes_its_requests_along() -> None:
    desk = Desk()
    desk.add(1, client=1)
    desk.add(2, client=2)
    desk.scheduler.run_once()
    desk.scheduler.cancel_client(2, CancelCause.DISCONNECT)
    desk.run()
    assert desk.done[2].cause is CancelCause.DISCONNECT
    assert desk.done[1].stop_reason is StopReason.LENGTH


def test_one_more_than_may_wait_is_refused_and_the_others_are_served() -> None:
    desk = Desk(max_running=1, max_waiting=2)
    for request in (1, 2, 3):
        desk.add(request)
    assert isinstance(desk.failed[3], EngineBusy)
    desk.run()
    assert sorted(desk.done) == [1, 2]


def test_a_superseding_request_takes_the_place_of_the_old_one_in_a_full_queue() -> None:
    desk = Desk(max_running=1, max_waiting=1)
    desk.add(1, "a")
    desk.add(2, "a")
    desk.run()
    assert desk.done[2].stop_reason is StopReason.LENGTH


def test_a_request_that_cannot_start_fails_alone() -> None:
    desk = Desk()
    desk.add(1, prefix="too long")
    desk.add(2)
    desk.run()
    assert isinstance(desk.failed[1], PromptTooLong)
    assert desk.done[2].stop_reason is StopReason.LENGTH


@pytest.mark.parametrize(("prefix", "seed"), [("bug", 0), ("", 13), ("", 14)])
def test_a_bug_ends_its_request_only(
    prefix: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.add(1, prefix=prefix, seed=seed)
    desk.add(2)
    desk.run()
    assert isinstance(desk.failed[1], InternalFault)
    assert desk.done[2].stop_reason is StopReason.LENGTH
    assert "ZeroDivisionError at " in caplog.text
    assert "division by zero" not in caplog.text, "a message may quote source text"
    desk.check_all_closed()


def test_times_count_from_receipt() -> None:
    desk = Desk(max_running=1)
    desk.add(1, max_tokens=2)
    desk.scheduler.run_once()
    desk.now = 1.0
    desk.add(2, max_tokens=1)
    desk.run()
    assert desk.done[2].queue_ms == 1000
    assert desk.done[2].total_ms == 1000


def test_cancel_all_and_fail_all_leave_nothing() -> None:
    for end in (
        lambda desk: desk.scheduler.cancel_all(CancelCause.SHUTDOWN),
        lambda desk: desk.scheduler.fail_all(EngineBusy("no")),
    ):
        desk = Desk(max_running=1)
        for request in (1, 2):
            desk.add(request)
        desk.scheduler.run_once()
        end(desk)
        assert desk.answered == {1, 2}
        assert not desk.scheduler.has_work
        desk.check_all_closed()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_request_has_one_answer(seed: int) -> None:
    dice = random.Random(seed)
    desk = Desk(max_running=2, max_waiting=3)
    for request in range(1, 60):
        desk.add(request, dice.choice("abc"), client=dice.randint(1, 2), seed=dice.randint(0, 20))
        for _ in range(dice.randint(0, 4)):
            desk.scheduler.run_once()
        key = Key(dice.randint(1, 2), dice.randint(1, request))
        dice.choice(
            [
                lambda key=key: desk.scheduler.stop(key),
                lambda key=key: desk.scheduler.cancel(key, CancelCause.CLIENT),
                lambda key=key: desk.scheduler.cancel_client(key.client, CancelCause.DISCONNECT),
                lambda: None,
            ]
        )()
    desk.run()
    assert desk.answered == set(range(1, 60))
    desk.check_all_closed()


def test_a_listener_with_a_bug_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    def fail(what: object) -> None:
        raise ZeroDivisionError("a bug in a listener")

    message = Complete(request=9, document="z", prefix="", max_tokens=2)
    desk.scheduler.add(Job(Key(1, 9), message, fail, fail, fail, 0.0))
    desk.add(1)
    desk.run()
    assert desk.done[1].stop_reason is StopReason.LENGTH
    assert "could not be delivered" in caplog.text
    desk.check_all_closed()


def test_requests_share_passes() -> None:
    desk = Desk(max_running=4, batch_rows=8)
    for request in (1, 2, 3):
        desk.add(request, max_tokens=2)
    desk.run()
    assert desk.target.passes == [[3, 2, 1], [3, 2, 1]]
    assert {outcome.text for outcome in desk.done.values()} == {"xx."}
    desk.check_all_closed()


def test_more_than_there_are_rows_take_turns() -> None:
    desk = Desk(max_running=4, batch_rows=2)
    for request in (1, 2, 3):
        desk.add(request, max_tokens=2)
    desk.run()
    assert desk.target.passes == [[3, 2], [1, 3], [2, 1]]


def test_who_wants_most_gets_what_the_others_leave() -> None:
    desk = Desk(max_running=3, batch_rows=32)
    for request in (1, 2, 3):
        desk.add(request, max_tokens=2)
    desk.scheduler.run_once()
    reader, *others = desk.sessions
    reader.rows = 32
    desk.scheduler.run_once()
    assert reader.shares[-1] == Share(32 - 4 - 4, 3)
    assert [session.shares[-1] for session in others] == [Share(32 // 3, 3), Share(28 // 2, 3)]


def test_one_request_has_the_whole_pass() -> None:
    desk = Desk(max_running=3, batch_rows=8)
    desk.add(1)
    desk.run()
    assert set(desk.sessions[0].shares) == {WHOLE}


def test_a_target_that_takes_one_sequence_gets_one() -> None:
    desk = Desk(max_running=4, batch_rows=0)
    for request in (1, 2):
        desk.add(request, max_tokens=2)
    desk.run()
    assert desk.target.passes == [[2], [1], [2], [1]]


def test_a_request_leaves_between_passes_and_another_takes_its_place() -> None:
    desk = Desk(max_running=3, batch_rows=8)
    for request in (1, 2, 3):
        desk.add(request, max_tokens=5)
    desk.scheduler.run_once()
    desk.scheduler.cancel(Key(1, 3), CancelCause.CLIENT)
    desk.scheduler.run_once()
    assert desk.target.passes == [[3, 2, 1], [2, 1]]
    assert 3 in desk.done


def test_a_request_that_spoils_a_shared_pass_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(max_running=4, batch_rows=8)
    desk.target.poison = 2
    for request in (1, 2, 3):
        desk.add(request, max_tokens=2)
    desk.run()
    assert set(desk.failed) == {2}
    assert {request: outcome.text for request, outcome in desk.done.items()} == {1: "xx.", 3: "xx."}
    desk.check_all_closed()


def test_an_outcome_tells_who_drafted_and_why_nobody_did() -> None:
    by_drafter = {"": Drafting(), "suffix": Drafting(drafts=7), "eagle": Drafting(drafts=2)}
    counts = Counts(by_drafter=by_drafter, undrafted={"no idea": 3})
    outcome = Outcome("", (), StopReason.LENGTH, None, "auto", counts, 0.0, 0.0)
    assert outcome.drafting == "suffix 7, eagle 2, no idea 3"
    assert "(suffix 7, eagle 2, no idea 3)" in outcome.line
