"""Has servers answer a request: chooses one, asks again or elsewhere, heals by text.

It knows no connection to an editor and no local engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from specengine.errors import RequestError, UpstreamFailed
from specengine.models.registry import ModelEntry, Registry
from specengine.protocol import EngineState, EngineStatus
from specengine.upstream.choice import choose
from specengine.upstream.failures import AttemptFailed
from specengine.upstream.layout import Layout, Way, find_entry
from specengine.upstream.options import UpstreamOptions
from specengine.upstream.reading import Reading
from specengine.upstream.requests import OURS, body_of, choose_way
from specengine.upstream.run import Run
from specengine.upstream.server import Facts, Server

logger = logging.getLogger(__name__)

MAX_DOCUMENTS: Final = 256
"""Documents of which is known who answered last."""

FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 2.0
"""A server that wants to be left alone for longer is not waited for."""

_AVERAGED: Final = 0.2


@dataclass(frozen=True)
class Timing:
    """Clock, pause and chance, so that tests need not wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class Asker:
    """Some servers that can stand in for each other."""

    def __init__(
        self,
        servers: Sequence[Server],
        options: UpstreamOptions,
        models: Registry,
        timing: Timing,
    ) -> None:
        self.servers = servers
        self._options = options
        self._models = models
        self._timing = timing
        self._layout = Layout()
        self._last: OrderedDict[str, Server] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()

    async def probe(self) -> RequestError | None:
        """Ask each server what it is; return why none has said it, or None if one has."""
        failures = await asyncio.gather(*(self._probe(server) for server in self.servers))
        if any(server.facts for server in self.servers):
            return None
        return next((failure for failure in failures if failure is not None), None)

    def status(self) -> EngineStatus:
        """Return what people and the prompt's makers are told of the servers that are known."""
        known = [(server.name, server.facts) for server in self.servers if server.facts is not None]
        sizes = [facts.context_tokens for _, facts in known if facts.context_tokens]
        named = ", ".join(f"{name}: {facts.kind or 'a server'}" for name, facts in known)
        return EngineStatus(
            state=EngineState.READY,
            model=known[0][1].short_model if known else "",
            drafter="upstream",
            progress=1.0,
            detail=named or "no server upstream answers; the local engine is asked.",
            active=0,
            waiting=0,
            # The other half is for what is written, and for a poor estimate of tokens.
            prompt_tokens=min(sizes) // 2 if sizes else 0,
            reads_files=bool(known) and all(self._reads_files(facts) for _, facts in known),
        )

    def _reads_files(self, facts: Facts) -> bool:
        entry = self._entry(facts)
        way = choose_way(self._options.way, facts, entry)
        has_markers = entry is not None and entry.file_sep is not None
        return way == "infill" or (way != "suffix" and has_markers)

    async def close(self) -> None:
        """End all connections."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await asyncio.gather(*(server.close() for server in self.servers))

    async def answer(self, run: Run) -> RequestError | None:
        """Ask one server after the other; return why none has answered, or None if one has.

        Raises:  RequestError for what no server would answer, or when some text has come already.
        """
        try:
            async with asyncio.timeout(self._options.limits.total_s):
                return await self._try_servers(run)
        except TimeoutError:
            failure = UpstreamFailed("the servers upstream took too long altogether.")
        if run.pieces:
            raise failure
        return failure

    async def _try_servers(self, run: Run) -> RequestError | None:
        failed: AttemptFailed | None = None
        avoided: Server | None = None
        for attempt in range(self._options.limits.attempts):
            server = await self._choose(run.message.document, avoided)
            if server is None:
                break
            if server is avoided:
                await self._timing.sleep(self._pause_s(attempt))
            try:
                await self._ask(server, run)
                return None
            except AttemptFailed as error:
                logger.info("try %d: %s", attempt + 1, error.error)
                failed, avoided = error, server
                if run.pieces or not (error.may_retry or error.is_fault):
                    raise error.error from error
        return failed.error if failed else UpstreamFailed("no server upstream may be asked now.")

    async def _choose(self, document: str, avoided: Server | None) -> Server | None:
        """Return a server; wait a little if the one just asked wants to be left alone a little."""
        last = self._last.get(document)
        server = choose(self.servers, last, avoided)
        wait_s = min((server.breaker.wait_s for server in self.servers), default=0.0)
        if server is None and avoided is not None and 0 < wait_s <= MAX_PAUSE_S:
            await self._timing.sleep(wait_s)
            server = choose(self.servers, last, avoided)
        return server

    def _pause_s(self, attempt: int) -> float:
        longest_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
        return longest_s * (0.5 + 0.5 * self._timing.chance())

    async def _ask(self, server: Server, run: Run) -> None:
        """Have one server answer, and note how well it does.

        Raises:  AttemptFailed.
        """
        server.breaker.begin()
        server.active += 1
        try:
            run.server, run.facts = server, await server.probe()
            try:
                await self._have_answer(server, run.facts, run)
            except AttemptFailed as failed:
                if failed.status != HTTPStatus.NOT_FOUND or not await server.has_other_model():
                    raise
                run.facts = await server.probe()
                await self._have_answer(server, run.facts, run)
        except asyncio.CancelledError:
            # Most answers end like this: whoever reads them has had enough.
            if run.has_text_from_server:
                self._note_answer(server, run)
            raise
        except AttemptFailed as failed:
            if failed.is_fault:
                server.facts = None  # it may come back as another one
                server.breaker.fail(is_final=not failed.may_retry and not run.pieces)
            server.breaker.rest(failed.rest_s)
            raise
        finally:
            server.active -= 1
            server.breaker.end()
        self._note_answer(server, run)

    def _note_answer(self, server: Server, run: Run) -> None:
        server.breaker.succeed()
        if run.reading is not None and run.reading.first_at_s is not None:
            took_s = run.reading.first_at_s - run.sent_s
            server.first_text_s += _AVERAGED * (took_s - server.first_text_s)
        self._remember(run.message.document, server)
        self._start(server.refresh_counters())

    async def _have_answer(self, server: Server, facts: Facts, run: Run) -> None:
        entry = self._entry(facts)
        way = choose_way(self._options.way, facts, entry)
        # Our own engine heals by tokens, which is better.
        reading = await self._read(server, facts, run, way, heal=facts.kind != OURS)
        if reading.is_misaligned:
            logger.debug("request %d: the answer does not begin as typed", run.message.request)
            self._layout.note_misaligned(run.message)
            reading = await self._read(server, facts, run, way, heal=False)
        if reading.stop_reason is None:
            raise AttemptFailed(
                UpstreamFailed(f"{server.name} broke its answer off."), may_retry=not run.pieces
            )

    async def _read(
        self, server: Server, facts: Facts, run: Run, way: Way, *, heal: bool
    ) -> Reading:
        message, clock = run.message, self._timing.clock
        ask = self._layout.lay_out(message, way, self._entry(facts), heal=heal and message.heal)
        stops = (*message.stop, *ask.ends)
        reading = Reading(ask.forced, stops, message.max_tokens, run.write, clock)
        path, body = body_of(message, ask, facts)
        run.reading, run.sent_s = reading, clock()
        if ask.way == "none" and not ask.prompt:
            reading.end()  # there is nothing to go on from, which some servers refuse
            return reading
        try:
            if await server.stream(path, body, reading.take):
                reading.end()
        except AttemptFailed as failed:
            if reading.stop_reason is not None:
                return reading  # the text is whole; only the usage behind it may be missing
            is_unable = way == "infill" and failed.status == HTTPStatus.NOT_IMPLEMENTED
            if not is_unable or self._options.way != "auto":
                raise
            server.facts = replace(facts, has_infill=False)
            return await self._read(server, facts, run, "none", heal=heal)
        return reading

    def _entry(self, facts: Facts) -> ModelEntry | None:
        if self._options.template:
            return self._models.get(self._options.template)
        return find_entry(self._models, facts.model)

    async def _probe(self, server: Server) -> RequestError | None:
        try:
            await server.probe()
        except AttemptFailed as failed:
            server.breaker.fail(is_final=True)
            return failed.error
        return None

    def _remember(self, document: str, server: Server) -> None:
        self._last[document] = server
        self._last.move_to_end(document)
        while len(self._last) > MAX_DOCUMENTS:
            self._last.popitem(last=False)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
