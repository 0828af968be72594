"""The other side of `peer_process.py`: a process that holds one contestant and does as it is told.

It imports the engine that it is to hold and no other: each costs memory and seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from specengine.bench.contestants import Peer
from specengine.bench.peer_process import Ask, Recipe, Reply
from specengine.errors import SpecEngineError

WARM_UP: Final = (0,) * 40
"""Tokens of the prompt that each contestant continues once: the first call of a shape is slow."""


@dataclass(frozen=True)
class Seat:
    """A contestant that is ready."""

    contestant: Peer
    build: str
    """What its engine was compiled to use."""
    pid: int | None = None
    """Of the process that holds the weights; None is this one."""


def serve(seat: Seat, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer line by line until there are no more."""
    seat.contestant.write(WARM_UP, 8)
    _send(sink, Reply(build=seat.build))
    for line in source:
        _send(sink, _answer(seat, msgspec.json.decode(line, type=Ask)))


@contextmanager
def seated(recipe: Recipe) -> Generator[Seat]:
    """Set up a contestant; what it has started ends with the block.

    Raises:  SpecEngineError.
    """
    if recipe.engine == "specengine":
        yield _own(recipe)
    elif recipe.engine == "transformers":
        yield _transformers(recipe)
    else:
        from specengine.bench.llama_cpp import serving

        with serving(recipe) as (contestant, build, pid):
            yield Seat(contestant, build, pid)


def peak_bytes(pid: int | None = None) -> int | None:
    """Return the most memory that a process, or this one, has held resident; files count too."""
    # Not getrusage: a new process begins there with the peak of the one that started it.
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text("utf-8")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def main() -> None:
    """Serve the contestant that the command line describes."""
    recipe = msgspec.json.decode(sys.argv[1], type=Recipe)
    # Lines of the protocol go out alone: whatever else a library prints joins its errors.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        with seated(recipe) as seat:
            serve(seat, sys.stdin.buffer, sink)
    except SpecEngineError as error:
        _send(sink, Reply(error=str(error)))
    except KeyboardInterrupt:
        sys.exit(130)


def _answer(seat: Seat, ask: Ask) -> Reply:
    try:
        if ask.what == "write":
            return Reply(written=seat.contestant.write(ask.prompt_ids, ask.num_tokens))
        if ask.what == "resume":
            return Reply(ms=seat.contestant.resume_ms(ask.prompt_ids))
        return Reply(peak_bytes=peak_bytes(seat.pid))
    except SpecEngineError as error:
        return Reply(error=str(error))


def _send(sink: BinaryIO, reply: Reply) -> None:
    sink.write(msgspec.json.encode(reply) + b"\n")
    sink.flush()


def _own(recipe: Recipe) -> Seat:
    from specengine.bench.own import OwnContestant, compiled_for, load_own
    from specengine.bench.workloads import NUM_TOKENS
    from specengine.models.staging import no_progress
    from specengine.settings import EngineSettings

    settings = msgspec.convert(
        {
            "model": recipe.model,
            "precision": recipe.precision,
            "device": "cpu",
            "threads": recipe.threads,
            "prompt_tokens": recipe.context_tokens - 2 * NUM_TOKENS,
            "max_tokens": NUM_TOKENS,
        },
        EngineSettings,
    )
    assert settings.context_tokens <= recipe.context_tokens, "the same room for all"
    own = load_own(settings, no_progress)
    return Seat(OwnContestant(own, recipe.drafter), compiled_for(own.models.target))


def _transformers(recipe: Recipe) -> Seat:
    import torch

    from specengine.bench.peers import (
        LOOKUP_TOKENS,
        TransformersContestant,
        load_transformers,
        lookup_name,
    )

    torch.set_num_threads(recipe.threads)
    model = load_transformers(Path(recipe.model), recipe.precision)
    assistant = None
    if recipe.draft_model:
        assistant = load_transformers(Path(recipe.draft_model), recipe.precision)
    lookup_tokens = LOOKUP_TOKENS if recipe.drafter == lookup_name(LOOKUP_TOKENS) else 0
    contestant = TransformersContestant(model, lookup_tokens, assistant=assistant)
    return Seat(contestant, f"torch {torch.backends.cpu.get_cpu_capability()}")


if __name__ == "__main__":
    main()
