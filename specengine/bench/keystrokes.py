"""Time from a key to its ghost text, and its cost, through the real language server and engine.

All goes through the doors that editors use; what the engine did stands in the server's trace. The
engine is one of its own, so that nothing is stored in it that somebody else has asked for.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from specengine.bench.editor import Editor, Ghost, OnProgress, start_editor
from specengine.bench.typist import PAIRS, Stroke, keys_of, strokes_of
from specengine.bench.workloads import load_problems
from specengine.launch import EngineCommand, Launcher
from specengine.models import registry
from specengine.protocol import Complete, Done, TokenCounts
from specengine.settings import EngineSettings

NUM_COLD: Final = 10
"""Documents that are opened."""

COLD_CHARS: Final = 2000
"""Text above the cursor in each; more would be cut."""

TYPED: Final = "    def _record_failure"
"""Where the text begins that is typed; it stands in the example once."""

LARGE_LINES: Final = 2000
"""Of the file in which the server's own time is measured."""

LARGE_KEYS: Final = 150
"""Typed there, in the middle."""

SEED: Final = 0
"""Of the person who types."""

READ_S: Final = 0.4
"""In a gap of so long a suggestion is read, and accepted if all of it is what was to be typed."""

ACCEPTED_PAUSE_S: Final = 0.4
"""After accepting, until the next key."""

MIN_ACCEPTED_CHARS: Final = 4

PERSONS: Final[Mapping[str, Mapping[str, object]]] = {
    "session": {},
    "naive": {"completion": {"followTyping": False}},
}
"""Settings of the policies under which a person types; all else is the same."""

WRITTEN: Final = frozenset(("shown", "adopted"))
"""Outcomes of requests for which the engine wrote."""

WASTED: Final = frozenset(("superseded", "cancelled"))


class TypingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way of typing.

    Times are from sending the key to the suggestion, of those keys that got one; shares are of all
    keys, also of those that got none. Passes and tokens include those of looking ahead.
    """

    policy: str
    """``cold``: the first request of a new document, the model loaded. ``warm``: a key that
    disagrees with the suggestion that is shown. ``type_through``: one that agrees.
    ``one_more_key``: the engine alone, its prompt a key longer, one token written.
    ``large_file``: in the middle of 2,000 lines. These wait for each answer. ``session`` and
    ``naive``: a person types real code at their own pace, with typing followed and with each key
    cancelling and asking anew."""
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
    passes: int | None = None
    """Forward passes that wrote, or tried to."""
    passes_per_shown_char: float | None = None
    """For a character that stood on the screen after a key, however it got there."""
    tokens_per_shown_char: float | None = None
    """Tokens that were read, drafted or written."""
    accepted: float | None = None
    """Share of the text that came by accepting a suggestion."""
    passes_per_accepted_char: float | None = None
    tokens_per_accepted_char: float | None = None
    passes_wasted: float | None = None
    """Share of passes for requests that a later key made void, and for what lay ahead in vain."""
    passes_late: float | None = None
    """Passes, on average, that ended after the key that made their request void."""
    passes_ahead: float | None = None
    """Share of passes for what lies behind a suggestion that is shown."""
    server_overhead_p99_ms: float | None = None
    """The server's own time: all of it for a key answered without the engine, else context and
    rules."""
    prefilled_p50: float | None = None
    """Prompt tokens that the engine had to read."""
    passes_p50: float | None = None
    """Forward passes after reading."""
    engine_p50_ms: float | None = None
    """Time inside the engine. It may end a pass later than the answer."""


class Phases(msgspec.Struct, frozen=True):
    """What is needed of a request's times."""

    context: float = 0.0
    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    postprocess: float = 0.0

    @property
    def engine(self) -> float:
        """Return the time inside the engine."""
        return self.prefill + self.draft + self.verify


class Record(msgspec.Struct, frozen=True):
    """What is needed of a line of the server's trace."""

    request: int
    outcome: str = ""
    steps: int = 0
    tokens: TokenCounts = TokenCounts()
    ms: Phases = Phases()
    trigger: str = "automatic"
    late_steps: int = 0
    event: str = ""
    """Set on lines of another kind: what became of a suggestion."""

    @property
    def num_tokens(self) -> int:
        """Return the rows that the target has computed for it."""
        return self.tokens.prefilled + self.tokens.drafted + self.steps


@dataclass
class Trace:
    """The records of one language server."""

    requests: dict[int, Record] = field(default_factory=dict[int, Record])
    ahead: list[Record] = field(default_factory=list[Record])
    """Of what nobody had asked for, with the number of the request that it followed."""


@dataclass
class Played:
    """What an editor saw while somebody typed."""

    ghosts: list[Ghost] = field(default_factory=list[Ghost])
    """One for each key."""
    num_accepted: int = 0
    """Characters that came by accepting."""
    num_chars: int = 0
    """Of the text, however they came."""


@dataclass(frozen=True)
class Script:
    """A file, and the text in it that somebody types."""

    name: str
    before: str
    typed: str
    after: str


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
    rows = await _measure_waiting(own_command(settings, 0), example, num_keys, on_progress)
    scripts = scripts_of(example, num_keys)
    for at, (policy, further) in enumerate(PERSONS.items()):
        on_progress(0.3 + 0.35 * at, f"{policy}: a person types {num_keys} keys")
        command = own_command(settings, 1 + at)
        rows.append(await _measure_person(policy, command, further, scripts, num_keys, on_progress))
    on_progress(1.0, "done")
    return rows


async def _measure_waiting(
    command: EngineCommand, example: Example, num_keys: int, on_progress: OnProgress
) -> list[TypingRow]:
    """Return the rows of keys that each wait for the answer to the one before."""
    keys = keys_of(example.typed)[:num_keys]
    with tempfile.TemporaryDirectory() as folder:
        trace_file = Path(folder) / "trace.jsonl"
        async with start_editor(_editor_settings(command, trace_file, {}), on_progress) as editor:
            await editor.wait_ready()
            on_progress(0.1, "cold: new documents")
            cold = await _open_documents(editor, example)
            on_progress(0.15, "warm: key by key")
            patient = await _type_patiently(editor, "patient.py", example, keys)
            on_progress(0.2, "one more key")
            answers = await _ask_engine(command, example, keys)
            on_progress(0.25, f"{LARGE_LINES} lines")
            large_keys = keys_of(example.typed)[:LARGE_KEYS]
            large = await _type_patiently(editor, "large.py", enlarged(example), large_keys)
        trace = read_trace(trace_file)
    through = [ghost for ghost in patient if trace.requests[ghost.request].outcome == "cached"]
    warm = [ghost for ghost in patient if trace.requests[ghost.request].outcome != "cached"]
    seen = {"cold": cold, "warm": warm, "type_through": through, "large_file": large}
    rows = [row_of(policy, Played(ghosts), trace, command) for policy, ghosts in seen.items()]
    return [*rows, engine_row(answers, command)]


async def _measure_person(
    policy: str,
    command: EngineCommand,
    further: Mapping[str, object],
    scripts: Sequence[Script],
    num_keys: int,
    on_progress: OnProgress,
) -> TypingRow:
    """Return the row of somebody who types at their own pace."""
    played = Played()
    with tempfile.TemporaryDirectory() as folder:
        trace_file = Path(folder) / "trace.jsonl"
        settings = _editor_settings(command, trace_file, further)
        async with start_editor(settings, on_progress) as editor:
            await editor.wait_ready()
            for at, script in enumerate(scripts):
                left = num_keys - len(played.ghosts)
                if left <= 0:
                    break
                strokes = strokes_of(script.typed, SEED + at)[:left]
                await play_script(editor, script, strokes, played)
        trace = read_trace(trace_file)
    return row_of(policy, played, trace, command)


def own_command(settings: EngineSettings, number: int) -> EngineCommand:
    """Return the command of an engine that nobody else asks: its arguments are unique.

    It exits some seconds after the language server has gone.
    """
    further = ["--precision", settings.precision, "--idle-exit", f"5.{number}{os.getpid()}"]
    if settings.draft_model:
        further += ["--draft-model", settings.draft_model]
    model = settings.model or registry.load().default
    return EngineCommand(model, settings.drafter, tuple(further))


def scripts_of(example: Example, num_keys: int) -> list[Script]:
    """Return files to type: a method of the example, and functions that a benchmark asks for."""
    scripts = [Script("example.py", example.before, example.typed, example.after)]
    num_chars = len(example.typed)
    for problem in load_problems():
        if num_chars > 2 * num_keys:  # accepted text takes no keys
            break
        name = f"{problem.entry_point}.py"
        typed = problem.canonical_solution.rstrip("\n")
        scripts.append(Script(name, problem.prompt, typed, "\n"))
        num_chars += len(typed)
    return scripts


def enlarged(example: Example) -> Example:
    """Return the example in the middle of ``LARGE_LINES`` lines, none of which repeats."""
    problems = load_problems()
    functions = [problem.prompt + problem.canonical_solution for problem in problems]
    lines = "\n\n".join(functions).splitlines()
    while len(lines) < LARGE_LINES:
        lines += [f"{line}  # {len(lines)}" if line.strip() else line for line in lines]
    room = LARGE_LINES - (example.before + example.typed + example.after).count("\n")
    above, below = lines[: room // 2], lines[room // 2 : room]
    before, after = "\n".join(above) + "\n\n\n", "\n\n\n" + "\n".join(below) + "\n"
    return Example(before + example.before, example.typed, example.after + after)


def read_trace(file: Path) -> Trace:
    """Return the records of a trace."""
    trace = Trace()
    for line in file.read_bytes().splitlines():
        record = msgspec.json.decode(line, type=Record)
        if record.trigger == "ahead":
            trace.ahead.append(record)
        elif not record.event:
            trace.requests[record.request] = record
    return trace


def row_of(policy: str, played: Played, trace: Trace, command: EngineCommand) -> TypingRow:
    """Return the row of a policy, from what the editor saw and what the trace says."""
    pairs = [(ghost, trace.requests[ghost.request]) for ghost in played.ghosts]
    numbers = {ghost.request for ghost in played.ghosts}
    ahead = [record for record in trace.ahead if record.request in numbers]
    records = [record for _, record in pairs]
    shown = [ghost.ms for ghost, record in pairs if ghost.text and record.outcome not in WASTED]
    own_ms = [_server_ms(ghost, record) for ghost, record in pairs]
    by_engine = [record for record in records if record.outcome in WRITTEN]
    void = [record for record in records if record.outcome in WASTED and record.steps]
    num_passes = sum(record.steps for record in (*records, *ahead))
    num_tokens = sum(record.num_tokens for record in (*records, *ahead))
    num_wasted = sum(one.steps for one in (*records, *ahead) if one.outcome in WASTED)
    num_chars = sum(len(ghost.text) for ghost, _ in pairs)
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
        passes=num_passes,
        passes_per_shown_char=_share(num_passes, num_chars),
        tokens_per_shown_char=_share(num_tokens, num_chars),
        accepted=_share(played.num_accepted, played.num_chars),
        passes_per_accepted_char=_share(num_passes, played.num_accepted),
        tokens_per_accepted_char=_share(num_tokens, played.num_accepted),
        passes_wasted=_share(num_wasted, num_passes),
        passes_late=_share(sum(record.late_steps for record in void), len(void)),
        passes_ahead=_share(sum(record.steps for record in ahead), num_passes),
        server_overhead_p99_ms=percentile(own_ms, 99) if own_ms else None,
        prefilled_p50=_median([record.tokens.prefilled for record in by_engine]),
        passes_p50=_median([record.steps for record in by_engine]),
        engine_p50_ms=_median([record.ms.engine for record in by_engine]),
    )


def _server_ms(ghost: Ghost, record: Record) -> float:
    is_own = record.outcome in ("cached", "empty") and not record.steps
    return ghost.ms if is_own else record.ms.context + record.ms.postprocess


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


async def _type_patiently(
    editor: Editor, name: str, example: Example, keys: Sequence[str]
) -> list[Ghost]:
    """Type a text; each key waits for the answer to the one before it."""
    editor.open(name, example.before + example.after, len(example.before))
    await editor.suggest()
    ghosts: list[Ghost] = []
    for key in keys:
        editor.type(key)
        ghosts.append(await editor.suggest())
    editor.close()
    return ghosts


async def play_script(
    editor: Editor, script: Script, strokes: Sequence[Stroke], played: Played
) -> None:
    """Type a text at a person's pace, whatever has been answered, and accept what is right."""
    editor.open(script.name, script.before + script.after, len(script.before))
    async with asyncio.TaskGroup() as group:
        asked: list[asyncio.Task[Ghost]] = []
        num_done, waiting = 0, list(strokes)
        while waiting:
            stroke = waiting.pop(0)
            num_done = _strike(editor, stroke, script.typed, num_done)
            asked.append(group.create_task(editor.suggest()))
            await asyncio.sleep(stroke.pause_s)
            is_read = stroke.num_done is not None and stroke.pause_s >= READ_S
            while is_read and (ghost := _wanted(asked[-1], script.typed[num_done:])) is not None:
                editor.accept(ghost)
                played.num_accepted += len(ghost.text)
                num_done += len(ghost.text)
                asked.append(group.create_task(editor.suggest()))
                await asyncio.sleep(ACCEPTED_PAUSE_S)
            while waiting and _is_written(waiting, num_done):
                waiting.pop(0)
    editor.close()
    played.ghosts += [task.result() for task in asked]
    played.num_chars += num_done


def _strike(editor: Editor, stroke: Stroke, text: str, num_done: int) -> int:
    """Do what a stroke does; return how much of the text stands there."""
    # A part of it may have been accepted already: the indentation of a new line.
    typed = stroke.text if stroke.num_done is None else text[num_done : stroke.num_done]
    is_closed = editor.text.startswith(typed, editor.cursor)
    if stroke.kind == "delete":
        editor.delete(1)
    elif stroke.kind == "pair":
        editor.type_pair(typed, PAIRS[typed])
    elif stroke.kind == "over" and is_closed:
        editor.type_over(typed)
    else:
        editor.type(typed)
    return num_done if stroke.num_done is None else stroke.num_done


def _wanted(asked: asyncio.Task[Ghost], rest: str) -> Ghost | None:
    """Return the suggestion on the screen if it is right and worth a key."""
    if not asked.done() or asked.cancelled():
        return None
    ghost = asked.result()
    is_right = len(ghost.text) >= MIN_ACCEPTED_CHARS and rest.startswith(ghost.text)
    return ghost if is_right else None


def _is_written(waiting: Sequence[Stroke], num_done: int) -> bool:
    """Whether the next right key, and so the mistakes before it, need not be typed any more."""
    lengths = (stroke.num_done for stroke in waiting if stroke.num_done is not None)
    return next(lengths, num_done + 1) <= num_done


async def _ask_engine(
    command: EngineCommand, example: Example, keys: Sequence[str]
) -> list[tuple[float, Done]]:
    """Ask the engine for one token after each key; return round trips and answers."""
    client = await Launcher(command, "specengine bench").open()
    answers: list[tuple[float, Done]] = []
    prefix = example.before
    try:
        for key in keys:
            prefix += key
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


def _editor_settings(
    command: EngineCommand, trace: Path, further: Mapping[str, object]
) -> dict[str, object]:
    engine = {
        "model": command.model,
        "drafter": command.drafter,
        "arguments": list(command.arguments),
    }
    return {"engine": engine, "trace": {"path": str(trace)}, **further}


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
