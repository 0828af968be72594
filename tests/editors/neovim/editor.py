"""A real Neovim with our plugin as a package in a profile of its own, in a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import platformdirs

from tests.editors.neovim.terminal import (
    DARK,
    LIGHT,
    MODEL_PATIENCE_S,
    PATIENCE_S,
    Colours,
    Terminal,
    coloured,
    terminal,
)
from tests.editors.processes import pids_of

ROOT: Final = Path(__file__).parents[3]
PLUGIN: Final = ROOT / "editors" / "neovim"
PROGRAM: Final = ROOT / ".venv" / "bin" / "specengine-lsp"
TOOLS: Final = platformdirs.user_cache_path("specengine", appauthor=False) / "editors"
PICTURES: Final = ROOT / "build" / "editors"

ASK_TIMEOUT_S: Final = 60.0
"""A Neovim that waits for a key answers nothing."""

GREY: Final = (122, 124, 133)
"""The colour of ghost text in these tests; nothing else has it."""

INIT: Final = """
vim.o.background = "{background}"
vim.o.swapfile, vim.o.termguicolors, vim.o.cmdheight = false, true, 1
vim.o.laststatus, vim.o.number = 2, true
vim.o.statusline = " %t %m%=%{{v:lua.require'specengine'.status_text()}} "
for _, name in ipairs({{ "SpecEngineGhost", "ComplHint" }}) do
  vim.api.nvim_set_hl(0, name, {{ fg = "#{grey:06x}", italic = true }})
end
require("specengine").setup(vim.json.decode([==[{settings}]==]))
"""


@dataclass(frozen=True)
class Build:
    """A build of Neovim, and who asks and draws in it."""

    version: str
    client: str
    """As the plugin's setting ``client``."""

    @property
    def label(self) -> str:
        """A name for people."""
        drawn = "" if self.client == "auto" else f" ({self.client} client)"
        return f"Neovim {self.version}{drawn}"

    @property
    def id(self) -> str:
        """A name for folders and the command line."""
        return self.version + ("" if self.client == "auto" else f"-{self.client}")

    @property
    def program(self) -> Path:
        """The program.

        Raises:  FileNotFoundError when the tools are not installed.
        """
        path = TOOLS / f"neovim-{self.version}" / "bin" / "nvim"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: run tests/editors/neovim/install_tools.sh")
        return path


def _build(name: str) -> Build:
    """Return the build of that id."""
    version = name.removesuffix("-own")
    return Build(version, "auto" if version == name else "own")


BUILDS: Final = tuple(
    map(_build, os.environ.get("NEOVIM_BUILDS", "0.11.4 0.12-dev 0.12-dev-own").split())
)


@dataclass(frozen=True)
class Profile:
    """What a Neovim is to begin with."""

    build: Build
    folder: Path
    """Short: sockets are below it."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    colours: Colours = DARK
    init: str = ""
    """The user's init.lua in the place of ours, which sets the plugin up."""

    @property
    def all_environment(self) -> dict[str, str]:
        """Folders of its own: no configuration and no engine of this user takes part."""
        homes = {
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
        }
        return {**homes, "LANG": "C.UTF-8", "TERM": "tmux-256color", **self.environment}

    def make(self) -> None:
        """Write the folders."""
        (self.folder / "run").mkdir(mode=0o700, exist_ok=True)
        config = self.folder / "config" / "nvim"
        package = self.folder / "data" / "nvim" / "site" / "pack" / "specengine" / "start"
        for path in (config, package):
            path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (package / "specengine").symlink_to(PLUGIN)
        (config / "init.lua").write_text(self.init or self._own_init())

    def _own_init(self) -> str:
        settings = {"cmd": str(PROGRAM), "client": self.build.client, **self.settings}
        return INIT.format(
            background="light" if self.colours is LIGHT else "dark",
            grey=int.from_bytes(bytes(GREY)),
            settings=json.dumps(settings),
        )


class Neovim:
    """A running editor."""

    def __init__(self, profile: Profile, screen: Terminal, door: Path) -> None:
        self.profile = profile
        self.terminal = screen
        self._socket = door
        self.type = screen.type
        self.press = screen.press

    def ask(self, expression: str) -> str:
        """Return the value of an expression of Vim's language, as text."""
        request = msgspec.msgpack.encode([0, 1, "nvim_eval", [expression]])
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(ASK_TIMEOUT_S)
            try:
                door.connect(str(self._socket))
                door.sendall(request)
                error, value = _read_answer(door)
            except TimeoutError:
                words = self.terminal.words()
                raise TimeoutError(
                    f"no answer to {expression!r} on this screen:\n{words}"
                ) from None
        assert error is None, f"{expression!r}: {error}"
        return str(value)

    def is_listening(self) -> bool:
        """Return whether it can be asked; its socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as door:
            return door.connect_ex(str(self._socket)) == 0

    def quit(self) -> None:
        """End it, whatever is not saved."""
        with contextlib.suppress(EOFError):  # it answers no more
            self.ask("execute('qall!')")

    def text(self) -> str:
        """Return the text of the buffer."""
        return self.ask("join(getline(1, '$'), \"\\n\")").rstrip("\n")

    def line(self) -> str:
        """Return the line of the cursor."""
        return self.ask("getline('.')").rstrip("\n")

    def status(self) -> str:
        """Return our words in the status line."""
        return self.ask("v:lua.require'specengine'.status_text()").strip()

    def messages(self) -> str:
        """Return all messages so far."""
        return self.ask("execute('messages')")

    def ghost_text(self) -> str:
        """Return the grey text, lines joined by line feeds; empty without any."""
        return coloured(self.terminal.screen(), GREY)

    def insert_at(self, line: int, column: int) -> None:
        """Begin to insert before a column, both from 1, in code points."""
        self.normal()
        self.ask(f"execute('call setcursorcharpos({line}, {column})')")
        is_behind = int(self.ask(f"strchars(getline({line}))")) < column
        self.press("a" if is_behind else "i")
        self.await_mode("i")

    def await_mode(self, mode: str) -> None:
        """Wait until the editor is in a mode."""
        self.terminal.await_value(lambda: self.ask("mode()").strip(), mode.__eq__)

    def normal(self) -> None:
        """Go to normal mode."""
        # An Escape that is not read before the next key would be an Alt with it.
        if self.ask("mode()").strip() != "n":
            self.press("Escape")
            self.await_mode("n")

    def run(self, command: str) -> None:
        """Run a command of the command line, as if it was typed."""
        self.normal()
        self.type(f":{command}", 0)
        self.press("Enter")

    def edit(self, path: Path) -> None:
        """Go to another file."""
        self.run(f"edit! {path}")
        self.terminal.await_value(lambda: self.ask("expand('%:t')"), path.name.__eq__)

    def await_status(self, pattern: str, timeout_s: float = MODEL_PATIENCE_S) -> str:
        """Wait until our words in the status line match."""
        return self.terminal.await_value(
            self.status, lambda text: bool(re.search(pattern, text)), timeout_s
        )

    def await_ghost_text(self, expected: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Wait for grey text, for any or for the expected one; return it."""
        is_right = expected.__eq__ if expected else bool
        return self.terminal.await_value(self.ghost_text, is_right, timeout_s)

    def await_text(self, part: str) -> None:
        """Wait until the buffer has a text somewhere."""
        self.terminal.await_value(self.text, lambda text: part in text)

    def await_no_ghost_text(self) -> None:
        """Wait until there is none."""
        self.terminal.await_value(self.ghost_text, "".__eq__)

    def await_line(self, expected: str) -> None:
        """Wait until the line of the cursor is as expected."""
        self.terminal.await_value(self.line, expected.__eq__)

    def trace(self) -> list[dict[str, Any]]:
        """Return the records of all requests so far."""
        path = self.profile.folder / "state" / "specengine" / "trace.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        # What becomes of a suggestion has lines of its own.
        return [record for line in lines if "outcome" in (record := json.loads(line))]

    def server_pids(self) -> list[int]:
        """Return the language servers of this profile."""
        return pids_of(b"specengine-lsp", self.profile.folder)

    def picture(self, name: str, folder: Path | None = None) -> None:
        """Write a picture of the screen; its colours are those that Neovim has by default."""
        build = self.profile.build
        path = (folder or PICTURES / f"neovim-{build.id}") / f"{name}.svg"
        self.terminal.picture(path, build.label, self.profile.colours)


@contextlib.contextmanager
def neovim(profile: Profile, *files: Path) -> Iterator[Neovim]:
    """Open files in a Neovim."""
    profile.make()
    door = profile.folder / "nvim"
    command = [str(profile.build.program), "--listen", str(door), *map(str, files)]
    with terminal(profile.folder, command, profile.all_environment) as screen:
        editor = Neovim(profile, screen, door)
        screen.await_value(editor.is_listening, bool)
        try:
            yield editor
        finally:
            screen.press("Escape")
            editor.quit()


def _read_answer(door: socket.socket) -> tuple[object, object]:
    """Return the error and the value in an answer of Neovim's protocol; one of both is None."""
    data = b""
    while part := door.recv(2**16):
        data += part
        with contextlib.suppress(msgspec.DecodeError):  # there is more to come
            _, _, error, value = msgspec.msgpack.decode(data)
            return error, value
    raise EOFError("Neovim has closed its socket")
