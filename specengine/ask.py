"""One completion at a place of a file, through the same door that the language server uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specengine.errors import EngineUnavailable, RequestInvalid
from specengine.launch import EngineCommand, Launcher
from specengine.protocol import Complete, Done, EngineState, EngineStatus


@dataclass(frozen=True)
class Place:
    """A cursor in a file; line and column count from 1, columns in characters."""

    path: Path
    line: int
    column: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that ``PATH:LINE:COLUMN`` names.

        Raises:  RequestInvalid when it does not have that form.
        """
        path, _, rest = text.rpartition(":")
        path, _, line = path.rpartition(":")
        if not (path and line.isdecimal() and rest.isdecimal() and int(line) and int(rest)):
            raise RequestInvalid(f"{text!r} is not PATH:LINE:COLUMN.", hint="Both count from 1.")
        return cls(Path(path), int(line), int(rest))

    def split(self) -> tuple[str, str]:
        """Return the text before and after the place.

        Raises:  RequestInvalid when the file is not text or has no such place.
        """
        try:
            text = self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestInvalid(f"cannot read {self.path}: {error}.") from error
        lines = text.splitlines(keepends=True) or [""]
        if lines[-1].endswith(("\n", "\r")):
            lines.append("")
        if self.line > len(lines):
            raise RequestInvalid(f"{self.path} has {len(lines)} lines, not {self.line}.")
        line = lines[self.line - 1].rstrip("\r\n")
        if self.column > len(line) + 1:
            raise RequestInvalid(f"line {self.line} has {len(line)} characters.")
        at = sum(map(len, lines[: self.line - 1])) + self.column - 1
        return text[:at], text[at:]


@dataclass(frozen=True)
class Wishes:
    """What a single completion may differ in."""

    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0


async def complete_at(
    place: Place,
    command: EngineCommand,
    wishes: Wishes,
    on_loading: Callable[[EngineStatus], None],
) -> Done:
    """Start or join an engine and return its completion at a place.

    Raises:  RequestError, EngineUnavailable, ConfigError.
    """
    prefix, suffix = place.split()
    client = await Launcher(command, "specengine complete").open()
    try:
        client.on_status = on_loading
        if client.status is not None and client.status.state is EngineState.LOADING:
            on_loading(client.status)
        message = Complete(
            request=client.next_request(),
            document=str(place.path),
            prefix=prefix,
            suffix=suffix,
            max_tokens=wishes.max_tokens,
            temperature=wishes.temperature,
            seed=wishes.seed,
        )
        async for answer in client.complete(message):
            if isinstance(answer, Done):
                return answer
        raise EngineUnavailable("the engine ended the stream without an answer.")
    finally:
        await client.close()
