"""Processes here are a few lines of Python that know the protocol, not engines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import pytest

from specengine.bench.peer_process import PeerProcess, Recipe, worker_command
from specengine.errors import EngineUnavailable

RECIPE = Recipe("llama.cpp", "Q4_1", "none", "/model.gguf", 2, 512)
HEAD = 'import sys\nprint(\'{"build":"fake"}\', flush=True)\n'
WRITTEN = (
    '{"written":{"token_ids":[5,6],"num_prompt":3,"prefill_ms":1.5,"decode_ms":2.5,'
    '"num_decoded":1,"passes":1,"drafted":0,"accepted":0}}'
)


def command(program: str) -> Sequence[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def answering(*lines: str) -> PeerProcess:
    """Return a process that answers with these lines, whatever it is asked."""
    program = HEAD + f"for line, _ in zip({list(lines)!r}, sys.stdin): print(line, flush=True)"
    return PeerProcess(RECIPE, command(program))


def test_answers_come_in_the_order_of_what_is_asked() -> None:
    peer = answering(WRITTEN, '{"ms":7.5}', '{"peak_bytes":1000}', "{}")
    written = peer.write([1, 2, 3], 2)
    assert (written.token_ids, written.prefill_ms, written.num_decoded) == ((5, 6), 1.5, 1)
    assert peer.resume_ms([1, 2, 3]) == 7.5
    assert peer.peak_bytes() == 1000
    assert peer.peak_bytes() is None
    peer.close()
    assert (peer.engine, peer.drafter, peer.build) == ("llama.cpp", "none", "fake")


def test_start_up_ends_with_the_first_line() -> None:
    ticks = iter([10.0, 12.5])
    peer = PeerProcess(RECIPE, command(HEAD), clock=lambda: next(ticks))
    peer.close()
    assert peer.start_up_s == 2.5


def test_process_that_ends_is_told_of_with_its_last_words() -> None:
    program = HEAD + "sys.stdin.readline()\nsys.exit('no memory for that.\\n\\n')"
    peer = PeerProcess(RECIPE, command(program))
    for _ in range(2):  # in the middle of a question, and before it
        with pytest.raises(EngineUnavailable, match=r"Q4_1.*ended: no memory for that\.$"):
            peer.write([1], 1)
    peer.close()


def test_process_that_does_not_start_says_why() -> None:
    with pytest.raises(EngineUnavailable, match="no such model"):
        PeerProcess(RECIPE, command('print(\'{"error":"no such model."}\')'))
    with pytest.raises(EngineUnavailable, match="it said nothing"):
        PeerProcess(RECIPE, command(""))


def test_question_that_fails_leaves_the_process_for_others() -> None:
    peer = answering('{"error":"too long."}', '{"ms":1.0}')
    with pytest.raises(EngineUnavailable, match="Q4_1, drafter none: too long"):
        peer.resume_ms([1])
    assert peer.resume_ms([1]) == 1.0
    peer.close()


def test_text_of_another_length_is_refused() -> None:
    peer = answering(WRITTEN)
    with pytest.raises(EngineUnavailable, match="wrote 2 of 3 tokens"):
        peer.write([1, 2, 3], 3)
    peer.close()


def test_process_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specengine.bench.peer_process.END_S", 0.0)
    peer = PeerProcess(RECIPE, command(HEAD + "while True: sys.stdin.readline()"))
    peer.close()


def test_recipe_travels_on_the_command_line() -> None:
    *words, text = worker_command(RECIPE)
    assert words == [sys.executable, "-P", "-m", "specengine.bench.peer_worker"]
    assert msgspec.json.decode(text, type=Recipe) == RECIPE
