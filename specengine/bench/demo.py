"""``specengine demo``: types into a real file and shows what an editor would show.

The language server and the engine are the real ones, started as an editor starts them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Final

from specengine.bench.editor import Editor, Ghost, start_editor
from specengine.bench.workloads import example_file

WIDTH: Final = 88
NUM_LINES_ABOVE: Final = 3
"""Lines of the file that are shown above what is typed."""

NUM_AGREEING: Final = 3
"""Keys that are typed as the suggestion says."""

IDLE_EXIT_S: Final = 120
"""The engine stays so long, so that a second demo starts at once."""

DIM: Final = "\x1b[2m"
BOLD: Final = "\x1b[1m"
COLOUR: Final = "\x1b[36m"
PLAIN: Final = "\x1b[0m"


@dataclass(frozen=True)
class Scene:
    """One place of the file."""

    title: str
    after: str
    """The last line above; it stands in the file once."""
    typed: str
    instead: str
    """What the user types when the suggestion is not what is wanted."""


SCENES: Final = (
    Scene(
        "A method like the ones above it",
        "        return sorted(job for job in self.jobs.values() if job.state == FAILED)",
        "\n\n    def running_jobs(self) -> list[Job]:\n        ",
        "count = ",
    ),
    Scene(
        "The rest of a line",
        '                "error": job.error,',
        '\n                "started_at": ',
        "round(",
    ),
    Scene(
        "A new function at the end of the file",
        '    return ", ".join(f"{count} {state}" for state, count in counts.items())',
        "\n\n\ndef total_duration(queue: JobQueue) -> float:\n    ",
        "durations = [",
    ),
)


def demo() -> None:
    """Play all scenes.

    Raises:  SpecEngineError when the language server or the engine cannot start.
    """
    asyncio.run(Stage(sys.stdout.isatty() and "NO_COLOR" not in os.environ).play())


class Stage:
    """Where the demo is shown."""

    def __init__(self, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._is_loading_told = False

    async def play(self) -> None:
        """Start everything, play the scenes, end the language server."""
        file = example_file()
        text = file.read_text("utf-8")
        self._say(
            f"A user types into {file.name}; what the model suggests behind the cursor is "
            f"{self._ghost('marked like this')}."
        )
        settings = {"engine": {"idleExitS": IDLE_EXIT_S}, "completion": {"maxDebounceMs": 0}}
        async with start_editor(settings, self._show_loading) as editor:
            self._show_loading(0.0, "starting the language server and the engine")
            await editor.wait_ready()
            self._end_loading()
            for number, scene in enumerate(SCENES, 1):
                await self._play_scene(editor, number, scene, text)
        self._say("\nEach line with a # is what the editor's log shows of a request.")

    async def _play_scene(self, editor: Editor, number: int, scene: Scene, text: str) -> None:
        at = text.index(scene.after) + len(scene.after)
        editor.open(f"{number}-job_queue.py", text, at)
        self._say(f"\n{self._styled(BOLD, f'{number}. {scene.title}')}\n")
        editor.type(scene.typed)
        ghost = await editor.suggest()
        self._show(editor, ghost)
        self._show_trace(await editor.next_trace())
        await self._type_along(editor, ghost)
        await self._type_instead(editor, scene.instead)
        editor.close()

    async def _type_along(self, editor: Editor, ghost: Ghost) -> None:
        """Type some keys as the suggestion says, then take them back."""
        keys = ghost.text[: min(NUM_AGREEING, len(ghost.text) - 1)]
        times_ms: list[float] = []
        traces: list[str] = []
        for key in keys:
            editor.type(key)
            times_ms.append((await editor.suggest()).ms)
            traces.append(await editor.next_trace())
        if not keys:
            return
        num_cached = sum(": cached" in trace for trace in traces)
        self._say(
            f"\n  Typing {keys!r}, as it says: {num_cached} of {len(keys)} keys answered without "
            f"the model,\n  {statistics.median(times_ms):.1f} ms each"
        )
        for trace in traces:
            self._show_trace(trace)
        editor.delete(len(keys))

    async def _type_instead(self, editor: Editor, text: str) -> None:
        """Type something that the suggestion does not say."""
        self._say(f"\n  Typing {text!r} instead\n")
        editor.type(text)
        self._show(editor, await editor.suggest())
        self._show_trace(await editor.next_trace())

    def _show(self, editor: Editor, ghost: Ghost) -> None:
        """Show the lines above, the cursor's line, and the suggestion in it."""
        above = editor.text[: editor.cursor].split("\n")
        rest = editor.text[editor.cursor :].partition("\n")[0]
        first, *more = ghost.text.split("\n")
        number = len(above)
        shown = range(max(0, number - 1 - NUM_LINES_ABOVE), number - 1)
        lines = [(at + 1, above[at]) for at in shown]
        lines.append((number, f"{above[-1]}{self._ghost(first)}{rest}"))
        lines += [(None, self._ghost(line)) for line in more]
        for line_number, line in lines:
            self._say(f"  {line_number or '':>4} | {line}".rstrip())
        told = "shown" if ghost.text else "no suggestion"
        self._say(f"\n  {told} after {ghost.ms:.0f} ms")

    def _show_trace(self, trace: str) -> None:
        self._say(f"  {self._styled(DIM, trace)}")

    def _show_loading(self, fraction: float, what: str) -> None:
        """Draw one line on a terminal; a pipe gets the first only."""
        if self._has_colours:
            self._write(f"\r\x1b[K{fraction:4.0%} {what[: WIDTH - 6]}")
        elif not self._is_loading_told:
            self._is_loading_told = True
            self._say(what)

    def _end_loading(self) -> None:
        if self._has_colours:
            self._write("\r\x1b[K")

    def _ghost(self, text: str) -> str:
        if not text:
            return ""
        return self._styled(COLOUR, text) if self._has_colours else f"<{text}>"

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{PLAIN}" if self._has_colours else text

    def _say(self, line: str) -> None:
        self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
