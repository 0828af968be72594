"""What a server streams: bytes to server-sent events, and those to checked values.

One form covers OpenAI's completions and llama.cpp's own; unknown fields are left alone. Nothing
that a server sends may grow without a limit.

Source:  the event stream of the HTML standard, section 9.2; a line ends with LF or CR LF.
"""

from __future__ import annotations

from typing import Final

import msgspec

from specengine.errors import UpstreamFailed

MAX_LINE_BYTES: Final = 2**20
"""llama.cpp's last event repeats the prompt; every other line is short."""

MAX_STREAM_BYTES: Final = 8 * 2**20
"""Of one answer, with all that surrounds its text."""

END: Final = b"[DONE]"
"""What OpenAI's servers send last."""


class Delta(msgspec.Struct, frozen=True):
    """New text, where a server speaks as if it chatted."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """New text of one completion."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class CachedTokens(msgspec.Struct, frozen=True):
    """Part of the usage."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request, as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp's own measurements, and our engine's; milliseconds and tokens."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a stream."""

    choices: tuple[Choice, ...] = ()
    content: str | None = None
    stop: bool | None = None
    stop_type: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: object = None

    @property
    def text(self) -> str:
        """The new text, in whichever form it came."""
        if not self.choices:
            return self.content or ""
        choice = self.choices[0]
        return choice.text or (choice.delta and choice.delta.content) or ""

    @property
    def finish(self) -> str | None:
        """Why the text ends here; None while it goes on."""
        if self.choices:
            return self.choices[0].finish_reason or None
        return (self.stop_type or "stop") if self.stop else None


_decoder: Final = msgspec.json.Decoder(Event)


class EventReader:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._num_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that these bytes complete.

        Raises:  UpstreamFailed for a line or a stream that is too long.
        """
        self._num_bytes += len(received)
        if self._num_bytes > MAX_STREAM_BYTES:
            raise UpstreamFailed(f"an answer of more than {MAX_STREAM_BYTES} bytes.")
        *lines, rest = received.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._take(line)
            self._end_line(events)
        self._take(rest)
        return events

    def _take(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > MAX_LINE_BYTES:
            raise UpstreamFailed(f"a line of more than {MAX_LINE_BYTES} bytes.")

    def _end_line(self, events: list[bytes]) -> None:
        line = bytes(self._line).removesuffix(b"\r")
        self._line.clear()
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
            return
        name, _, value = line.partition(b":")
        # Old llama.cpp servers report what goes wrong in a field of their own.
        if name in (b"data", b"error"):
            self._data.append(value.removeprefix(b" "))


def read_event(data: bytes) -> Event:
    """Return the event that some data describes.

    Raises:  UpstreamFailed for what is none, and for an error that the server reports.
    """
    try:
        event = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed("an event that is no completion.") from error
    if event.error is not None:
        raise UpstreamFailed("an error in the middle of its answer.")
    return event
