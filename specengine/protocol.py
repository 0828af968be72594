"""The messages between an editor's language server and the engine, and their framing.

A frame is a 4-byte big-endian length and that many bytes of msgpack: one map whose ``type`` names
the message. Both sides begin with ``Hello``. This is the only file that knows wire types; it knows
no socket.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Final, Literal, TypeVar

import msgspec

from specengine.errors import ProtocolError

PROTOCOL_VERSION: Final = 4
"""Both sides must have the same; a difference ends the connection with a clear message."""

MAX_FRAME_BYTES: Final = 8 * 2**20
"""A longer frame ends the connection before its body is read."""

MAX_TEXT_CHARS: Final = 2 * 2**20
"""Longest prefix or suffix of a request."""

MAX_PROGRAM_CHARS: Final = 100
"""So much of a peer's name is shown."""

LENGTH: Final = struct.Struct(">I")
"""The four bytes before each body."""

T = TypeVar("T")


class CancelCause(StrEnum):
    """Who ended a request early, and why; ``Done`` repeats it for whoever reads the answer."""

    SUPERSEDED = "superseded"
    CLIENT = "client"
    DISCONNECT = "disconnect"
    SHUTDOWN = "shutdown"


class StopReason(StrEnum):
    """Why a completion ended."""

    END_TOKEN = "end_token"
    LENGTH = "length"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


class EngineState(StrEnum):
    """What the engine can do now."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """One frame; the tag is the class name in snake case."""


class Hello(_Message, frozen=True, tag="hello"):
    """First frame of both sides."""

    protocol: int
    """``PROTOCOL_VERSION`` of the sender."""
    program: str
    """Name and version, for the log."""
    token: str = ""
    """Secret of a TCP engine; empty on a Unix socket, whose peer is checked by user id."""


class SamplingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn; those at their defaults change nothing. See ``sampling.py``."""

    temperature: float = 0.0
    """0 is greedy."""
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    method: Literal["seeded", "rejection"] = "seeded"


class TokenLogprobs(msgspec.Struct, frozen=True):
    """What the model thought of a written token, before temperature and all other wishes."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens at its place, and their log-probabilities."""


class Complete(_Message, frozen=True, tag="complete"):
    """Ask for a continuation at a cursor. A newer one for the same document supersedes it."""

    request: int
    """Chosen by the client, unique in its connection."""
    document: str
    """Latest wins per document. Any string; never logged above DEBUG."""
    prefix: str
    """Text before the cursor, already trimmed."""
    suffix: str = ""
    """Text after the cursor, already trimmed; used by models that can fill in the middle."""
    max_tokens: int = 64
    sampling: SamplingOptions = SamplingOptions()
    stop: tuple[str, ...] = ()
    """Strings that end the text, and are not part of it."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the text, and are not part of it."""
    logprobs: int | None = None
    """If set, ``Done`` tells the log-probability of each token and of so many likeliest ones."""
    n: int = 1
    """So many completions, with the seeds from that of ``sampling`` on. The first is streamed."""
    drafter: str | None = None
    """Overrides the engine's drafter for this request."""
    heal: bool = True
    """Step back to a safe token boundary before the cursor."""
    files: tuple[tuple[str, str], ...] = ()
    """Other files, each a path and a text; used by models that have learnt to read them."""
    num_draft_tokens: int | None = None
    """Longest draft for this request, at most the engine's own; None is that."""
    is_ahead: bool = False
    """Nobody waits for it yet: it begins when nothing else runs, and any other request ends it."""
    language: str = ""
    """Of the text, as the editor names it; what pays in one may not in another."""


class Cancel(_Message, frozen=True, tag="cancel"):
    """End a request; its answer will say ``cancelled``."""

    request: int
    cause: CancelCause = CancelCause.CLIENT


class Stop(_Message, frozen=True, tag="stop"):
    """The text so far is enough; end the request with what is written."""

    request: int


class StatusQuery(_Message, frozen=True, tag="status_query"):
    """Ask for ``EngineStatus``, which also comes unasked when state or progress change."""


class Chunk(_Message, frozen=True, tag="chunk"):
    """Text that one pass has added. Chunks joined are the text of ``Done``."""

    request: int
    text: str


class TokenCounts(msgspec.Struct, frozen=True):
    """Where the tokens of one request went."""

    prompt: int = 0
    reused: int = 0
    """Prompt tokens whose KV was already there."""
    prefilled: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0


class PhaseTimes(msgspec.Struct, frozen=True):
    """Milliseconds by phase inside the engine."""

    queue: float = 0.0
    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    total: float = 0.0
    """From receipt of the frame to the answer."""


class Done(_Message, frozen=True, tag="done"):
    """The last frame of a request that did not fail."""

    request: int
    text: str
    token_ids: tuple[int, ...]
    """Committed tokens, healed ones first; the end token is not among them."""
    stop_reason: StopReason
    cause: CancelCause | None
    """Set exactly when ``stop_reason`` is ``cancelled``."""
    model: str
    drafter: str
    steps: int
    """Forward passes after prefill."""
    tokens: TokenCounts
    ms: PhaseTimes
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids``, if asked for."""
    alternatives: tuple[str, ...] = ()
    """The other completions, if more than one was asked for."""
    drafting: str = ""
    """How many drafts each drafter has made, and why there was none: ``suffix 7, no idea 3``."""


class Failed(_Message, frozen=True, tag="failed"):
    """The last frame of a request that failed; ``code`` names the class in errors.py."""

    request: int
    code: str
    what: str
    hint: str


class EngineStatus(_Message, frozen=True, tag="engine_status"):
    """What the engine is doing.

    Sent after ``Hello``, when asked, and on every change of state or progress, but not when only
    the numbers of requests change.
    """

    state: EngineState
    model: str
    drafter: str
    progress: float
    """Of loading, 0 to 1."""
    detail: str
    """One line for people: what is being loaded, or why loading failed."""
    active: int
    """Requests that are running."""
    waiting: int
    """Requests that wait."""
    prompt_tokens: int
    """Prompt tokens that the engine takes; a longer prefix is cut at its beginning."""
    reads_files: bool = False
    """Whether ``files`` of a request reach the model."""


ClientMessage = Hello | Complete | Cancel | Stop | StatusQuery
EngineMessage = Hello | Chunk | Done | Failed | EngineStatus

_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


def encode(message: ClientMessage | EngineMessage) -> bytes:
    """Return the frame of a message, length included.

    Raises:  ProtocolError when it is longer than ``MAX_FRAME_BYTES``, or holds an integer of more
        than 64 bits or half a surrogate pair.
    """
    try:
        body = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ProtocolError(f"a {type(message).__name__} cannot be sent: {error}.") from error
    check_length(len(body))
    return LENGTH.pack(len(body)) + body


def check_length(num_bytes: int) -> None:
    """Refuse a frame length outside 1 to ``MAX_FRAME_BYTES``."""
    if not 0 < num_bytes <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {num_bytes} bytes; allowed are 1 to {MAX_FRAME_BYTES}.")


def decode_from_client(body: bytes) -> ClientMessage:
    """Return the message in the body of a frame that a client sent."""
    return _decode(_client_decoder, body)


def decode_from_engine(body: bytes) -> EngineMessage:
    """Return the message in the body of a frame that the engine sent."""
    return _decode(_engine_decoder, body)


def check_hello(message: ClientMessage | EngineMessage) -> Hello:
    """Return the greeting, or refuse another first message or another protocol version."""
    if not isinstance(message, Hello):
        raise ProtocolError(f"the first frame must be hello, not {type(message).__name__}.")
    if message.protocol != PROTOCOL_VERSION:
        program = ascii(message.program[:MAX_PROGRAM_CHARS])[1:-1]
        raise ProtocolError(
            f"{program} speaks protocol {message.protocol}, this side {PROTOCOL_VERSION}.",
            hint="Restart the engine and the editor, so that both run the same version.",
        )
    return message


def _decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message of this protocol: {error}.") from error
