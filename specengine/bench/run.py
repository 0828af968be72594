"""``specengine bench``: runs one benchmark, shows its rows, and writes them to a file."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import torch

from specengine.bench import (
    decode,
    door,
    exact,
    infill,
    keystrokes,
    lineup,
    peer_rows,
    perplexity,
    plots,
    sandbox,
    shapes,
    upstream,
    users,
)
from specengine.bench.compare import Comparison, Tasks, compare
from specengine.bench.contestants import Contestant
from specengine.bench.machine import describe
from specengine.bench.own import OwnContestant, OwnEngine, load_own
from specengine.bench.peer_process import PeerProcess
from specengine.bench.peers import (
    INSTALL_HINT,
    LOOKUP_TOKENS,
    TransformersContestant,
    has_transformers,
    load_transformers,
)
from specengine.bench.report import Report, table, write_report
from specengine.bench.workloads import (
    CLASSES,
    INFILL_SETS,
    SETS,
    example_file,
    infill_sets,
    load_problems,
    prompt_sets,
)
from specengine.decoding.prompt import PromptLayout
from specengine.errors import SettingsInvalid
from specengine.models import registry
from specengine.models.convert import ensure_model
from specengine.models.targets import Precision, device_named
from specengine.models.tokenizer import Tokenizer
from specengine.settings import EngineSettings, load_settings

Rows = Sequence[msgspec.Struct]
R = TypeVar("R", bound=msgspec.Struct)

SETTINGS: Final = ("model", "drafter", "draft_model", "precision", "device")
"""Options that are engine settings too."""

FURTHER_OPTIONS: Final = ("drafters", "sets", "no_heal", "run_tests", "shapes", "tokens", "alone")
"""Of one benchmark each."""

DECODE_RUNS: Final = 3
PEERS_RUNS: Final = 5
DECODE_LIMIT: Final = 20
PEERS_LIMIT: Final = 6
PEERS_SETS: Final = ("humaneval", "edits")
"""Of text to go on with: the model that all can load has not learnt to fill in."""
INFILL_LIMIT: Final = 80
PERPLEXITY_LIMIT: Final = 164
TYPING_LIMIT: Final = 200
USERS_LIMIT: Final = 4
UPSTREAM_LIMIT: Final = 2000
DOOR_LIMIT: Final = 1000
DEFAULT_SHAPES: Final = ("0.5b", "1.5b", "3b", "7b")
SHAPE_PRECISIONS: Final[Sequence[Precision]] = ("bfloat16", "int8")


def run(what: str, options: argparse.Namespace) -> None:
    """Run the benchmark of that name.

    Raises:  SpecEngineError.
    """
    _check(what, options)
    command = command_text(what, options)
    rows = _report(command, options, BENCHMARKS[what], TABLES.get(what, table))
    if options.plot is not None:
        PICTURES[what](options.plot, rows)


def check_exact(options: argparse.Namespace) -> bool:
    """Show whether texts are the same with and without drafts; return whether all are.

    Raises:  SpecEngineError.
    """
    for name in ("limit", "tokens"):
        if (value := getattr(options, name)) < 1:
            raise SettingsInvalid(f"--{name} is {value}; it must be 1 or more.")
    command = command_text("exact", options, "check")
    rows = _report(command, options, _check_exact, table)
    return not any(row.num_differing for row in rows)


def command_text(what: str, options: argparse.Namespace, group: str = "bench") -> str:
    """Return the command line that makes the same rows."""
    words = ["specengine", group, what]
    for name in (*SETTINGS, "limit", "runs", *FURTHER_OPTIONS):
        option, value = f"--{name.replace('_', '-')}", getattr(options, name, None)
        if value is True:
            words.append(option)
        elif value not in (None, False):
            words += [option, str(value)]
    return shlex.join(words)


def _report(
    command: str,
    options: argparse.Namespace,
    measure: Callable[[EngineSettings, argparse.Namespace], Sequence[R]],
    shown: Callable[[Sequence[R]], str],
) -> Sequence[R]:
    """Measure, show the rows, and write them where that is asked for."""
    # Described first: afterwards the load average is our own.
    machine = describe()
    settings = load_settings({name: getattr(options, name) for name in SETTINGS})
    rows = measure(settings, options)
    sys.stdout.write(f"\n{shown(rows)}\n")
    if options.json is not None:
        write_report(Report(machine, command, rows), options.json)
    return rows


def _check_exact(settings: EngineSettings, options: argparse.Namespace) -> Sequence[exact.ExactRow]:
    own = load_own(settings, _show)
    texts = [problem.prompt for problem in load_problems()[: options.limit]]
    return exact.measure(own, [settings.drafter], texts, options.tokens, _show)


def _check(what: str, options: argparse.Namespace) -> None:
    """Refuse options that would spoil a run in its end, or in silence."""
    for name in ("limit", "runs"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise SettingsInvalid(f"--{name} is {value}; it must be 1 or more.")
    if options.plot is not None:
        if what not in PICTURES:
            hint = f"There is one of {', '.join(PICTURES)}."
            raise SettingsInvalid(f"--plot: there is no picture of {what}.", hint=hint)
        plots.check_plots(options.plot)


def _bench_decode(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    own = load_own(settings, _show)
    contestants: list[Contestant] = [OwnContestant(own, decode.PLAIN)]
    for drafter in (options.drafters or settings.drafter).split(","):
        contestants.append(cold := OwnContestant(own, drafter))
        if cold.can_remember:
            contestants.append(OwnContestant(own, drafter, remembers=True))
    if not options.alone:
        contestants += _peers(own)
    names = _names("sets", options.sets, (*SETS, *CLASSES), SETS)
    sets = _token_sets(own.layout, options.limit or DECODE_LIMIT, names)
    runs = options.runs or DECODE_RUNS
    conditions = decode.Conditions(own.entry.name, own.models.target.precision, runs)
    return decode.measure(sets, contestants, conditions, _show)


def _token_sets(layout: PromptLayout, limit: int, names: Sequence[str]) -> list[decode.TokenSet]:
    return [
        decode.TokenSet(
            one.name,
            [layout.lay_out(at.prefix, at.suffix, heal=False).token_ids for at in one.places],
            one.num_tokens,
        )
        for one in prompt_sets(limit, names)
    ]


def _peers(own: OwnEngine) -> list[Contestant]:
    if not has_transformers():
        sys.stderr.write(f"transformers is not installed. {INSTALL_HINT}\n")
        return []
    _show(0.0, "transformers loads")
    model = load_transformers(own.folder, own.models.target.precision)
    return [TransformersContestant(model), TransformersContestant(model, LOOKUP_TOKENS)]


def _bench_peers(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    known = registry.load()
    entry = lineup.model_to_compare(known, settings.model)
    folder = ensure_model(entry, _show)
    tokenizer = Tokenizer.load(folder)
    lengths = lineup.usable_lengths(entry, folder)
    layout = PromptLayout(entry, tokenizer, max(lengths))
    text = "\n\n".join(problem.prompt + problem.canonical_solution for problem in load_problems())
    ids = tokenizer.encode(text)
    sets = _token_sets(layout, options.limit or PEERS_LIMIT, PEERS_SETS)
    ground = lineup.Ground(
        entry, folder, settings.threads or torch.get_num_threads(), lineup.context_for(lengths)
    )
    found = lineup.line_up(known, settings, ground, _show)
    for line in found.left_out:
        _warn(line)
    runs = options.runs or PEERS_RUNS
    samples = compare(
        Comparison(found.recipes, runs, PeerProcess, _show, _warn),
        Tasks(sets, [ids[:length] for length in lengths]),
    )
    return peer_rows.rows_of(samples, entry.name, [one_set.name for one_set in sets])


def _bench_infill(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    names = _names("sets", options.sets, INFILL_SETS, INFILL_SETS)
    judge = sandbox.all_passes if options.run_tests else None
    if judge is not None and not sandbox.is_available():
        sys.stderr.write("Tests are not run: this system cannot limit a process as they need it.\n")
        judge = None
    own = load_own(settings, _show)
    sets = infill_sets(names, options.limit or INFILL_LIMIT)
    plan = infill.Plan(sets, settings.drafter, options.no_heal, judge)
    return infill.measure(own, plan, _show)


def _bench_perplexity(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    known = registry.load()
    entry = known.resolve(settings.model or known.default)
    folder = ensure_model(entry, _show)
    tokenizer = Tokenizer.load(folder)
    problems = load_problems()[: options.limit or PERPLEXITY_LIMIT]
    texts = [tokenizer.encode(each.prompt + each.canonical_solution) for each in problems]
    return perplexity.measure(entry.name, folder, texts, _show)


def _bench_shapes(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    device = device_named(settings.device)
    precisions = SHAPE_PRECISIONS if settings.precision == "auto" else (settings.precision,)
    names = _names("shapes", options.shapes, tuple(shapes.SHAPES), DEFAULT_SHAPES)
    return shapes.measure(shapes.Plan(names, precisions, device), _show)


def _names(
    option: str, text: str | None, allowed: Sequence[str], default: Sequence[str]
) -> Sequence[str]:
    if text is None:
        return default
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in allowed:
            raise SettingsInvalid(
                f"--{option} names {name!r}.", hint=f"There are {', '.join(allowed)}."
            )
    return names


def _bench_door(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    return door.measure(options.limit or DOOR_LIMIT, _show)


def _bench_upstream(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    return upstream.measure(options.limit or UPSTREAM_LIMIT, _show)


def _bench_users(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    own = load_own(settings, _show)
    texts = [problem.prompt for problem in load_problems()]
    drafters = dict.fromkeys((decode.PLAIN, settings.drafter))
    return users.measure(own, list(drafters), texts, options.limit or USERS_LIMIT, _show)


def _bench_typing(settings: EngineSettings, options: argparse.Namespace) -> Rows:
    example = keystrokes.Example.cut(example_file().read_text("utf-8"))
    return keystrokes.measure(settings, example, options.limit or TYPING_LIMIT, _show)


def _warn(line: str) -> None:
    """Say a line that a pipe gets too."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{clear}{line}\n")


def _show(fraction: float, detail: str) -> None:
    """Say on a terminal how far it is; a pipe stays silent."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{fraction:4.0%} {detail}")
        if fraction >= 1:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


BENCHMARKS: Final[Mapping[str, Callable[[EngineSettings, argparse.Namespace], Rows]]] = {
    "decode": _bench_decode,
    "door": _bench_door,
    "infill": _bench_infill,
    "peers": _bench_peers,
    "perplexity": _bench_perplexity,
    "shapes": _bench_shapes,
    "typing": _bench_typing,
    "upstream": _bench_upstream,
    "users": _bench_users,
}

TABLES: Final[Mapping[str, Callable[..., str]]] = {"peers": peer_rows.shown}
"""How rows are shown that have more fields than a screen has columns."""

PICTURES: Final[Mapping[str, Callable[..., None]]] = {
    "decode": plots.draw_drafters,
    "peers": plots.draw,
}
"""Of whose rows there is one, for ``--plot``."""
