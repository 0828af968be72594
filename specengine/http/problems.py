"""Errors as HTTP tells them: a status and OpenAI's JSON shape, which all our clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from specengine.errors import (
    EngineBusy,
    EngineFailed,
    InternalFault,
    PromptTooLong,
    Refused,
    RequestError,
)

STATUS: Final[Mapping[type[RequestError], tuple[int, str]]] = {
    PromptTooLong: (400, "invalid_request_error"),
    EngineBusy: (429, "rate_limit_error"),
    EngineFailed: (503, "service_unavailable_error"),
    InternalFault: (500, "server_error"),
}
"""Status and type of what is not simply an invalid request."""

MAX_HEAD_BYTES: Final = 16 * 2**10
"""Request line and headers; longer ones are refused."""

NOTHING_SNIFFED: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


def answer_json(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return compact JSON: llama.vim takes no answer with a blank behind a colon."""
    return Response(
        msgspec.json.encode(content),
        status,
        {**NOTHING_SNIFFED, **(headers or {})},
        "application/json",
    )


def answer_error(error: RequestError | Refused) -> Response:
    """Return an error as a response."""
    status, _ = _status(error)
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 429:
        headers["retry-after"] = "1"
    return answer_json(error_body(error), status, headers)


def error_body(error: RequestError | Refused) -> dict[str, object]:
    """Return the JSON of an error; inside a stream it is one more event."""
    _, kind = _status(error)
    reason, param = error.code, ""
    if isinstance(error, Refused):
        reason, param = error.reason, error.param
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "param": param or None,
            "code": reason or None,
        }
    }


def _status(error: RequestError | Refused) -> tuple[int, str]:
    if isinstance(error, Refused):
        kinds = {401: "authentication_error", 403: "permission_error", 503: "server_error"}
        return error.status, kinds.get(error.status, "invalid_request_error")
    return STATUS.get(type(error), (400, "invalid_request_error"))
