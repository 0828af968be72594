"""The body of a request: read whole, within its limits, and decoded into a checked type."""

from __future__ import annotations

import asyncio
import re
from typing import Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from specengine.errors import Refused

MAX_BODY_BYTES: Final = 8 * 2**20
"""As much as a frame of the socket door."""

BODY_TIMEOUT_S: Final = 10.0
"""From the end of the head to the end of the body."""

FIELD: Final = re.compile(r"at `\$\.(\w+)")
"""Where msgspec says which field is wrong."""

T = TypeVar("T")


class PeerGone(Exception):
    """The peer has closed the connection; there is nobody to answer."""


async def read_json(scope: Scope, receive: Receive, form: type[T]) -> T:
    """Return the body as what it should be.

    Raises:  Refused when it is too long, too slow, no JSON, or has a field of a wrong type;
        PeerGone.
    """
    headers = Headers(scope=scope)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # Any page can send text or forms to any port; only what asks first can send this.
    if kind != "application/json":
        raise Refused(
            f"the content type is {kind[:80]!a}.", hint="Send application/json.", status=415
        )
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read(headers, receive)
    except TimeoutError:
        what = f"the body did not come within {BODY_TIMEOUT_S:g} s."
        raise Refused(what, status=408) from None
    try:
        given = msgspec.json.decode(body, type=dict[str, object])
        # To clients null means the default.
        return msgspec.convert({k: v for k, v in given.items() if v is not None}, form)
    except (msgspec.DecodeError, RecursionError) as error:
        field = FIELD.search(str(error))
        param = field.group(1) if field else ""
        raise Refused(f"the body is not usable: {error}.", param=param) from error


async def _read(headers: Headers, receive: Receive) -> bytes:
    too_long = Refused(f"a body may have {MAX_BODY_BYTES} bytes.", status=413)
    given = headers.get("content-length", "0")
    if given.isdecimal() and int(given) > MAX_BODY_BYTES:
        raise too_long
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise PeerGone
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > MAX_BODY_BYTES:
            raise too_long
        if not message.get("more_body", False):
            return b"".join(parts)


async def until_gone(receive: Receive) -> None:
    """Return when the peer has closed the connection, or has its whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
