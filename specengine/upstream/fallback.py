"""The local engine, for when no server upstream answers; started when first needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from specengine.client import EngineClient
from specengine.errors import EngineUnavailable
from specengine.protocol import CancelCause, Done, EngineStatus
from specengine.upstream.run import Run

OpenLocal = Callable[[], Awaitable[EngineClient]]


class Fallback:
    """Asks the local engine; keeps the connection until ``close``."""

    def __init__(self, open_local: OpenLocal, on_status: Callable[[EngineStatus], None]) -> None:
        self._open_local = open_local
        self._on_status = on_status
        self._client: EngineClient | None = None
        self._opening: asyncio.Task[EngineClient] | None = None
        self._numbers: dict[int, int] = {}
        """The engine's request by ours."""

    async def answer(self, run: Run) -> Done:
        """Have the engine answer.

        Raises:  SpecEngineError.
        """
        client = await self._connected()
        number = client.next_request()
        ours = run.message.request
        self._numbers[ours] = number
        if client.status is not None:
            self._take_status(client.status)
        try:
            message = msgspec.structs.replace(run.message, request=number)
            async with contextlib.aclosing(client.complete(message)) as answers:
                async for answer in answers:
                    if isinstance(answer, Done):
                        return msgspec.structs.replace(answer, request=ours)
                    run.write(answer.text)
        finally:
            del self._numbers[ours]
        raise EngineUnavailable("the local engine ended without an answer.")

    def stop(self, request: int) -> bool:
        """Tell the engine that the text is enough; return whether it writes that request."""
        number = self._numbers.get(request)
        if number is None or self._client is None:
            return False
        self._client.stop(number)
        return True

    def cancel(self, request: int, cause: CancelCause) -> None:
        """Tell the engine why a request ends; leaving ``answer`` would end it too."""
        number = self._numbers.get(request)
        if number is not None and self._client is not None:
            self._client.cancel(number, cause)

    async def close(self) -> None:
        """End the connection; the engine stays."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._client is not None:
            await self._client.close()

    def _take_status(self, status: EngineStatus) -> None:
        if self._numbers:  # else a server upstream answers
            self._on_status(status)

    async def _connected(self) -> EngineClient:
        if self._client is not None and self._client.is_connected:
            return self._client
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(), name="open-local-engine")
        # Whoever waits may be cancelled by the next key; the start goes on for that.
        return await asyncio.shield(self._opening)

    async def _open(self) -> EngineClient:
        self._client = await self._open_local()
        self._client.on_status = self._take_status
        return self._client
