"""The thread that owns models and tensors: loads them, then runs the scheduler.

Everything else reaches it by ``submit`` and its siblings, which only put a command into a queue.
Requests may come while the models load; they wait.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Limits, Models, Session
from specengine.decoding.several import Several
from specengine.drafters.adaptive import AdaptiveDrafts, PartState
from specengine.drafters.base import DrafterSource
from specengine.drafters.build import AUTO, auto_parts, build, recipes
from specengine.drafters.draft_model import ModelDrafts, check_same_tokens, partner_of
from specengine.drafters.none import NoDrafts
from specengine.drafters.pass_times import PassTimes, known_or_measured
from specengine.drafters.trained import declared_drafts
from specengine.errors import (
    ConfigError,
    EngineFailed,
    LoadError,
    RequestError,
    RequestInvalid,
    SettingsInvalid,
    SpecEngineError,
)
from specengine.models import registry
from specengine.models.convert import ensure_model
from specengine.models.memory import Sequences
from specengine.models.registry import ModelEntry, Registry
from specengine.models.self_check import fault_of
from specengine.models.staging import cache_root
from specengine.models.target import Target
from specengine.models.targets import AnyPrecision, load_target
from specengine.models.tokenizer import Tokenizer
from specengine.protocol import CancelCause, Complete, EngineState
from specengine.record import Record
from specengine.sampling import Sampling
from specengine.scheduler import Job, Key, Outcome, Scheduler
from specengine.settings import EngineSettings
from specengine.trouble import log_trouble
from specengine.watch import Watch

logger = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""A request that comes so long after loading failed starts another attempt."""

FALLBACKS: Final[Mapping[AnyPrecision, tuple[AnyPrecision, ...]]] = {
    "auto": ("auto", "bfloat16", "float32"),
    "int4": ("int4", "int8", "bfloat16", "float32"),
    "int8": ("int8", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
}
"""What is loaded in place of a precision that fails its check on this machine."""

FETCH_SHARE: Final = 0.8
"""Share of the progress bar that fetching and converting take; reading the weights the rest."""

MAX_STOP_STRINGS: Final = 64
MAX_STOP_IDS: Final = 64
MAX_LOGPROBS: Final = 20
MAX_ALTERNATIVES: Final = 8


@dataclass(frozen=True)
class Status:
    """What the engine is doing."""

    state: EngineState
    model: str
    drafter: str
    progress: float
    detail: str
    active: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Facts:
    """What is known of an engine once it has loaded; numbers are of the moment."""

    precision: str
    device: str
    slots: tuple[tuple[int, bool], ...]
    """Rows that each slot in use holds, and whether a request has it."""
    kv_bytes: int
    device_bytes: int
    """Memory of the accelerator that torch has handed out; 0 on a CPU."""


class _Closed(Exception):
    """Loading is broken off, because the engine is being closed."""


class Engine:
    """Models, scheduler and their thread."""

    def __init__(
        self,
        settings: EngineSettings,
        on_status: Callable[[Status], None],
        on_end: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Resolve names, so that a wrong one is refused before anything starts.

        ``on_status`` and ``on_end``, which hears of each request that has ended, are called on the
        engine's thread.

        Raises:  ConfigError.
        """
        self.settings = settings
        self._on_status = on_status
        self._on_end = on_end
        self.watch: Final = Watch(self._tell_what_is_off)
        self._registry: Registry = registry.load()
        self._entry = self._registry.resolve(settings.model or self._registry.default)
        self._known = recipes(self._draft_model, self._head_drafts, settings.history_mb * 2**20)
        self._sources: dict[str, DrafterSource] = {}
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._scheduler = Scheduler(
            self._new_session,
            max_running=settings.slots,
            max_waiting=settings.max_waiting,
            target=self._target,
        )
        self._numbers = itertools.count()
        self._is_closing = False
        self._failure: EngineFailed | None = None
        self._failed_at = 0.0
        self._draft_source: DrafterSource | None = None
        self._models: Models | None = None
        self._layout: PromptLayout | None = None
        self._status = Status(EngineState.LOADING, self.model, settings.drafter, 0.0, "starting")
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def model(self) -> str:
        """Return the target's name."""
        return self._entry.name

    @property
    def reads_files(self) -> bool:
        """Whether the target has learnt to read other files; False until it is loaded."""
        layout = self._layout
        return layout is not None and layout.reads_files

    @property
    def status(self) -> Status:
        """Return the current status; callable from any thread."""
        scheduler = self._scheduler
        return replace(self._status, active=scheduler.num_running, waiting=scheduler.num_waiting)

    @property
    def drafter_states(self) -> Mapping[str, tuple[PartState, ...]]:
        """Return how the parts of adaptive drafters do, by the name asked for; from any thread."""
        sources = list(self._sources.items())
        adaptive = ((name, each) for name, each in sources if isinstance(each, AdaptiveDrafts))
        return {name: source.snapshot() for name, source in adaptive}

    @property
    def prefixes(self) -> PrefixCache:
        """Return the target's stored KV, for tests and reports."""
        assert self._models is not None
        return self._models.prefixes

    @property
    def facts(self) -> Facts | None:
        """Return what it runs with, or None before it has loaded; callable from any thread."""
        models = self._models
        if models is None:
            return None
        device = models.target.kv_shape.device
        return Facts(
            precision=models.target.precision,
            device=str(device),
            slots=tuple(models.prefixes.slots),
            kv_bytes=models.prefixes.num_bytes,
            device_bytes=torch.cuda.memory_allocated(device) if device.type == "cuda" else 0,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token writes; callable from any thread once a request has ended."""
        assert self._models is not None
        return self._models.tokenizer.token_bytes(token_id)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def close(self) -> None:
        """End all requests and the thread; returns when it is gone."""
        self._commands.put(self._shut_down)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a request."""
        self._commands.put(lambda: self._add(self._recorded(job)))

    def cancel(self, key: Key, cause: CancelCause) -> None:
        """End a request within one forward pass."""
        self._commands.put(lambda: self._scheduler.cancel(key, cause))

    def cancel_client(self, client: int, cause: CancelCause) -> None:
        """End all requests of a client."""
        self._commands.put(lambda: self._scheduler.cancel_client(client, cause))

    def stop(self, key: Key) -> None:
        """End a request with what it has written."""
        self._commands.put(lambda: self._scheduler.stop(key))

    def _run(self) -> None:
        while not self._is_closing:
            if self._status.state is EngineState.LOADING:
                self._try_to_load()
                continue
            self._drain(block=not self._scheduler.has_work)
            if self._scheduler.has_work and self._status.state is EngineState.READY:
                self._scheduler.run_once()

    def _try_to_load(self) -> None:
        try:
            self._load()
        except _Closed:
            return
        except SpecEngineError as error:
            self._fail(str(error))
        except Exception as error:
            log_trouble(logger, "loading failed")
            self._fail(f"loading failed: {error}")

    def _drain(self, *, block: bool) -> None:
        """Carry out the commands that have come; wait for one when there is nothing else to do."""
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return
            block = False
            try:
                command()
            except Exception:
                # The thread serves everybody; a bug in one command must not end it.
                log_trouble(logger, "a command failed")

    def _add(self, job: Job) -> None:
        if self._failure is not None and time.monotonic() - self._failed_at >= RETRY_S:
            # What was wrong may be mended by now: a cable, a file, another program's memory.
            self._failure = None
            self._publish(EngineState.LOADING, 0.0, "trying again")
        if self._failure is not None:
            job.on_failed(self._failure)
        else:
            self._scheduler.add(job)

    def _recorded(self, job: Job) -> Job:
        """Return a job whose end is told to whoever counts, after whoever has asked."""

        def done(outcome: Outcome) -> None:
            job.on_done(outcome)
            self._watch_drafting(outcome)
            self._on_end(Record.of(job, outcome))

        def failed(error: RequestError) -> None:
            job.on_failed(error)
            self._on_end(Record.of(job, error))

        return replace(job, on_done=done, on_failed=failed)

    def _watch_drafting(self, outcome: Outcome) -> None:
        counts, drafter = outcome.counts, outcome.drafter
        self.watch.note(counts.by_drafter)
        if counts.has_drafter_failed:
            self.watch.note_failure(drafter)
        elif counts.steps:
            self.watch.note_success(drafter)
        if AUTO not in drafter.split("+"):
            self.watch.note_pace(counts.by_drafter)

    def _tell_what_is_off(self) -> None:
        if self._status.state is EngineState.READY:
            self._publish(EngineState.READY, 1.0, self._ready_detail())

    def _ready_detail(self) -> str:
        summary, drafter = self.watch.summary, self._status.drafter
        if not summary:
            return f"{self.model} is ready"
        is_plain = drafter != NoDrafts.name and self.watch.usable(drafter) == NoDrafts.name
        return f"{self.model} is ready; {'speculation off because ' * is_plain}{summary}"

    def _shut_down(self) -> None:
        self._is_closing = True
        self._scheduler.cancel_all(CancelCause.SHUTDOWN)

    def _fail(self, what: str) -> None:
        logger.error("%s", what)
        self._failure = EngineFailed(what)
        self._failed_at = time.monotonic()
        self._scheduler.fail_all(self._failure)
        self._publish(EngineState.FAILED, 0.0, what)

    def _publish(self, state: EngineState, progress: float, detail: str) -> None:
        self._status = replace(self._status, state=state, progress=progress, detail=detail)
        self._on_status(self.status)

    def _progress(self, progress: float, detail: str) -> None:
        # A request that comes, goes or is superseded meanwhile must not wait for the model.
        self._drain(block=False)
        if self._is_closing:
            raise _Closed
        is_news = progress - self._status.progress >= 0.01 or detail != self._status.detail
        if is_news:
            self._publish(EngineState.LOADING, progress, detail)

    def _load(self) -> None:
        started = time.perf_counter()
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)
        settings = self.settings
        self._models = models = self._load_checked()
        self._layout = PromptLayout(self._entry, models.tokenizer, settings.prompt_tokens)
        drafter = self._source(settings.drafter).name
        self._status = replace(self._status, drafter=drafter)
        logger.info(
            "%s is ready after %.1f s: %s, drafter %s, %d threads",
            self.model,
            time.perf_counter() - started,
            models.target.precision,
            drafter,
            torch.get_num_threads(),
        )
        self._publish(EngineState.READY, 1.0, self._ready_detail())

    def _load_checked(self) -> Models:
        """Return the target in the first precision that passes its check.

        Raises:  LoadError when none does; what loading raises.
        """
        settings = self.settings
        for precision in FALLBACKS[settings.precision]:
            if self.watch.is_off("precision", precision):
                continue
            target, tokenizer = self._load_model(self._entry, precision)
            self._check_room(target)
            shape, capacity = target.kv_shape, settings.context_tokens
            prefixes = PrefixCache(functools.partial(KVCache, shape, capacity), settings.slots)
            fault = fault_of(target, prefixes)
            if fault is None:
                return Models(target, tokenizer, target.vocab_size, prefixes)
            self.watch.switch_off("precision", target.precision, fault)
        self.watch.switch_off("model", self.model, "it passes its check in no precision")
        raise LoadError(
            f"{self.model} passes its check in no precision: {self.watch.summary}.",
            hint="Run specengine models check, and specengine check exact.",
        )

    def _check_room(self, target: Target) -> None:
        needed, has = self.settings.context_tokens, target.architecture.context_len
        if needed > has:
            raise SettingsInvalid(
                f"prompt_tokens and max_tokens need {needed} positions; {self.model} has {has}."
            )

    def _load_model(self, entry: ModelEntry, precision: AnyPrecision) -> tuple[Target, Tokenizer]:
        folder = ensure_model(entry, lambda done, what: self._progress(done * FETCH_SHARE, what))
        tokenizer = Tokenizer.load(folder)
        decoder = load_target(
            folder,
            precision,
            device=self.settings.device,
            step_rows=self.settings.num_draft_tokens + 1,
            sequences=Sequences(self.settings.slots, self.settings.context_tokens),
            on_fraction=lambda done: self._progress(
                FETCH_SHARE + done * (1 - FETCH_SHARE), f"reading {entry.name}"
            ),
        )
        if tokenizer.vocab_size > decoder.vocab_size:
            raise LoadError(
                f"{entry.name} has {tokenizer.vocab_size} tokens, its weights know "
                f"{decoder.vocab_size}.",
                hint="Its tokenizer.json belongs to another model.",
            )
        return decoder, tokenizer

    def _draft_model(self) -> DrafterSource:
        """Return the draft model's source; it is loaded with the target, or not at all.

        A model that was cut out of the target is as small as a head, and is loaded when asked for.
        """
        if not self.settings.draft_model and "draft_model" in self._entry.heads:
            return self._head_drafts("draft_model")
        if self._draft_source is None:
            if self._status.state is not EngineState.LOADING:
                raise SettingsInvalid(
                    "the engine was started without a draft model.",
                    hint="Start it with --drafter draft_model.",
                )
            self._draft_source = self._load_draft_model()
        return self._draft_source

    def _load_draft_model(self) -> DrafterSource:
        assert self._models is not None
        name = partner_of(self._entry, self.settings.draft_model)
        decoder, tokenizer = self._load_model(self._registry.resolve(name), self.settings.precision)
        check_same_tokens(self._models.tokenizer, tokenizer)
        capacity = min(self.settings.context_tokens, decoder.architecture.context_len)
        # One more slot than requests run: a request that ends and one that starts may overlap.
        ends = tokenizer.end_ids | tokenizer.special_ids  # as for the target
        vocab_size = self._models.vocab_size
        return ModelDrafts(decoder, ends, self.settings.slots + 1, capacity, vocab_size)

    def _head_drafts(self, kind: str) -> DrafterSource:
        assert self._models is not None
        models, num_slots = self._models, self.settings.slots + 1  # as for the draft model
        return declared_drafts(self._entry, kind, models.target, models.tokenizer, num_slots)

    def _source(self, name: str) -> DrafterSource:
        if name not in self._sources:
            parts = auto_parts(self._entry.heads)
            self._sources[name] = build(name, self._known, self._pass_times, parts)
        return self._sources[name]

    def _pass_times(self) -> PassTimes:
        assert self._models is not None
        target, prefixes = self._models.target, self._models.prefixes
        slot = prefixes.lease([])
        slot.cache.truncate(0)
        most_rows, folder = self.settings.num_draft_tokens + 1, cache_root() / "passes"
        times = known_or_measured(target, slot.cache, most_rows, folder)
        prefixes.release(slot, [])
        return times

    def _new_session(self, message: Complete) -> Session | Several:
        if not 1 <= message.n <= MAX_ALTERNATIVES:
            raise RequestInvalid(f"n is {message.n}; allowed are 1 to {MAX_ALTERNATIVES}.")
        if message.n == 1:
            return self._session(message)
        if message.sampling.temperature == 0:
            raise RequestInvalid("n completions differ by their seeds only; set a temperature.")

        def start(number: int) -> Session:
            seed = message.sampling.seed + number
            sampling = msgspec.structs.replace(message.sampling, seed=seed)
            return self._session(msgspec.structs.replace(message, sampling=sampling))

        return Several(start, message.n)

    def _session(self, message: Complete) -> Session:
        assert self._models is not None
        assert self._layout is not None
        limits = self._limits(message)
        prompt = self._layout.lay_out(
            message.prefix, message.suffix, heal=message.heal, files=message.files
        )
        source = self._request_source(message)
        if isinstance(source, AdaptiveDrafts):
            source = source.of_language(message.language)
        sampling = self._sampling(message)
        return Session(
            models=self._models,
            prompt=prompt,
            drafter=source.start(prompt.token_ids, sampling),
            drafter_name=source.name,
            sampling=sampling,
            limits=limits,
            num_logprobs=message.logprobs,
        )

    def _request_source(self, message: Complete) -> DrafterSource:
        """Return the drafter a request names, if the engine has loaded what it needs."""
        try:
            if message.drafter:
                return self._source(self.watch.allowed(message.drafter))
            return self._source(self.watch.usable(self.settings.drafter))
        except ConfigError as error:
            raise RequestInvalid(error.what, hint=error.hint) from error

    def _limits(self, message: Complete) -> Limits:
        if not 1 <= message.max_tokens <= self.settings.max_tokens:
            raise RequestInvalid(
                f"max_tokens is {message.max_tokens}; allowed are 1 to {self.settings.max_tokens}."
            )
        if len(message.stop) > MAX_STOP_STRINGS or not all(message.stop):
            raise RequestInvalid(
                f"stop has {len(message.stop)} strings; allowed are {MAX_STOP_STRINGS} that are "
                "not empty."
            )
        stop_ids = frozenset(message.stop_ids)
        if len(stop_ids) > MAX_STOP_IDS or not all(self._is_token(each) for each in stop_ids):
            raise RequestInvalid(
                f"stop_ids has {len(stop_ids)} tokens; allowed are {MAX_STOP_IDS}, below "
                f"{self._target().vocab_size}."
            )
        if message.logprobs is not None and not 0 <= message.logprobs <= MAX_LOGPROBS:
            raise RequestInvalid(
                f"logprobs is {message.logprobs}; allowed are 0 to {MAX_LOGPROBS}."
            )
        most, wished = self.settings.num_draft_tokens, message.num_draft_tokens
        if wished is not None and not 0 <= wished <= most:
            raise RequestInvalid(f"num_draft_tokens is {wished}; allowed are 0 to {most}.")
        num_draft_tokens = most if wished is None else wished
        return Limits(message.max_tokens, num_draft_tokens, message.stop, stop_ids)

    def _is_token(self, token_id: int) -> bool:
        return 0 <= token_id < self._target().vocab_size

    def _target(self) -> Target:
        assert self._models is not None
        return self._models.target

    def _sampling(self, message: Complete) -> Sampling:
        assert self._models is not None
        options = msgspec.structs.asdict(message.sampling)
        options["logit_bias"] = tuple(message.sampling.logit_bias.items())
        if message.sampling.method == "rejection":
            # The same coins may not judge a draft that an earlier text, which they made, brings.
            options["seed"] = _own_seed(message.sampling.seed, next(self._numbers))
        sampling = Sampling(**options)
        sampling.check(self._models.vocab_size)
        return sampling


def _own_seed(seed: int, number: int) -> int:
    """Return a seed for the request of that number; that of the first is the seed itself."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "big")
