"""From a dialect to an endpoint: read a body, answer whole or as a stream, stop if nobody hears."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from specengine.errors import InternalFault, Refused, RequestError
from specengine.http.body import PeerGone, read_json, until_gone
from specengine.http.problems import NOTHING_SNIFFED, answer_error, answer_json
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)


class Body(Protocol):
    """What every body says."""

    @property
    def stream(self) -> bool:
        """Return whether the answer is wanted piece by piece."""
        ...


B = TypeVar("B", bound=Body)
B_in = TypeVar("B_in", bound=Body, contravariant=True)


class Dialect(Protocol[B_in]):
    """How a kind of body is answered."""

    async def answer(self, body: B_in) -> object:
        """Return what becomes the JSON of the answer."""
        ...

    def stream(self, body: B_in) -> AsyncGenerator[bytes]:
        """Yield server-sent events."""
        ...


@dataclass(frozen=True)
class Endpoint(Generic[B]):
    """One path, as an ASGI application."""

    dialect: Dialect[B]
    form: type[B]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body = await read_json(scope, receive, self.form)
        except PeerGone:
            return
        except (RequestError, Refused) as error:
            await answer_error(error)(scope, receive, send)
            return
        await _while_connected(receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: B, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if body.stream:
                await _send_stream(self.dialect.stream(body), send)
            else:
                response = answer_json(await self.dialect.answer(body))
                await response(scope, receive, send)
        except (RequestError, Refused) as error:
            await answer_error(error)(scope, receive, send)
        except Exception:
            log_trouble(logger, "an HTTP request failed")
            fault = InternalFault("the door failed on this request.", hint="See the engine's log.")
            await answer_error(fault)(scope, receive, send)


async def _send_stream(events: AsyncGenerator[bytes], send: Send) -> None:
    """Send events as they come; an error before the first one becomes a status of its own."""
    async with contextlib.aclosing(events):
        first = await anext(events)
        headers = {**NOTHING_SNIFFED, "content-type": "text/event-stream; charset=utf-8"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception:
            # The status is out. An answer that does not end is closed by the server.
            log_trouble(logger, "a stream failed")
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, and break it off when the peer closes the connection."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone(receive))
    try:
        # The end of the answer is told as a closed connection; then the work is done, too.
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.wait({working, gone})
    if not working.cancelled():
        working.result()
