"""Logs an exception that nobody expected by its kind and places, never by its message.

Messages of foreign exceptions quote what they stumbled over, which may be source text, and a
traceback ends with one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, Final

logger = logging.getLogger(__name__)

MAX_FRAMES: Final = 12
"""The innermost ones tell where it happened."""

MAX_CAUSES: Final = 4
"""So many exceptions of a chain are told, the last one first."""


class Formatter(logging.Formatter):
    """Lets no record of anybody's, our own or a library's, bring an exception's message."""

    def formatException(self, ei: Any) -> str:
        """Return kind and places."""
        return places_of(ei[1]) if ei[1] is not None else ""


def log_trouble(to: logging.Logger, what: str, error: BaseException | None = None) -> None:
    """Log what failed, the exception's type, and the places that it came by.

    Without one it is the exception that is being handled.
    """
    error = error or sys.exception()
    assert error is not None, "there is nothing to log"
    to.error("%s: %s", what, places_of(error))


def places_of(error: BaseException) -> str:
    """Return the types of an exception and of what led to it, each with its places."""
    return ", after ".join(map(_places, _chain(error)))


def take_over_threads() -> None:
    """Log what ends a thread; Python would write its message to standard error."""

    def log(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None:
            log_trouble(logger, "a thread ended", ended.exc_value)

    threading.excepthook = log


def take_over_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Log what nobody awaited; asyncio would log its message."""

    def log(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            # The message that comes with it shows what the callback was called with.
            log_trouble(logger, "a task or a callback failed", error)
        else:
            logger.error("%s", context.get("message"))

    loop.set_exception_handler(log)


def _chain(error: BaseException) -> Iterator[BaseException]:
    last: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if last is None:
            return
        yield last
        last = last.__cause__ or (None if last.__suppress_context__ else last.__context__)


def _places(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[::-1])
    return f"{type(error).__name__} at {places or '?'}"
