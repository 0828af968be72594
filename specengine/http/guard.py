"""Who may ask: the checks that every request passes before anything else looks at it.

A page in a browser must not reach a local engine. Reading answers is what the browser forbids it;
sending is not, so another ``Origin`` is refused here, and so is another ``Host``, which a name has
that was made to point to this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specengine.errors import Refused
from specengine.http.problems import MAX_HEAD_BYTES, answer_error

OPEN_PATHS: Final = frozenset({"/", "/health", "/v1/health"})
"""Without a key: what probes ask, and the page, which holds no data and asks for the key."""


@dataclass(frozen=True)
class Rules:
    """What is allowed at one address."""

    host: str = "127.0.0.1"
    """Where the door listens."""
    api_key: str = ""
    """Empty: none is needed."""

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine can connect."""
        return is_loopback(self.host)


class Guard:
    """ASGI middleware that refuses what the rules do not allow."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            _check_length(scope)
            check(self._rules, scope["path"], Headers(scope=scope))
        except Refused as error:
            await answer_error(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def check(rules: Rules, path: str, headers: Headers) -> None:
    """Raise Refused unless a request with these headers may be answered."""
    host = headers.get("host", "")
    # Beyond this machine a name may be anybody's; there every request needs the key.
    if rules.is_loopback and not _is_this_machine(host, rules.host):
        raise Refused(
            f"the host {host[:100]!a} is not this engine.",
            hint="Ask it as localhost or by its address.",
            reason="host_not_allowed",
            status=403,
        )
    origin = headers.get("origin")
    if origin is not None and not _is_same(origin, host):
        raise Refused(
            "pages of other origins may not use this engine.",
            reason="origin_not_allowed",
            status=403,
        )
    is_foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    if is_foreign and not (path == "/" and headers.get("sec-fetch-mode") == "navigate"):
        raise Refused(
            "other sites may not use this engine.", reason="origin_not_allowed", status=403
        )
    if rules.api_key and path not in OPEN_PATHS and not _has_key(headers, rules.api_key):
        raise Refused(
            "the API key is missing or wrong.",
            hint="Send it as Authorization: Bearer KEY.",
            reason="invalid_api_key",
            status=401,
        )


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own; a name must be ``localhost``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_length(scope: Scope) -> None:
    """Refuse a head that came at once and whole, and so was never too long an unfinished one."""
    num_bytes = len(scope["raw_path"]) + len(scope["query_string"])
    num_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > MAX_HEAD_BYTES:
        raise Refused(f"a head may have {MAX_HEAD_BYTES} bytes.", status=431)


def _is_same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_this_machine(header: str, own: str) -> bool:
    try:
        # As a URL's, so that ports, and brackets around IPv6, are taken off. Any port is right:
        # a tunnel may have another one than the door.
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name == own.lower()


def _has_key(headers: Headers, api_key: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    return hmac.compare_digest(given.strip().encode(), api_key.encode())
