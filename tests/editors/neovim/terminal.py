"""A program in a terminal of its own, by tmux: keys go in, and its screen comes out with colours.

It knows no editor.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS: Final = 96
ROWS: Final = 24
PATIENCE_S: Final = 120.0
"""For a screen to become right; a fraction of a second where nothing else runs."""

MODEL_PATIENCE_S: Final = 300.0
"""For a model to load or to write; seconds where nothing else keeps the processors busy."""

T = TypeVar("T")


@dataclass(frozen=True)
class Colours:
    """Colours of a terminal, red, green and blue each."""

    background: tuple[int, int, int]
    foreground: tuple[int, int, int]


DARK: Final = Colours((20, 22, 27), (224, 226, 234))
LIGHT: Final = Colours((224, 226, 234), (20, 22, 27))


class Terminal:
    """One window with one program."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as tmux names them."""
        for key in keys:
            self._tmux("send-keys", "-t", "main", key)

    def type(self, text: str, delay_s: float = 0.05) -> None:
        """Type a text, a key at a time; without a delay all at once."""
        for keys in text if delay_s > 0 else [text]:
            # A semicolon at the end of an argument would separate commands of tmux.
            literal = f"{keys[:-1]}\\;" if keys.endswith(";") else keys
            self._tmux("send-keys", "-t", "main", "-l", literal)
            time.sleep(delay_s)

    def screen(self) -> list[Text]:
        """Return the lines of the screen with their styles; trailing blanks are lost."""
        output = self._tmux("capture-pane", "-t", "main", "-p", "-e")
        decoder = AnsiDecoder()
        return [decoder.decode_line(line) for line in output.split("\n")[:ROWS]]

    def words(self) -> str:
        """Return the screen without colours."""
        return "\n".join(line.plain.rstrip() for line in self.screen())

    def await_value(
        self, read: Callable[[], T], is_right: Callable[[T], bool], timeout_s: float = PATIENCE_S
    ) -> T:
        """Read again and again until the value is right."""
        deadline = time.monotonic() + timeout_s
        while not is_right(value := read()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"it is still {value!r} on this screen:\n{self.words()}")
            time.sleep(0.03)
        return value

    def picture(self, path: Path, title: str, colours: Colours = DARK) -> None:
        """Write a picture of the screen, as SVG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with Path(os.devnull).open("w") as nowhere:
            console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor")
            for line in self.screen():
                line.pad_right(COLUMNS - line.cell_len)
                console.print(line, no_wrap=True, crop=True)
        black_to_white = [(0, 0, 0)] * 8
        theme = TerminalTheme(colours.background, colours.foreground, black_to_white)
        drawn = console.export_svg(title=title, theme=theme)
        # Its fonts would come from the network.
        path.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))

    def _tmux(self, *arguments: str) -> str:
        return _tmux(self._socket, *arguments)


@contextlib.contextmanager
def terminal(
    folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Run a program in a terminal; ``folder`` is for tmux itself, and its path must be short."""
    socket = folder / "tmux"
    settings = folder / "tmux.conf"
    settings.write_text(
        "set -g default-terminal tmux-256color\n"
        "set -as terminal-features ',*:RGB'\n"
        "set -g status off\n"
        "set -s escape-time 0\n"
        "set -g remain-on-exit on\n"
    )
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    _tmux(
        socket,
        *("-f", str(settings), "new-session", "-d", "-s", "main", *size),
        *("env", *variables, *command),
    )
    try:
        yield Terminal(socket)
    finally:
        _tmux(socket, "kill-server")


def coloured(lines: Sequence[Text], red_green_blue: tuple[int, int, int]) -> str:
    """Return the characters of that colour, line by line; lines without any are left out."""
    found = ("".join(_characters(line, red_green_blue)) for line in lines)
    return "\n".join(line for line in found if line)


def _characters(line: Text, red_green_blue: tuple[int, int, int]) -> Iterator[str]:
    for span in line.spans:
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        colour = style.color
        if colour is not None and colour.triplet == red_green_blue:
            yield line.plain[span.start : span.end]


def _tmux(socket: Path, *arguments: str) -> str:
    command = ["tmux", "-S", str(socket), *arguments]
    # In a locale without UTF-8 it would write underscores for what is not ASCII.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, check=True, capture_output=True, env=environment, encoding="utf-8"
    )
    return done.stdout
