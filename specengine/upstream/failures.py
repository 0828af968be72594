"""What the failures of a request to a server upstream mean, and whether to ask again.

Of what a server says about an error only names of letters are repeated: the rest may hold source
text, or the key. What httpx and ssl raise ends here.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import ssl
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httpx2

from specengine.errors import (
    EngineBusy,
    PromptTooLong,
    RequestError,
    RequestInvalid,
    UpstreamFailed,
)

MAX_REST_S: Final = 300.0
"""Longest pause that a server can ask for."""


RETRIED: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which the same request may go well."""

_NAME: Final = re.compile(rb'"(?:type|code)"\s*:\s*"([A-Za-z_]{1,64})"')
_TOO_LONG: Final = re.compile(rb"exceed_context_size|context_length_exceeded|context length")


class AttemptFailed(Exception):
    """One request to one server came to nothing; internal to this package."""

    def __init__(
        self,
        error: RequestError,
        *,
        may_retry: bool,
        rest_s: float = 0.0,
        is_fault: bool = True,
        status: int = 0,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_retry = may_retry
        self.rest_s = rest_s
        """Before another request, by the server's own wish."""
        self.is_fault = is_fault
        """Whether it speaks against the server's health."""
        self.status = status
        """Of HTTP; 0 if it did not come to that."""


@dataclass
class Progress:
    """How far an answer has come."""

    has_text: bool = False
    is_over: bool = False
    """The server has said so."""


def retry_after_s(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds that a Retry-After header asks for, at most ``MAX_REST_S``.

    Source:  RFC 9110, section 10.2.3: a number of seconds, or a date.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(MAX_REST_S, float(text))
    try:
        seconds = email.utils.parsedate_to_datetime(text).timestamp() - now()
    except (ValueError, OverflowError):
        return None
    return min(MAX_REST_S, max(0.0, seconds))


@contextlib.contextmanager
def mapped(name: str) -> Generator[Progress]:
    """Turn what can go wrong on the way into AttemptFailed."""

    def failed(what: str, *, hint: str = "", may_retry: bool = True) -> AttemptFailed:
        return AttemptFailed(
            UpstreamFailed(f"{name} {what}.", hint=hint),
            may_retry=may_retry and not progress.has_text,
        )

    progress = Progress()
    try:
        yield progress
    except UpstreamFailed as error:
        raise failed(f"sent {error.what.rstrip('.')}") from error
    except UnicodeEncodeError as error:
        invalid = RequestInvalid("the text holds half a surrogate pair, which cannot be sent.")
        raise AttemptFailed(invalid, may_retry=False, is_fault=False) from error
    except TimeoutError as error:
        what = (
            "stopped in the middle of its answer" if progress.has_text else "did not answer in time"
        )
        raise failed(what) from error
    except httpx2.PoolTimeout as error:
        busy = EngineBusy(f"all connections to {name} are in use.")
        raise AttemptFailed(busy, may_retry=True, is_fault=False) from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        if isinstance(_root(error), ssl.SSLError):
            hint = "Name the authority's file in upstream.caFile if it is one of your own."
            raise failed(
                "has a certificate that cannot be verified", hint=hint, may_retry=False
            ) from error
        raise failed("cannot be reached") from error
    except httpx2.HTTPError as error:
        raise failed(f"broke the connection off ({type(error).__name__})") from error


def refused(name: str, status: int, body: bytes, rest_s: float | None) -> AttemptFailed:
    """Return what an answer with another status than 200 means."""
    found = _NAME.search(body)
    said = f" ({found[1].decode()})" if found else ""
    what = f"{name} answers {status}{said}."
    if 300 <= status < 400:
        hint = "Redirects are not followed; set upstream.urls to where it leads."
        return AttemptFailed(UpstreamFailed(what, hint=hint), may_retry=False)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        hint = "It wants a key, or another: see upstream.keyVariable."
        return AttemptFailed(UpstreamFailed(what, hint=hint), may_retry=False)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return AttemptFailed(EngineBusy(what), may_retry=True, rest_s=rest_s or 0.0, is_fault=False)
    if status in RETRIED:
        return AttemptFailed(UpstreamFailed(what), may_retry=True, rest_s=rest_s or 0.0)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or _TOO_LONG.search(body):
        error = PromptTooLong(what, hint="Lower context.maxPromptTokens.")
        return AttemptFailed(error, may_retry=False, is_fault=False)
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return AttemptFailed(RequestInvalid(what), may_retry=False, is_fault=False)
    hint = "Check upstream.urls, upstream.model and upstream.fim."
    return AttemptFailed(UpstreamFailed(what, hint=hint), may_retry=False, status=status)


def _root(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        if isinstance(error, ssl.SSLError):
            break
        error = cause
    return error
