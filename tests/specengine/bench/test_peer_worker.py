from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from specengine.bench.contestants import Written
from specengine.bench.peer_process import Ask, PeerProcess, Recipe, Reply
from specengine.bench.peer_worker import Seat, peak_bytes, seated, serve
from specengine.errors import EngineUnavailable, LoadError
from tests.specengine.tiny import save_tiny_model

WRITTEN = Written((5,), 3, 1.0, 0.0, 0, 0, 0, 0)


class FakePeer:
    engine = "llama.cpp"
    drafter = "none"

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        self.calls.append((len(prompt_ids), num_tokens))
        return WRITTEN

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        if not prompt_ids:
            raise EngineUnavailable("nothing to read.")
        return 2.0


def replies(seat: Seat, *asked: Ask) -> list[Reply]:
    source = io.BytesIO(b"".join(msgspec.json.encode(ask) + b"\n" for ask in asked))
    sink = io.BytesIO()
    serve(seat, source, sink)
    return [msgspec.json.decode(line, type=Reply) for line in sink.getvalue().splitlines()]


def test_worker_is_ready_when_it_has_written_once() -> None:
    peer = FakePeer()
    assert replies(Seat(peer, "fake")) == [Reply(build="fake")]
    assert peer.calls == [(40, 8)]


def test_worker_answers_each_line_and_an_error_ends_nothing() -> None:
    asked = [Ask("resume"), Ask("write", (1, 2, 3), 1), Ask("resume", (1, 2)), Ask("peak")]
    first, failed, written, resumed, peak = replies(Seat(FakePeer(), ""), *asked)
    assert first == Reply()
    assert failed == Reply(error="nothing to read.")
    assert written == Reply(written=WRITTEN)
    assert resumed == Reply(ms=2.0)
    assert peak.peak_bytes == peak_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_peak_memory_is_that_of_the_process_asked_for() -> None:
    assert peak_bytes() == peak_bytes(os.getpid())
    assert (peak_bytes() or 0) > 10_000_000
    assert peak_bytes(2**22 + 1) is None


def test_own_engine_gets_the_room_that_all_get(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    recipe = Recipe("specengine", "float32", "suffix", str(folder), 1, 512)
    with seated(recipe) as seat:
        written = seat.contestant.write([7, 8, 9] * 20, 16)
        assert seat.contestant.resume_ms([7, 8, 9] * 20) > 0
    assert len(written.token_ids) == 16
    assert seat.build.startswith("torch ")
    assert (seat.contestant.engine, seat.contestant.drafter) == ("specengine", "suffix")


def test_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    recipe = Recipe("specengine", "int8", "none", str(tmp_path), 1, 512)
    with pytest.raises(LoadError, match=r"config\.json is missing"), seated(recipe):
        pass


@pytest.mark.e2e
def test_real_process_writes_as_the_engine_in_this_one(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    recipe = Recipe("specengine", "float32", "none", str(folder), 1, 512)
    with seated(recipe) as seat:
        expected = seat.contestant.write([7, 8, 9] * 20, 16).token_ids
    peer = PeerProcess(recipe)
    try:
        assert peer.write([7, 8, 9] * 20, 16).token_ids == expected
        assert peer.start_up_s > 0
        if sys.platform == "linux":
            assert (peer.peak_bytes() or 0) > 50_000_000
    finally:
        peer.close()
