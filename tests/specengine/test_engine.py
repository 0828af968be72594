"""The engine's thread: loading, waiting requests, cancels within one pass."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from specengine import engine as engine_module
from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.drafters.base import DrafterSource
from specengine.engine import Engine, Status
from specengine.errors import (
    EngineFailed,
    ModelUnknown,
    RequestInvalid,
)
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.target import Rows, Target, Tree
from specengine.models.targets import Precision
from specengine.protocol import CancelCause, Complete, EngineState, SamplingOptions, StopReason
from specengine.record import Record
from specengine.sampling import GREEDY, Sampling
from specengine.scheduler import Job, Key, Outcome
from specengine.settings import EngineSettings
from specengine.watch import MAX_FAILURES
from tests.specengine.tiny import load_decoder, save_tiny_model, tiny_architecture

WAIT_S = 20.0
LONG_PREFIX = "def f(self):\n" + "    self = (self == self)\n" * 60


class Client:
    """Sends requests to an engine and waits for answers."""

    def __init__(self, engine: Engine, number: int = 1) -> None:
        self.engine = engine
        self.number = number
        self._requests = 0

    def send(self, prefix: str, document: str = "a", **fields: Any) -> Future[Outcome]:
        """Queue a request; its number is how many came before it, plus one."""
        self._requests += 1
        message = Complete(request=self._requests, document=document, prefix=prefix)
        message = msgspec.structs.replace(message, **fields)
        answer: Future[Outcome] = Future()
        self.engine.submit(
            Job(
                key=Key(self.number, message.request),
                message=message,
                on_text=lambda text: None,
                on_done=answer.set_result,
                on_failed=answer.set_exception,
                received_at=0.0,
            )
        )
        return answer

    def ask(self, prefix: str, document: str = "a", **fields: Any) -> Outcome:
        return self.send(prefix, document, **fields).result(WAIT_S)

    def cancel(self, request: int) -> None:
        self.engine.cancel(Key(self.number, request), CancelCause.CLIENT)

    @property
    def last_request(self) -> int:
        return self._requests


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def settings(folder: Path) -> EngineSettings:
    return EngineSettings(
        model=str(folder), drafter="suffix", precision="float32", prompt_tokens=600, max_tokens=64
    )


@pytest.fixture
def engine(settings: EngineSettings) -> Iterator[Engine]:
    running = Engine(settings, on_status=lambda status: None)
    running.start()
    yield running
    running.close()


def test_a_request_that_comes_before_the_model_is_answered(engine: Engine) -> None:
    assert Client(engine).ask("def f").stop_reason is StopReason.LENGTH


def test_states_lead_from_loading_with_progress_to_ready(settings: EngineSettings) -> None:
    seen: list[Status] = []
    engine = Engine(settings, seen.append)
    assert engine.status.state is EngineState.LOADING
    engine.start()
    Client(engine).ask("x")
    engine.close()
    assert [status.state for status in seen[:-1]] == [EngineState.LOADING] * (len(seen) - 1)
    assert seen[-1].state is EngineState.READY
    assert [status.progress for status in seen] == sorted(status.progress for status in seen)
    assert seen[-1].drafter == "suffix"


def test_cancels_do_not_keep_the_model_from_being_loaded(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impatient clients never saw a model that was loaded for a request and ended with it."""
    may_load, num_loads = threading.Event(), 0

    def load_slowly(folder: Path, *arguments: object, **options: object) -> Decoder:
        nonlocal num_loads
        num_loads += 1
        assert may_load.wait(WAIT_S)
        return load_decoder(folder, "float32")

    monkeypatch.setattr(engine_module, "load_target", load_slowly)
    monkeypatch.setattr(engine_module, "fault_of", lambda target, prefixes: None)
    engine = Engine(settings, lambda status: None)
    engine.start()
    client = Client(engine)
    given_up = [client.send("x = ") for _ in range(5)]
    for request in range(1, 6):
        client.cancel(request)
    may_load.set()
    assert client.ask("def f").stop_reason is StopReason.LENGTH
    reasons = {answer.result(WAIT_S).stop_reason for answer in given_up}
    assert reasons == {StopReason.CANCELLED}
    assert num_loads == 1
    engine.close()


def test_a_model_that_cannot_be_loaded_fails_requests_with_the_reason(
    settings: EngineSettings, tmp_path: Path
) -> None:
    folder = save_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights")
    engine = Engine(msgspec.structs.replace(settings, model=str(folder)), lambda status: None)
    engine.start()
    client = Client(engine)
    for _ in range(2):
        with pytest.raises(EngineFailed, match="safetensors"):
            client.ask("x")
    assert engine.status.state is EngineState.FAILED
    engine.close()


def test_a_request_after_a_failure_tries_to_load_again(
    settings: EngineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"")
    engine = Engine(msgspec.structs.replace(settings, model=str(folder)), lambda status: None)
    engine.start()
    client = Client(engine)
    with pytest.raises(EngineFailed):
        client.ask("x")
    weights.write_bytes(whole)
    with pytest.raises(EngineFailed):
        client.ask("x")
    monkeypatch.setattr(engine_module, "RETRY_S", 0.0)
    assert client.ask("x").stop_reason is StopReason.LENGTH
    assert engine.status.state is EngineState.READY
    engine.close()


def test_a_listener_with_a_bug_does_not_end_the_thread(
    settings: EngineSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"")
    engine = Engine(msgspec.structs.replace(settings, model=str(folder)), lambda status: None)
    engine.start()
    client = Client(engine)
    with pytest.raises(EngineFailed):
        client.ask("x")

    def fail(what: object) -> None:
        raise ZeroDivisionError("a bug in a listener")

    engine.submit(Job(Key(2, 1), Complete(1, "a", "x"), fail, fail, fail, 0.0))
    with pytest.raises(EngineFailed):
        client.ask("x")
    assert "a command failed" in caplog.text
    engine.close()


def test_a_tokenizer_with_more_tokens_than_the_weights_is_refused(
    settings: EngineSettings, tmp_path: Path
) -> None:
    folder = save_tiny_model(tmp_path, architecture=tiny_architecture(vocab_size=200))
    engine = Engine(msgspec.structs.replace(settings, model=str(folder)), lambda status: None)
    engine.start()
    with pytest.raises(EngineFailed, match="its weights know 200"):
        Client(engine).ask("x")
    engine.close()


@pytest.mark.parametrize("drafter", ["draft_model", "draft_model+suffix", "none", "auto"])
def test_a_request_may_name_any_drafter_whose_model_is_loaded(
    settings: EngineSettings, drafter: str
) -> None:
    changes = {"drafter": "suffix+draft_model", "draft_model": settings.model}
    engine = Engine(msgspec.structs.replace(settings, **changes), lambda status: None)
    engine.start()
    outcome = Client(engine).ask("x", drafter=drafter)
    assert outcome.drafter == drafter
    engine.close()


def test_an_unknown_model_is_refused_before_anything_starts() -> None:
    with pytest.raises(ModelUnknown, match="smollm2-135m"):
        Engine(EngineSettings(model="smollm2-135n"), lambda status: None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"drafter": "guess"}, "no drafter 'guess'"),
        ({"drafter": "draft_model"}, "pairs no draft model"),
        ({"prompt_tokens": 5000}, "positions"),
    ],
)
def test_settings_that_cannot_work_are_said_when_loading(
    settings: EngineSettings, changes: dict[str, Any], reason: str
) -> None:
    engine = Engine(msgspec.structs.replace(settings, **changes), lambda status: None)
    engine.start()
    with pytest.raises(EngineFailed, match=reason):
        Client(engine).ask("x")
    engine.close()


def test_a_draft_model_with_other_tokens_is_refused(
    settings: EngineSettings, tmp_path: Path
) -> None:
    """The sizes agree; two tokens of the vocabulary have changed places."""
    other = save_tiny_model(tmp_path)
    content = json.loads((other / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    changes = {"drafter": "draft_model", "draft_model": str(other)}
    engine = Engine(msgspec.structs.replace(settings, **changes), lambda status: None)
    engine.start()
    with pytest.raises(EngineFailed, match="different tokens"):
        Client(engine).ask("x")
    engine.close()


@pytest.mark.parametrize("drafter", ["none", "draft_model", "suffix+draft_model", "auto"])
def test_every_drafter_gives_the_text_of_none(
    settings: EngineSettings, engine: Engine, drafter: str
) -> None:
    expected = Client(engine).ask(LONG_PREFIX, drafter="none", max_tokens=40)
    changed = msgspec.structs.replace(settings, drafter=drafter, draft_model=settings.model)
    other = Engine(changed, lambda status: None)
    other.start()
    outcome = Client(other).ask(LONG_PREFIX, max_tokens=40)
    other.close()
    assert outcome.text == expected.text
    assert outcome.token_ids == expected.token_ids
    assert (outcome.counts.accepted > 0) == (drafter != "none")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 65},
        {"sampling": SamplingOptions(temperature=-1.0)},
        {"sampling": SamplingOptions(temperature=float("nan"))},
        {"sampling": SamplingOptions(top_p=1.1)},
        {"sampling": SamplingOptions(top_k=-1)},
        {"sampling": SamplingOptions(repetition_penalty=0.0)},
        {"sampling": SamplingOptions(logit_bias={999_999: 1.0})},
        {"sampling": SamplingOptions(logit_bias={1: float("inf")})},
        {"stop": ("a", "")},
        {"stop": ("a",) * 65},
        {"logprobs": 21},
        {"n": 0},
        {"n": 9},
        {"num_draft_tokens": -1},
        {"num_draft_tokens": 8},
        {"n": 2},
        {"drafter": "guess"},
        {"drafter": "draft_model"},
        {"drafter": "suffix+suffix"},
        {"drafter": "+".join(["suffix"] * 600_000)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_request_outside_its_limits_is_refused_alone(
    engine: Engine, fields: dict[str, Any]
) -> None:
    client = Client(engine)
    with pytest.raises(RequestInvalid):
        client.ask("x", **fields)
    assert client.ask("x").stop_reason is StopReason.LENGTH


@pytest.mark.parametrize(
    "prefix", ["", " ", "\n", "\ud800", "<end>", "\x00", "é" * 5000, "x" * 100_000]
)
def test_any_text_is_answered(engine: Engine, prefix: str) -> None:
    assert Client(engine).ask(prefix, max_tokens=2).stop_reason is not None


def test_a_prefix_that_is_shared_is_reused_and_the_answer_is_the_cold_one(engine: Engine) -> None:
    client = Client(engine)
    client.ask(LONG_PREFIX)
    warm = client.ask(LONG_PREFIX + "de")
    assert warm.counts.prefilled <= 3
    assert warm.counts.reused > 300
    for at in range(8):
        client.ask(f"other {at}" * 50, document=f"b{at}")
    cold = client.ask(LONG_PREFIX + "de")
    assert cold.counts.reused == 0
    assert cold.text == warm.text


class GatedDecoder(Decoder):
    """Waits in every forward pass until the test lets it go on."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder.architecture, decoder.weights, decoder.precision)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.passes: list[list[int]] = []
        """First tokens of each pass."""

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        self.passes += [part.token_ids[:2] for part in parts]
        self.entered.release()
        assert self.gate.acquire(timeout=WAIT_S)
        return super().forward_batch(parts)


@pytest.fixture
def gated(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, GatedDecoder]]:
    decoders: list[GatedDecoder] = []
    has_loaded = threading.Event()

    def load_gated(folder: Path, *arguments: object, **options: object) -> Decoder:
        decoders.append(GatedDecoder(load_decoder(folder, "float32")))
        has_loaded.set()
        return decoders[-1]

    monkeypatch.setattr(engine_module, "load_target", load_gated)
    monkeypatch.setattr(engine_module, "fault_of", lambda target, prefixes: None)
    engine = Engine(settings, lambda status: None)
    engine.start()
    assert has_loaded.wait(WAIT_S)
    yield engine, decoders[0]
    decoders[0].gate.release(10_000)
    engine.close()


@pytest.mark.parametrize("num_passes", [1, 3, 12])
@pytest.mark.parametrize("way", ["cancel", "supersede", "leave"])
def test_after_a_cancel_the_next_request_starts_within_one_pass(
    gated: tuple[Engine, GatedDecoder], num_passes: int, way: str
) -> None:
    """The first passes are prefill, later ones are steps; both are left within one pass."""
    engine, decoder = gated
    client = Client(engine)
    first = client.send(LONG_PREFIX)
    for _ in range(num_passes):
        assert decoder.entered.acquire(timeout=WAIT_S)
        if len(decoder.passes) < num_passes:
            decoder.gate.release()
    if way == "cancel":
        client.cancel(1)
    elif way == "leave":
        engine.cancel_client(1, CancelCause.DISCONNECT)
    second = Client(engine, 1 if way != "leave" else 2).send("zz = 12", max_tokens=1, heal=False)
    decoder.gate.release(10_000)
    second.result(WAIT_S)
    assert first.result(WAIT_S).stop_reason is StopReason.CANCELLED
    assert len(decoder.passes) == num_passes + 1


def test_a_thousand_random_cancels_leave_everything_as_it_was(engine: Engine) -> None:
    dice = random.Random(7)
    client = Client(engine)
    expected = client.ask(LONG_PREFIX, "kept", max_tokens=20).text
    open_answers: list[Future[Outcome]] = []
    for at in range(1000):
        length = dice.randint(1, len(LONG_PREFIX))
        open_answers.append(client.send(LONG_PREFIX[:length], f"doc{at % 5}"))
        if dice.random() < 0.3:
            wait_for_any(open_answers[-1], dice.random() * 0.004)
        client.cancel(client.last_request)
    outcomes = [answer.result(WAIT_S) for answer in open_answers]
    causes = {outcome.cause for outcome in outcomes}
    assert CancelCause.CLIENT in causes
    assert sum(outcome.stop_reason is StopReason.CANCELLED for outcome in outcomes) > 900
    assert any(outcome.counts.prefilled for outcome in outcomes)
    after = client.ask(LONG_PREFIX, "kept", max_tokens=20)
    assert after.text == expected
    assert (engine.status.active, engine.status.waiting) == (0, 0)
    assert engine.prefixes.num_leased == 0
    engine.prefixes.check_integrity()


def wait_for_any(answer: Future[Outcome], seconds: float) -> None:
    """Give the engine a moment, so that some requests are cancelled while they run."""
    try:
        answer.result(seconds)
    except TimeoutError:
        return


def test_closing_answers_what_is_open(settings: EngineSettings) -> None:
    engine = Engine(settings, lambda status: None)
    answer = Client(engine).send(LONG_PREFIX)
    engine.start()
    engine.close()
    outcome = answer.result(WAIT_S)
    assert outcome.stop_reason in {StopReason.CANCELLED, StopReason.LENGTH}


def test_closing_does_not_wait_for_a_long_download(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = threading.Event()

    def download(entry: object, on_progress: Callable[[float, str], None]) -> Path:
        while True:
            on_progress(0.1, "downloading")
            has_begun.set()

    monkeypatch.setattr(engine_module, "ensure_model", download)
    engine = Engine(settings, lambda status: None)
    engine.start()
    assert has_begun.wait(WAIT_S)
    answer = Client(engine).send("x")
    engine.close()
    assert answer.result(WAIT_S).cause is CancelCause.SHUTDOWN


def test_a_request_s_wishes_reach_its_session(engine: Engine) -> None:
    client = Client(engine)
    biased = SamplingOptions(logit_bias={33: 1000.0})
    outcome = client.ask("x = ", max_tokens=6, sampling=biased, logprobs=1, drafter="none")
    assert set(outcome.token_ids[1:]) == {33}
    assert [each.token_id for each in outcome.logprobs] == list(outcome.token_ids)
    stopped = client.ask("x = ", max_tokens=6, sampling=biased, stop=(outcome.text[-1],))
    assert stopped.stop_reason is StopReason.STOP_STRING
    assert outcome.text[-1] not in stopped.text
    ended = client.ask("x = ", max_tokens=6, stop_ids=(outcome.token_ids[0], 33), sampling=biased)
    assert ended.stop_reason is StopReason.STOP_TOKEN
    assert ended.text == ""


def test_rejection_gives_each_request_coins_of_its_own(engine: Engine) -> None:
    """The same coins would judge drafts that come from the text which they made."""
    client = Client(engine)
    wish = SamplingOptions(temperature=1.5, method="rejection")
    texts = {
        client.ask("x = ", max_tokens=12, sampling=wish, drafter="none").text for _ in range(3)
    }
    assert len(texts) == 3
    seeded = SamplingOptions(temperature=1.5)
    same = {client.ask("x = ", max_tokens=12, sampling=seeded).text for _ in range(3)}
    assert len(same) == 1


@pytest.mark.parametrize("stop_ids", [(-1,), (2**40,), tuple(range(65))])
def test_stop_ids_that_are_no_tokens_or_too_many_are_refused(
    engine: Engine, stop_ids: tuple[int, ...]
) -> None:
    with pytest.raises(RequestInvalid, match="stop_ids"):
        Client(engine).ask("x = ", max_tokens=6, stop_ids=stop_ids)


@pytest.mark.parametrize("seed", [0, 1])
def test_requests_that_share_passes_get_what_they_get_alone(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Eight users at once, each with a text, a length, wishes and a drafter of their own."""
    dice = random.Random(seed)
    wishes = [
        {
            "prefix": LONG_PREFIX[: dice.randrange(10, 900)],
            "max_tokens": dice.randrange(5, 40),
            "drafter": dice.choice(["none", "suffix"]),
            "sampling": SamplingOptions(
                temperature=dice.choice([0.0, 0.8]), seed=dice.randrange(9)
            ),
        }
        for _ in range(8)
    ]
    shared = Counter[int]()
    forward_batch = IntegerDecoder.forward_batch

    def counting(self: IntegerDecoder, parts: Sequence[Rows]) -> list[torch.Tensor]:
        shared[len(parts)] += 1
        return forward_batch(self, parts)

    monkeypatch.setattr(IntegerDecoder, "forward_batch", counting)
    engine = Engine(
        msgspec.structs.replace(settings, precision="int8", slots=8), lambda status: None
    )
    engine.start()
    client = Client(engine)
    alone = [client.ask(document=f"alone {at}", **each) for at, each in enumerate(wishes)]
    if not shared:
        pytest.skip("there is no native pass here")
    answers = [client.send(document=f"shared {at}", **each) for at, each in enumerate(wishes)]
    together = [answer.result(WAIT_S) for answer in answers]
    engine.close()
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert sum(shared[num] for num in shared if num > 1) > 0


def test_several_completions_are_those_of_their_seeds(engine: Engine) -> None:
    client = Client(engine)
    sampling = SamplingOptions(temperature=1.0, seed=5)
    alone = [
        client.ask(LONG_PREFIX, sampling=msgspec.structs.replace(sampling, seed=seed))
        for seed in (5, 6, 7)
    ]
    together = client.ask(LONG_PREFIX, sampling=sampling, n=3)
    assert together.text == alone[0].text
    assert together.token_ids == alone[0].token_ids
    assert together.alternatives == (alone[1].text, alone[2].text)
    assert len({together.text, *together.alternatives}) == 3


def test_all_of_several_completions_are_counted(engine: Engine) -> None:
    client = Client(engine)
    wishes = {"max_tokens": 8, "drafter": "none", "heal": False}
    sampling = SamplingOptions(temperature=1.0, seed=5)
    alone = [
        client.ask(LONG_PREFIX, sampling=msgspec.structs.replace(sampling, seed=seed), **wishes)
        for seed in (5, 6, 7)
    ]
    together = client.ask(LONG_PREFIX, sampling=sampling, n=3, **wishes)
    assert together.tokens.emitted == 3 * 8
    assert together.tokens.prompt == sum(each.tokens.prompt for each in alone)
    assert together.counts.steps == sum(each.counts.steps for each in alone)


def test_a_stop_in_the_middle_of_several_ends_all(engine: Engine) -> None:
    client = Client(engine)
    sampling = SamplingOptions(temperature=1.0)
    answer = client.send(LONG_PREFIX, sampling=sampling, n=8, max_tokens=60)
    client.cancel(client.last_request)
    assert answer.result(WAIT_S).stop_reason is StopReason.CANCELLED
    assert client.ask(LONG_PREFIX, sampling=sampling).stop_reason is StopReason.LENGTH


def test_a_request_may_ask_for_shorter_drafts(engine: Engine) -> None:
    client = Client(engine)
    long = client.ask(LONG_PREFIX, max_tokens=40)
    short = client.ask(LONG_PREFIX, max_tokens=40, num_draft_tokens=1)
    none = client.ask(LONG_PREFIX, max_tokens=40, num_draft_tokens=0)
    assert long.text == short.text == none.text
    assert long.counts.drafted > short.counts.drafted > none.counts.drafted == 0


def test_how_the_parts_of_auto_do_can_be_read(settings: EngineSettings) -> None:
    engine = Engine(settings, lambda status: None)
    engine.start()
    outcome = Client(engine).ask(LONG_PREFIX, max_tokens=40, drafter="auto")
    other = Client(engine).ask(LONG_PREFIX, max_tokens=40, drafter="auto", language="lua")
    state, of_lua = engine.drafter_states["auto"]
    engine.close()
    assert (state.name, state.drafted) == ("suffix", outcome.counts.drafted)
    assert state.accepted == outcome.counts.accepted
    assert state.draft_ms > 0
    assert outcome.drafting
    assert (of_lua.language, of_lua.drafted) == ("lua", other.counts.drafted)


def test_each_end_is_recorded_after_it_is_answered(settings: EngineSettings) -> None:
    records: list[Record] = []
    engine = Engine(settings, lambda status: None, records.append)
    engine.start()
    client = Client(engine, number=7)
    outcome = client.ask("def f", max_tokens=5)
    with pytest.raises(RequestInvalid):
        client.ask("x", max_tokens=0)
    engine.close()
    first, second = records
    assert (first.client, first.result, first.tokens) == (7, "length", outcome.tokens)
    assert first.by_drafter == outcome.counts.by_drafter
    assert second.result == "request_invalid"
    assert "def f" not in repr(first)


def test_a_drafter_that_is_off_is_not_used_unless_a_request_names_it(
    settings: EngineSettings,
) -> None:
    statuses: list[Status] = []
    engine = Engine(settings, statuses.append)
    engine.start()
    client = Client(engine)
    assert client.ask(LONG_PREFIX).drafter == "suffix"
    engine.watch.switch_off("drafter", "suffix", "2.0 ms a token, 1.0 ms without", pause_s=60)
    assert client.ask(LONG_PREFIX).drafter == "none"
    assert client.ask(LONG_PREFIX, drafter="suffix").drafter == "suffix"
    engine.watch.switch_off("drafter", "suffix", "it failed")
    assert client.ask(LONG_PREFIX, drafter="suffix").drafter == "none"
    engine.close()
    reason = "is ready; speculation off because drafter suffix is off: it failed"
    assert statuses[-1].detail.endswith(reason)


def test_what_drafts_besides_one_that_is_off_is_no_plain_decoding(
    settings: EngineSettings,
) -> None:
    statuses: list[Status] = []
    engine = Engine(settings, statuses.append)
    engine.start()
    Client(engine).ask(LONG_PREFIX)
    engine.watch.switch_off("drafter", "eagle", "it failed")
    engine.close()
    assert statuses[-1].detail.endswith("is ready; drafter eagle is off: it failed")


class BrokenDecoder(Decoder):
    """Is right token by token only: a pass over several is not."""

    def forward(
        self, token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        logits = super().forward(token_ids, cache, num_logits=num_logits, tree=tree)
        return logits.roll(1, dims=-1) if num_logits > 1 else logits


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Precisions in which a loaded model is broken."""
    broken: list[str] = []
    load = engine_module.load_target

    def load_broken(folder: Path, precision: Precision, **options: Any) -> Target:
        if precision not in broken:
            return load(folder, precision, **options)
        decoder = load_decoder(folder, precision)
        return BrokenDecoder(decoder.architecture, decoder.weights, decoder.precision)

    monkeypatch.setattr(engine_module, "load_target", load_broken)
    return broken


def test_a_precision_that_fails_its_check_is_switched_off_and_the_next_one_serves(
    settings: EngineSettings, breaks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    breaks.append("bfloat16")
    statuses: list[Status] = []
    engine = Engine(msgspec.structs.replace(settings, precision="bfloat16"), statuses.append)
    engine.start()
    assert Client(engine).ask("def f").stop_reason is StopReason.LENGTH
    assert engine.facts is not None
    assert engine.facts.precision == "float32"
    (off,) = engine.watch.switched_off
    assert (off.kind, off.name) == ("precision", "bfloat16")
    engine.close()
    assert "precision bfloat16 is off: a pass over several tokens" in statuses[-1].detail
    assert "bfloat16 is switched off" in caplog.text


def test_a_model_that_fails_its_check_in_every_precision_is_refused_with_the_reason(
    settings: EngineSettings, breaks: list[str]
) -> None:
    breaks.append("float32")
    engine = Engine(settings, lambda status: None)
    engine.start()
    with pytest.raises(EngineFailed, match="in no precision: precision float32 is off"):
        Client(engine).ask("def f")
    assert [off.kind for off in engine.watch.switched_off] == ["precision", "model"]
    engine.close()


class FailingDrafts:
    """Source of drafters that raise an error."""

    name = "failing"

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> FailingDrafts:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        raise ZeroDivisionError("a bug")

    def close(self) -> None:
        pass


def test_a_drafter_that_fails_again_and_again_is_switched_off(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_module.build

    def build(name: str, *arguments: Any) -> DrafterSource:
        return FailingDrafts() if name == "failing" else real(name, *arguments)

    monkeypatch.setattr(engine_module, "build", build)
    engine = Engine(msgspec.structs.replace(settings, drafter="failing"), lambda status: None)
    engine.start()
    client = Client(engine)
    used = [client.ask(LONG_PREFIX).drafter for _ in range(MAX_FAILURES + 1)]
    assert used == ["failing"] * MAX_FAILURES + ["none"]
    assert "it failed on 3 requests in a row" in engine.status.detail
    engine.close()
