"""Time from a key to its ghost text, through the real language server and a real engine.

All goes through the doors that editors use; what the engine did stands in the server's trace. The
engine is one of its own, so that nothing is stored in it that somebody else has asked for.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from specengine.bench.editor import Editor, Ghost, OnProgress, start_editor
from specengine.launch import EngineCommand, Launcher
from specengine.models import registry
from specengine.protocol import Complete, Done, PhaseTimes, TokenCounts
from specengine.settings import EngineSettings

NUM_COLD: Final = 10
"""Documents that are opened."""

COLD_CHARS: Final = 2000
"""Text above the cursor in each; more would be cut."""

TYPED: Final = "    def _record_failure"
"""Where the text begins that the typist writes; it stands in the example once."""

KEY_S: Final = 0.12
"""Between two keys of the typist."""

PAUSES_S: Final = {" ": 0.2, "(": 0.3, ":": 0.3}
"""Longer ones, after some keys; after a line it is ``LINE_S``."""

LINE_S: Final = 0.6

WRITTEN: Final = frozenset(("shown", "adopted"))
"""Outcomes of requests for which the engine wrote."""

WASTED: Final = frozenset(("superseded", "cancelled"))


class TypingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of key.

    Times are from sending the key to the suggestion, of those keys that got one; shares are of all
    keys, also of those that got none.
    """

    policy: str
    """``cold``: the first request of a new document, the model loaded. ``warm``: a key that
    disagrees with the suggestion that is shown. ``type_through``: one that agrees.
    ``one_more_key``: the engine alone, its prompt a key longer, one token written. ``typist``: a
    text at a person's pace; the others wait for each answer."""
    model: str
    drafter: str
    keys: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    shown: float | None = None
    """Keys that got a suggestion."""
    shown_100ms: float | None = None
    """Keys that got it within 100 ms."""
    shown_300ms: float | None = None
    passes_per_shown_char: float | None = None
    """Passes of the model for a character of a suggestion that came to be shown."""
    passes_wasted: float | None = None
    """Share of passes for requests that a later key made void."""
    server_overhead_p99_ms: float | None = None
    """Time of the keys that were answered without the engine: all of it is the server's."""
    prefilled_p50: float | None = None
    """Prompt tokens that the engine had to read."""
    passes_p50: float | None = None
    """Forward passes after reading."""
    engine_p50_ms: float | None = None
    """Time inside the engine. It may end a pass later than the answer."""


class Record(msgspec.Struct, frozen=True):
    """What is needed of a line of the server's trace."""

    request: int
    outcome: str
    steps: int
    tokens: TokenCounts
    ms: PhaseTimes


@dataclass(frozen=True)
class Key:
    """What one stroke brings into the document, and how long the typist then waits."""

    text: str
    pause_s: float


@dataclass(frozen=True)
class Example:
    """The example file, cut where the typist begins."""

    before: str
    typed: str
    after: str

    @classmethod
    def cut(cls, text: str) -> Example:
        """Cut off one method."""
        start = text.index(TYPED)
        end = text.index("\n\n", start)
        return cls(text[:start], text[start:end], text[end:])


def measure(
    settings: EngineSettings, example: Example, num_keys: int, on_progress: OnProgress
) -> list[TypingRow]:
    """Play all policies; return a row for each.

    Raises:  SpecEngineError when the language server or the engine cannot start.
    """
    return asyncio.run(_measure(settings, example, num_keys, on_progress))


async def _measure(
    settings: EngineSettings, example: Example, num_keys: int, on_progress: OnProgress
) -> list[TypingRow]:
    command = own_command(settings)
    keys = keys_of(example.typed)[:num_keys]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        async with start_editor(_editor_settings(command, trace), on_progress) as editor:
            await editor.wait_ready()
            on_progress(0.1, "cold: new documents")
            cold = await _open_documents(editor, example)
            on_progress(0.3, "warm: key by key, waiting for each answer")
            patient = await _type_patiently(editor, example, keys)
            on_progress(0.5, "one more key")
            answers = await _ask_engine(command, example, keys)
            on_progress(0.6, "a typist")
            typist = await _type_at_pace(editor, example, keys)
        records = read_trace(trace)
    on_progress(1.0, "done")
    through = [ghost for ghost in patient if records[ghost.request].outcome == "cached"]
    warm = [ghost for ghost in patient if records[ghost.request].outcome != "cached"]
    played = {"cold": cold, "warm": warm, "type_through": through, "typist": typist}
    rows = [row_of(policy, ghosts, records, command) for policy, ghosts in played.items()]
    return [*rows, engine_row(answers, command)]


def own_command(settings: EngineSettings) -> EngineCommand:
    """Return the command of an engine that nobody else asks: its arguments are unique.

    It exits some seconds after the language server has gone.
    """
    further = ["--precision", settings.precision, "--idle-exit", f"5.{os.getpid()}"]
    if settings.draft_model:
        further += ["--draft-model", settings.draft_model]
    model = settings.model or registry.load().default
    return EngineCommand(model, settings.drafter, tuple(further))


def keys_of(text: str) -> list[Key]:
    """Return the strokes that write a text; an editor indents a new line by itself."""
    strokes: list[str] = re.findall(r"\n *|.", text)
    return [
        Key(stroke, LINE_S if stroke[0] == "\n" else PAUSES_S.get(stroke, KEY_S))
        for stroke in strokes
    ]


def read_trace(file: Path) -> dict[int, Record]:
    """Return the records of a trace by the number of their request."""
    records = [msgspec.json.decode(line, type=Record) for line in file.read_bytes().splitlines()]
    return {record.request: record for record in records}


def row_of(
    policy: str, ghosts: Sequence[Ghost], records: Mapping[int, Record], command: EngineCommand
) -> TypingRow:
    """Return the row of a policy, from what the editor saw and what the trace says."""
    pairs = [(ghost, records[ghost.request]) for ghost in ghosts]
    shown = [ghost.ms for ghost, record in pairs if ghost.text and record.outcome not in WASTED]
    by_server = [ghost.ms for ghost, record in pairs if record.outcome in ("cached", "empty")]
    by_engine = [record for _, record in pairs if record.outcome in WRITTEN]
    num_passes = sum(record.steps for _, record in pairs)
    num_wasted = sum(record.steps for _, record in pairs if record.outcome in WASTED)
    num_chars = sum(len(ghost.text) for ghost, record in pairs if record.outcome in WRITTEN)
    return TypingRow(
        policy=policy,
        model=command.model,
        drafter=command.drafter,
        keys=len(pairs),
        p50_ms=percentile(shown, 50),
        p95_ms=percentile(shown, 95),
        p99_ms=percentile(shown, 99),
        shown=_share(len(shown), len(pairs)),
        shown_100ms=_share(sum(ms <= 100 for ms in shown), len(pairs)),
        shown_300ms=_share(sum(ms <= 300 for ms in shown), len(pairs)),
        passes_per_shown_char=_share(num_passes, num_chars),
        passes_wasted=_share(num_wasted, num_passes),
        server_overhead_p99_ms=percentile(by_server, 99) if by_server else None,
        prefilled_p50=_median([record.tokens.prefilled for record in by_engine]),
        passes_p50=_median([record.steps for record in by_engine]),
        engine_p50_ms=_median([_engine_ms(record.ms) for record in by_engine]),
    )


def engine_row(answers: Sequence[tuple[float, Done]], command: EngineCommand) -> TypingRow:
    """Return the row of requests that went to the engine directly, with their round trips."""
    times = [ms for ms, _ in answers]
    return TypingRow(
        policy="one_more_key",
        model=command.model,
        drafter=command.drafter,
        keys=len(answers),
        p50_ms=percentile(times, 50),
        p95_ms=percentile(times, 95),
        p99_ms=percentile(times, 99),
        prefilled_p50=_median([done.tokens.prefilled for _, done in answers]),
        passes_p50=_median([done.steps for _, done in answers]),
        engine_p50_ms=_median([done.ms.total for _, done in answers]),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed; 0 of none."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return round(ordered[max(0, rank - 1)], 2) if ordered else 0.0


async def _open_documents(editor: Editor, example: Example) -> list[Ghost]:
    """Ask in new documents."""
    above = example.before[-COLD_CHARS:].partition("\n")[2]
    first_line = example.typed[: example.typed.index("\n")]
    ghosts: list[Ghost] = []
    for number in range(NUM_COLD):
        # Another first line within what the model reads, and nothing that is stored fits.
        before = f"# {number}\n{above}{first_line}\n        "
        editor.open(f"cold-{number}.py", before + example.after, len(before))
        ghosts.append(await editor.suggest())
        editor.close()
    return ghosts


async def _type_patiently(editor: Editor, example: Example, keys: Sequence[Key]) -> list[Ghost]:
    """Type a text; each key waits for the answer to the one before it."""
    editor.open("patient.py", example.before + example.after, len(example.before))
    await editor.suggest()
    ghosts: list[Ghost] = []
    for key in keys:
        editor.type(key.text)
        ghosts.append(await editor.suggest())
    editor.close()
    return ghosts


async def _type_at_pace(editor: Editor, example: Example, keys: Sequence[Key]) -> list[Ghost]:
    """Type a text at a person's pace, whatever has been answered."""
    editor.open("typist.py", example.before + example.after, len(example.before))
    async with asyncio.TaskGroup() as group:
        asked: list[asyncio.Task[Ghost]] = []
        for key in keys:
            editor.type(key.text)
            asked.append(group.create_task(editor.suggest()))
            await asyncio.sleep(key.pause_s)
    editor.close()
    return [task.result() for task in asked]


async def _ask_engine(
    command: EngineCommand, example: Example, keys: Sequence[Key]
) -> list[tuple[float, Done]]:
    """Ask the engine for one token after each key; return round trips and answers."""
    client = await Launcher(command, "specengine bench").open()
    answers: list[tuple[float, Done]] = []
    prefix = example.before
    try:
        for key in keys:
            prefix += key.text
            request = client.next_request()
            message = Complete(request, "bench", prefix, max_tokens=1)
            started = time.perf_counter()
            done = [answer async for answer in client.complete(message)][-1]
            assert isinstance(done, Done), "the stream ends with it"
            answers.append(((time.perf_counter() - started) * 1000, done))
    finally:
        await client.close()
    # The first reads all that is before it.
    return answers[1:]


def _editor_settings(command: EngineCommand, trace: Path) -> dict[str, object]:
    engine = {
        "model": command.model,
        "drafter": command.drafter,
        "arguments": list(command.arguments),
    }
    return {"engine": engine, "trace": {"path": str(trace)}}


def _engine_ms(ms: PhaseTimes) -> float:
    return ms.prefill + ms.draft + ms.verify


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
