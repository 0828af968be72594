"""Facts about frames and messages."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine import protocol
from specengine.errors import ProtocolError
from specengine.protocol import (
    LENGTH,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Cancel,
    CancelCause,
    Chunk,
    ClientMessage,
    Complete,
    Done,
    EngineMessage,
    EngineState,
    EngineStatus,
    Failed,
    Hello,
    PhaseTimes,
    SamplingOptions,
    StatusQuery,
    Stop,
    StopReason,
    TokenCounts,
    TokenLogprobs,
)
from specengine.sampling import GREEDY, Sampling

OPTIONS = SamplingOptions(0.5, 3, logit_bias={7: 1.5})
CLIENT_MESSAGES: list[ClientMessage] = [
    Hello(PROTOCOL_VERSION, "test", "secret"),
    Complete(
        1,
        "d",
        "x = ",
        "\n",
        8,
        OPTIONS,
        ("a",),
        (5,),
        2,
        3,
        "none",
        False,
        (("a.py", "x"),),
        4,
        True,
    ),
    Cancel(1, CancelCause.SUPERSEDED),
    Stop(1),
    StatusQuery(),
]
ENGINE_MESSAGES: list[EngineMessage] = [
    Hello(PROTOCOL_VERSION, "engine"),
    Chunk(1, "é😀"),
    Done(
        1, "a", (1, 2), StopReason.CANCELLED, CancelCause.CLIENT, "m", "d", 3,
        TokenCounts(1, 2, 3, 4, 5, 6), PhaseTimes(1.0, 2.0, 3.0, 4.0, 5.0),
        (TokenLogprobs(1, -0.5, ((1, -0.5),)),), ("b",),
    ),
    Failed(1, "engine_busy", "full.", "wait."),
    EngineStatus(EngineState.LOADING, "m", "d", 0.5, "reading", 1, 2, 4096, True),
]  # fmt: skip


def test_sampling_on_the_wire_has_the_fields_and_defaults_of_the_engine_s() -> None:
    options = msgspec.structs.asdict(SamplingOptions())
    assert Sampling(**{**options, "logit_bias": tuple(options["logit_bias"])}) == GREEDY


def body(frame: bytes) -> bytes:
    return frame[LENGTH.size :]


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=lambda m: type(m).__name__)
def test_message_of_a_client_arrives_as_it_was(message: ClientMessage):
    assert message == protocol.decode_from_client(body(protocol.encode(message)))


@pytest.mark.parametrize("message", ENGINE_MESSAGES, ids=lambda m: type(m).__name__)
def test_message_of_an_engine_arrives_as_it_was(message: EngineMessage):
    assert message == protocol.decode_from_engine(body(protocol.encode(message)))


def test_every_message_is_tested():
    for union, tested in ((ClientMessage, CLIENT_MESSAGES), (EngineMessage, ENGINE_MESSAGES)):
        assert set(typing.get_args(union)) == {type(message) for message in tested}


def test_frame_begins_with_its_length():
    frame = protocol.encode(Stop(1))
    assert LENGTH.unpack(frame[:4]) == (len(frame) - 4,)


@given(st.binary(max_size=60))
def test_any_other_bytes_are_refused(data: bytes):
    for decode in (protocol.decode_from_client, protocol.decode_from_engine):
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert body(protocol.encode(message)), "what is no error is a message"


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "stop"},
        {"type": "stop", "request": "1"},
        {"type": "stop", "request": 1, "more": 2},
        {"type": "chunk", "request": 1, "text": "a"},
        {"type": "unknown"},
        {"request": 1},
        [1],
    ],
)
def test_message_that_is_not_of_the_client_is_refused(wrong: object):
    with pytest.raises(ProtocolError, match="not a message"):
        protocol.decode_from_client(msgspec.msgpack.encode(wrong))


def test_deeply_nested_frame_is_refused():
    with pytest.raises(ProtocolError):
        protocol.decode_from_client(b"\x81\xa1x" * 100_000)


@pytest.mark.parametrize("num_bytes", [0, MAX_FRAME_BYTES + 1])
def test_frame_length_has_limits(num_bytes: int):
    with pytest.raises(ProtocolError, match="allowed are 1 to"):
        protocol.check_length(num_bytes)


def test_message_that_is_too_long_is_not_sent():
    with pytest.raises(ProtocolError):
        protocol.encode(Chunk(1, "x" * MAX_FRAME_BYTES))


@pytest.mark.parametrize("message", [Chunk(1, "a\ud800"), Stop(2**64), Stop(-(2**63) - 1)])
def test_value_that_a_frame_cannot_hold_is_refused(message: EngineMessage | ClientMessage):
    with pytest.raises(ProtocolError, match="cannot be sent"):
        protocol.encode(message)


def test_name_of_a_peer_is_escaped_and_cut():
    """It goes into the log, and is not trusted."""
    with pytest.raises(ProtocolError) as caught:
        protocol.check_hello(Hello(PROTOCOL_VERSION + 1, "a\n\x1b[31m" + "b" * 10_000))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_greeting_comes_first_and_in_our_version():
    hello = Hello(PROTOCOL_VERSION, "test")
    assert protocol.check_hello(hello) is hello
    with pytest.raises(ProtocolError, match="not Stop"):
        protocol.check_hello(Stop(1))
    with pytest.raises(ProtocolError, match="Restart the engine and the editor"):
        protocol.check_hello(Hello(PROTOCOL_VERSION + 1, "test"))
