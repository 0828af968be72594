"""A contestant in a process of its own, so that its start-up and its memory are its own.

The process (`peer_worker.py`) is asked in lines of JSON, one after the other, and answers each with
one. It says whom it holds, never what: no engine is imported here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from specengine.bench.contestants import Written
from specengine.errors import EngineUnavailable

EngineName = Literal["specengine", "transformers", "llama.cpp"]

END_S: Final = 30.0
"""A process that was told to end gets so long."""


class Recipe(msgspec.Struct, frozen=True):
    """All that a process needs to set up one contestant."""

    engine: EngineName
    precision: str
    drafter: str
    """As rows call it; ``none`` is plain decoding."""
    model: str
    """Its folder, or its GGUF file for llama.cpp."""
    threads: int
    context_tokens: int
    """Positions that it must have room for."""
    draft_model: str = ""
    """Folder of the model that drafts, where one does."""
    binary: str = ""
    """Program that serves for llama.cpp; empty is the Python package."""

    def __str__(self) -> str:
        """Return what tells this contestant from the others."""
        return f"{self.engine}, {self.precision}, drafter {self.drafter}"


class Ask(msgspec.Struct, frozen=True):
    """A line to the process."""

    what: Literal["write", "resume", "peak"]
    prompt_ids: tuple[int, ...] = ()
    num_tokens: int = 0


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line from the process; it holds what was asked for. The first says that it is ready."""

    build: str = ""
    """What the engine was compiled to use; in the first line."""
    written: Written | None = None
    ms: float | None = None
    peak_bytes: int | None = None
    """None where the system does not tell."""
    error: str = ""
    """Why there is no answer."""


class PeerProcess:
    """The process of one contestant, from its start to its end."""

    def __init__(
        self,
        recipe: Recipe,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start it, and wait until it has answered a first short prompt.

        Raises:  EngineUnavailable saying why it did not start.
        """
        self.recipe = recipe
        self.engine = recipe.engine
        self.drafter = recipe.drafter
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        started = clock()
        self._process = subprocess.Popen(
            command or worker_command(recipe),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self.build = self._reply().build
        except BaseException:
            self.close()
            raise
        self.start_up_s = clock() - started

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        """Continue a prompt by exactly so many tokens.

        Raises:  EngineUnavailable when the process cannot, or has ended.
        """
        written = self._ask(Ask("write", tuple(prompt_ids), num_tokens)).written
        assert written is not None, "the worker answers what it is asked"
        if len(written.token_ids) != num_tokens:
            num_written = len(written.token_ids)
            raise EngineUnavailable(f"{self.recipe} wrote {num_written} of {num_tokens} tokens.")
        return written

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        """Return how long the first token takes when all but the last of the prompt is stored.

        Raises:  EngineUnavailable when the process cannot, or has ended.
        """
        ms = self._ask(Ask("resume", tuple(prompt_ids))).ms
        assert ms is not None, "the worker answers what it is asked"
        return ms

    def peak_bytes(self) -> int | None:
        """Return the most memory that the process has held so far, if the system tells.

        Raises:  EngineUnavailable when the process has ended.
        """
        return self._ask(Ask("peak")).peak_bytes

    def close(self) -> None:
        """End the process."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # where it ended before it had read all
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()
            self._log.close()

    def _ask(self, ask: Ask) -> Reply:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(ask) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._reply()

    def _reply(self) -> Reply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        reply = msgspec.json.decode(line, type=Reply)
        if reply.error:
            raise EngineUnavailable(f"{self.recipe}: {reply.error}")
        return reply

    def _ended(self) -> EngineUnavailable:
        """Return an error with the last that the process said."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return EngineUnavailable(f"{self.recipe}: its process ended: {last.rstrip('.')}.")


def worker_command(recipe: Recipe) -> list[str]:
    """Return the command line of the process."""
    # -P: the folder that the user stands in is none to import from.
    words = [sys.executable, "-P", "-m", "specengine.bench.peer_worker"]
    return [*words, msgspec.json.encode(recipe).decode()]
