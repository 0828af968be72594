"""One completion at a place of a file, through the same door that the language server uses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specengine.errors import EngineUnavailable, RequestInvalid
from specengine.launch import EngineCommand, Launcher
from specengine.protocol import Complete, Done, EngineState, EngineStatus, SamplingOptions

_PLACE: Final = re.compile(r"(.+):([1-9]\d{0,8}):([1-9]\d{0,8})", re.ASCII | re.DOTALL)
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


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
        found = _PLACE.fullmatch(text)
        if found is None:
            raise RequestInvalid(f"{text!r} is not PATH:LINE:COLUMN.", hint="Both count from 1.")
        return cls(Path(found[1]), int(found[2]), int(found[3]))

    def split(self) -> tuple[str, str]:
        """Return the text before and after the place.

        Raises:  RequestInvalid when the file is not text or has no such place.
        """
        try:
            # As an editor would send it: its own line ends, and no byte order mark.
            text = self.path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestInvalid(f"cannot read {self.path}: {error}.") from error
        line_ends = [found.span() for found in _LINE_END.finditer(text)]
        starts = [0, *(after for _, after in line_ends)]
        ends = [*(before for before, _ in line_ends), len(text)]
        if self.line > len(starts):
            raise RequestInvalid(f"{self.path} has {len(starts)} lines, not {self.line}.")
        start, end = starts[self.line - 1], ends[self.line - 1]
        if self.column > end - start + 1:
            raise RequestInvalid(f"line {self.line} has {end - start} characters.")
        at = start + self.column - 1
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
            # A file name of any bytes is allowed on Linux; in a frame only text is.
            document=os.fsencode(place.path).decode(errors="replace"),
            prefix=prefix,
            suffix=suffix,
            max_tokens=wishes.max_tokens,
            sampling=SamplingOptions(temperature=wishes.temperature, seed=wishes.seed),
        )
        async for answer in client.complete(message):
            if isinstance(answer, Done):
                return answer
        raise EngineUnavailable("the engine ended the stream without an answer.")
    finally:
        await client.close()
