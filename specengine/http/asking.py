"""One HTTP request as jobs of the engine, and what they write as it comes.

It knows no dialect: ``openai.py`` and ``llama.py`` turn bodies into ``Complete`` messages and what
is written here into answers. Leaving the context cancels whatever has not ended, so a connection
that closes ends its work within one forward pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from specengine import protocol
from specengine.engine import Facts, Status
from specengine.errors import RequestError, RequestInvalid
from specengine.protocol import CancelCause, Complete
from specengine.scheduler import Job, Key, Outcome
from specengine.settings import EngineSettings
from specengine.watch import Watch

logger = logging.getLogger(__name__)

HTTP_CLIENT: Final = 0
"""The client number of every request that comes by HTTP; the socket door counts from 1."""

MAX_JOBS: Final = 8
"""Completions of one request."""


class Answering(Protocol):
    """What the door needs of an engine."""

    @property
    def settings(self) -> EngineSettings:
        """Return its settings."""
        ...

    @property
    def watch(self) -> Watch:
        """Return what knows what is off."""
        ...

    @property
    def facts(self) -> Facts | None:
        """Return what it runs with, once it has loaded."""
        ...

    @property
    def model(self) -> str:
        """Return the target's name."""
        ...

    @property
    def status(self) -> Status:
        """Return what it is doing."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token writes."""
        ...

    def submit(self, job: Job) -> None:
        """Queue a request."""
        ...

    def cancel(self, key: Key, cause: CancelCause) -> None:
        """End a request within one forward pass."""
        ...

    def stop(self, key: Key) -> None:
        """End a request with what it has written."""
        ...


Part = tuple[int, str | Outcome]
"""Which of the jobs has written some text, or has ended."""


@dataclass
class Asked:
    """Some running jobs of one request."""

    keys: Sequence[Key]
    stop: Callable[[int], None]
    """End one with what it has written."""
    _parts: asyncio.Queue[tuple[int, str | Outcome | RequestError]] = field(
        default_factory=asyncio.Queue[tuple[int, str | Outcome | RequestError]]
    )
    open: set[int] = field(default_factory=set[int])
    """Those that have not ended."""

    async def parts(self) -> AsyncIterator[Part]:
        """Yield what each writes, and at last its outcome.

        Raises:  RequestError when one fails.
        """
        while self.open:
            number, part = await self._parts.get()
            if not isinstance(part, str):
                self.open.discard(number)
            if isinstance(part, RequestError):
                raise part
            yield number, part

    async def outcomes(self) -> list[Outcome]:
        """Return how all of them ended, in their order.

        Raises:  RequestError when one fails.
        """
        ended: dict[int, Outcome] = {}
        async for number, part in self.parts():
            if isinstance(part, Outcome):
                ended[number] = part
        return [ended[number] for number in range(len(self.keys))]

    def take(self, number: int, part: str | Outcome | RequestError) -> None:
        """Take what a job says."""
        self._parts.put_nowait((number, part))


class Desk:
    """Puts the requests of the door to the engine."""

    def __init__(self, engine: Answering) -> None:
        self.engine = engine
        self._numbers = itertools.count(1)
        self._warm_ups: set[Key] = set()

    @contextlib.contextmanager
    def asking(self, messages: Sequence[Complete], *, warms_up: bool = False) -> Generator[Asked]:
        """Start jobs; whichever has not ended when the context is left is cancelled.

        One that ``warms_up`` only reads a prompt, and ends for any other request.
        """
        check(messages)
        keys = [Key(HTTP_CLIENT, next(self._numbers)) for _ in messages]
        asked = Asked(keys, lambda number: self.engine.stop(keys[number]))
        asked.open.update(range(len(keys)))
        self._make_way(keys if warms_up else ())
        try:
            for number, (key, message) in enumerate(zip(keys, messages, strict=True)):
                self.engine.submit(_job(key, message, asked, number))
            yield asked
        finally:
            self._warm_ups.difference_update(keys)
            for number in asked.open:
                self.engine.cancel(keys[number], CancelCause.DISCONNECT)

    def _make_way(self, warm_ups: Sequence[Key]) -> None:
        for key in self._warm_ups:
            self.engine.cancel(key, CancelCause.SUPERSEDED)
        self._warm_ups = set(warm_ups)


def check(messages: Sequence[Complete]) -> None:
    """Refuse more completions, or longer texts, than one request may ask for.

    Raises:  RequestInvalid.
    """
    if not 1 <= len(messages) <= MAX_JOBS:
        raise RequestInvalid(
            f"the request asks for {len(messages)} completions; allowed are 1 to {MAX_JOBS}."
        )
    for message in messages:
        num_chars = len(message.prefix) + len(message.suffix)
        num_chars += sum(len(path) + len(text) for path, text in message.files)
        if num_chars > protocol.MAX_TEXT_CHARS:
            raise RequestInvalid(
                f"the texts have {num_chars} characters; allowed are {protocol.MAX_TEXT_CHARS}."
            )


def _job(key: Key, message: Complete, asked: Asked, number: int) -> Job:
    loop = asyncio.get_running_loop()

    def post(part: str | Outcome | RequestError) -> None:
        # Called on the engine's thread; the loop is closed when the process is on its way out.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(asked.take, number, part)

    def done(outcome: Outcome) -> None:
        logger.info("request h%d: %s", key.request, outcome.line)
        post(outcome)

    return Job(
        key=key,
        message=message,
        on_text=post,
        on_done=done,
        on_failed=post,
        received_at=time.perf_counter(),
    )
