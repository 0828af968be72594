"""One server upstream: what it is, and one request to it.

Certificates are verified, redirects are not followed (a key would go along), answers are never
unpacked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httpx2
import msgspec

from specengine.errors import SettingsInvalid, UpstreamFailed
from specengine.upstream.breaker import Breaker
from specengine.upstream.counters import MAX_METRICS_BYTES, read_counters
from specengine.upstream.endpoint import is_loopback
from specengine.upstream.events import END, Event, EventReader, read_event
from specengine.upstream.failures import AttemptFailed, Progress, mapped, refused, retry_after_s
from specengine.upstream.options import UpstreamOptions

logger = logging.getLogger(__name__)

EVENT_STREAM: Final = "text/event-stream"
MAX_REPLY_BYTES: Final = 2**18
"""Of anything that is no stream: a list of models, an error."""

MAX_NAME_CHARS: Final = 100
"""So much of a name that a server has given is shown."""

CLOSING_S: Final = 0.1
"""Between the mark of the end and the end itself."""

USAGE_S: Final = 0.5
"""Between the end of the text and that mark: the tokens are told in it, and nothing is computed."""

COUNTERS_EVERY_S: Final = 5.0
KEEP_ALIVE_S: Final = 60.0


class ModelCard(msgspec.Struct, frozen=True):
    """One model of a server's list."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: Mapping[str, object] | None = None


class ModelList(msgspec.Struct, frozen=True):
    """Answer of ``/v1/models``."""

    data: tuple[ModelCard, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a server says of itself."""

    kind: str
    """``vllm``, ``sglang``, ``tensorrt_llm``, ``llamacpp``, ``library`` (Ollama), or another."""
    model: str
    """As requests must name it."""
    context_tokens: int
    """0 is unknown."""
    has_infill: bool = True
    """False once llama.cpp has said that its model knows no markers."""

    @property
    def short_model(self) -> str:
        """Its name without the folders that some servers put before it."""
        return plain(self.model.rstrip("/").rsplit("/", 1)[-1])


class Server:
    """A server and the connections to it; ``close`` it at the end."""

    def __init__(
        self, url: str, options: UpstreamOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = url
        self.name = url.partition("://")[2]
        self.facts: Facts | None = None
        self.breaker = Breaker(clock)
        self.active = 0
        """Requests that are running."""
        self.first_text_s = 0.0
        """A moving average."""
        self.counters: Mapping[str, float] = {}
        """Of its own speculation, as it last told them."""
        self._options = options
        self._clock = clock
        self._counters_at_s: float | None = None
        self._has_counters = True
        self._http = _http_client(url, options)

    async def close(self) -> None:
        """End all connections."""
        await self._http.aclose()

    async def probe(self) -> Facts:
        """Return what the server is; asked once, and again after a failure.

        Raises:  AttemptFailed.
        """
        if self.facts is None:
            status, body = await self._get("/v1/models", MAX_REPLY_BYTES)
            self.facts = self._read_facts(status, body)
            self._has_counters = True
            logger.info("%s is %s with %s", self.name, self.facts.kind, self.facts.short_model)
        return self.facts

    async def has_other_model(self) -> bool:
        """Ask it anew what it is; return whether requests must name another model now.

        Raises:  AttemptFailed.
        """
        known, self.facts = self.facts, None
        return known is not None and (await self.probe()).model != known.model

    async def stream(
        self, path: str, body: Mapping[str, object], on_event: Callable[[Event], bool]
    ) -> bool:
        """Send a request and hand on its events, until ``on_event`` says that it is enough.

        Leaving early, by cancellation too, closes the connection, which servers take as a cancel.
        Returns whether the server has marked the end; llama.cpp's own stream has no such mark.

        Raises:  AttemptFailed.
        """
        with mapped(self.name) as progress:
            timer = asyncio.timeout(self._options.limits.first_text_s)
            try:
                async with timer, self._post(path, body) as response:
                    await self._check_status(response)
                    _check_form(self.name, response)
                    await self._read_events(response, timer, progress, on_event)
            except TimeoutError:
                if not progress.is_over:
                    raise
        return progress.is_over

    async def _read_events(
        self,
        response: httpx2.Response,
        timer: asyncio.Timeout,
        progress: Progress,
        on_event: Callable[[Event], bool],
    ) -> None:
        reader, now = EventReader(), asyncio.get_running_loop().time
        gap_s = self._options.limits.gap_s
        async for received in response.aiter_raw():
            for data in reader.feed(received):
                if data == END:
                    # Only a connection that is read to its end can be used again.
                    progress.is_over = True
                    timer.reschedule(now() + CLOSING_S)
                    continue
                event = read_event(data)
                progress.has_text = progress.has_text or bool(event.text)
                if not on_event(event):
                    return
                if event.finish is not None:
                    gap_s = min(gap_s, USAGE_S)
                if progress.has_text or event.finish is not None:
                    timer.reschedule(now() + gap_s)

    async def refresh_counters(self) -> None:
        """Read what the server counts, not more often than makes sense; it need not have any."""
        now_s = self._clock()
        is_fresh = (
            self._counters_at_s is not None and now_s - self._counters_at_s < COUNTERS_EVERY_S
        )
        if is_fresh or not self._has_counters:
            return
        self._counters_at_s = now_s
        try:
            status, body = await self._get("/metrics", MAX_METRICS_BYTES)
        except AttemptFailed as failed:
            logger.info("%s: no metrics: %s", self.name, failed.error)
            return
        self._has_counters = status == HTTPStatus.OK
        self.counters = read_counters(body.decode(errors="replace")) if self._has_counters else {}

    def _post(
        self, path: str, body: Mapping[str, object]
    ) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
        headers = {"Content-Type": "application/json", "Accept": EVENT_STREAM}
        content = msgspec.json.encode(body)
        return self._http.stream("POST", self.url + path, content=content, headers=headers)

    async def _get(self, path: str, max_bytes: int) -> tuple[int, bytes]:
        """Return status and body.

        Raises:  AttemptFailed.
        """
        with mapped(self.name):
            async with (
                asyncio.timeout(self._options.limits.connect_s),
                self._http.stream("GET", self.url + path) as response,
            ):
                return response.status_code, await _read_body(self.name, response, max_bytes)

    async def _check_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status == HTTPStatus.OK:
            return
        body = await _read_body(self.name, response, MAX_REPLY_BYTES)
        raise refused(self.name, status, body, retry_after_s(response.headers.get("retry-after")))

    def _read_facts(self, status: int, body: bytes) -> Facts:
        wanted = self._options.model
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and wanted:
            return Facts("", wanted, 0)
        if status != HTTPStatus.OK:
            raise refused(self.name, status, body, None)
        try:
            cards = msgspec.json.decode(body, type=ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AttemptFailed(
                UpstreamFailed(f"{self.name} does not list its models as OpenAI's servers do."),
                may_retry=False,
            ) from error
        card = next((card for card in cards if card.id == wanted or not wanted), None)
        if card is None:
            near = ", ".join(plain(card.id) for card in cards[:8]) or "none"
            raise AttemptFailed(
                UpstreamFailed(
                    f"{self.name} has no model {wanted!r}.",
                    hint=f"Set upstream.model to one that it has: {near}.",
                ),
                may_retry=False,
            )
        size = card.max_model_len or (card.meta or {}).get("n_ctx")
        return Facts(plain(card.owned_by or ""), card.id, size if isinstance(size, int) else 0)


def plain(name: str) -> str:
    """Return a name that a server has given as it may stand in a log or on a screen."""
    return "".join(char for char in name if char.isprintable())[:MAX_NAME_CHARS]


def _http_client(url: str, options: UpstreamOptions) -> httpx2.AsyncClient:
    limits = options.limits
    return httpx2.AsyncClient(
        verify=_verification(options.ca_file),
        # The environment's proxies are for other machines.
        trust_env=not is_loopback(httpx2.URL(url).host),
        follow_redirects=False,
        headers={"Accept-Encoding": "identity", **options.key.header()},
        timeout=httpx2.Timeout(None, connect=limits.connect_s, pool=limits.connect_s),
        limits=httpx2.Limits(
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_connections,
            keepalive_expiry=KEEP_ALIVE_S,
        ),
    )


def _verification(ca_file: str) -> ssl.SSLContext | bool:
    if not ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an ssl.SSLError, for a file that is no certificate, is one too
        raise SettingsInvalid(
            f"upstream.caFile: {ca_file} cannot be read as certificates."
        ) from error


def _check_form(name: str, response: httpx2.Response) -> None:
    form = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if form == EVENT_STREAM and packing == "identity":
        return
    wrong = packing if form == EVENT_STREAM else form or "no type"
    shown = re.sub(r"[^a-z0-9/+. -]", "", wrong)[:80]
    raise AttemptFailed(
        UpstreamFailed(f"{name} answers with {shown}, not with plain {EVENT_STREAM}."),
        may_retry=False,
    )


async def _read_body(name: str, response: httpx2.Response, max_bytes: int) -> bytes:
    body = bytearray()
    async for received in response.aiter_raw():
        body += received
        if len(body) > max_bytes:
            raise UpstreamFailed(f"more than {max_bytes} bytes.")
    return bytes(body)
