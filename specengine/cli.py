"""The ``specengine`` command: the only place of the engine that parses arguments, prints, exits.

Imports are local to commands: only ``serve`` and the benchmarks pay for torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from specengine.errors import SpecEngineError
from specengine.garbage import nothing_to_collect
from specengine.launch import EngineCommand, absolute_model
from specengine.trouble import Formatter, take_over_threads

if TYPE_CHECKING:
    from specengine.models.convert import ModelStatus
    from specengine.models.registry import Registry


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exit with 1 and one clear line when it cannot be done."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except SpecEngineError as error:
        sys.exit(f"specengine: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specengine", description="Self-hosted inline code completion."
    )
    parser.add_argument("--version", action="version", version=f"specengine {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run an engine"))
    _add_complete(commands.add_parser("complete", help="complete at a place of a file"))
    _add_models(commands.add_parser("models", help="list, fetch and check models"))
    _add_bench(commands.add_parser("bench", help="measure on this machine"))
    _add_check(commands.add_parser("check", help="hold a promise against this machine"))
    _add_train(commands.add_parser("train", help="train an adapter or a head"))
    _add_trace(commands.add_parser("trace", help="say what the language server's trace tells"))
    demo = commands.add_parser("demo", help="type into a real file through the language server")
    demo.set_defaults(run=_demo)
    return parser


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="default: where the server writes"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page there")
    parser.set_defaults(run=_trace)


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="name in models.toml, a folder, or a .gguf file")
    parser.add_argument("--drafter", help="none, suffix, draft_model, auto, or several joined by +")
    parser.add_argument("--draft-model", help="model of the draft_model drafter")
    parser.add_argument("--precision", help="auto, int8, int4, bfloat16 or float32")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_engine_options(parser)
    parser.add_argument("--device", help="auto, cpu, cuda or another torch device")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--idle-exit", dest="idle_exit_s", type=float, metavar="SECONDS")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="listen on a Unix socket")
    parser.add_argument(
        "--listen-file", type=Path, metavar="PATH", help="listen on loopback; write the port here"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="also answer HTTP there; without --socket, only there"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help="holds the key of HTTP; else SPECENGINE_API_KEY does. Needed beyond this machine",
    )
    parser.set_defaults(run=_serve)


def _add_complete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="PATH:LINE:COLUMN", help="both count from 1")
    _add_engine_options(parser)
    parser.add_argument("--max-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_complete)


def _add_models(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all models and which are here")
    listing.add_argument("--json", action="store_true", help="print one JSON list")
    listing.set_defaults(run=_list_models)
    pull = actions.add_parser("pull", help="fetch and convert a model")
    pull.add_argument("name", nargs="?", help="default: the default model")
    pull.set_defaults(run=_pull_model)
    check = actions.add_parser("check", help="verify the files of a model")
    check.add_argument("name", nargs="?", help="default: the default model")
    check.set_defaults(run=_check_model)


def _add_train(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    fim = kinds.add_parser("fim", help="teach a model to fill in the middle; goes on where it was")
    fim.add_argument("--out", type=Path, metavar="DIR", help="folder of the run and its result")
    fim.add_argument("--init", type=Path, metavar="DIR", help="adapter to begin with")
    fim.add_argument("--tokens", type=int, default=6_000_000, help="to train on")
    fim.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    fim.add_argument("--batch-tokens", type=int, default=4096, help="of one pass; a GPU takes more")
    fim.set_defaults(run=_train_fim)
    _add_train_heads(kinds.add_parser("heads", help="teach a small network to draft for a model"))
    measure = kinds.add_parser("measure", help="how a model writes middles of held-out packages")
    measure.set_defaults(run=_measure_middles)
    for command in (fim, measure):
        command.add_argument("--model", help="name in models.toml, or a folder")
        command.add_argument("--rank", type=int, default=16, help="of the adapter")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--device", default="cpu", help="torch device")
        command.add_argument(
            "--sentinels",
            metavar="PREFIX,SUFFIX,MIDDLE,END",
            help="special tokens that mark the parts (default: those of SmolLM2's forge issues)",
        )
        command.add_argument(
            "--data",
            type=Path,
            action="append",
            metavar="DIR",
            help="folder whose subfolders are packages (default: those of our adapter, fetched)",
        )


def _add_train_heads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", default="eagle", help="medusa, eagle, mtp or parallel")
    parser.add_argument("--model", help="target: a name in models.toml, or a folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run and its result")
    parser.add_argument("--init", type=Path, metavar="DIR", help="head to begin with")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="to train on")
    parser.add_argument(
        "--stream-tokens", type=int, default=400_000, help="that the target is run over, once"
    )
    parser.add_argument("--rate", type=float, default=8e-4, help="learning rate")
    parser.add_argument("--depth", type=int, help="tokens to draft in a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto", help="in which the target is run")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or another torch device")
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder whose subfolders are packages (default: those of our heads, fetched)",
    )
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="one folder with code of your own, instead"
    )
    parser.set_defaults(run=_train_heads)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=(
            "decode",
            "door",
            "infill",
            "peers",
            "perplexity",
            "shapes",
            "typing",
            "upstream",
            "users",
        ),
        help="what to measure",
    )
    _add_engine_options(parser)
    parser.add_argument("--device", help="auto, cpu, cuda or another torch device")
    parser.add_argument("--limit", type=int, help="prompts, gaps of each set, or keys to take")
    parser.add_argument("--runs", type=int, help="repetitions; default: decode 3, peers 5")
    parser.add_argument(
        "--sets",
        metavar="NAME,…",
        help="of infill: single, multi, span; default: all. Of decode: humaneval, edits, rename, "
        "boilerplate, tests, json, yaml, html, calls, prose, noise; default: the first two",
    )
    parser.add_argument(
        "--drafters",
        metavar="NAME,…",
        help="decode: ways of drafting, side by side, each as --drafter takes it",
    )
    parser.add_argument("--alone", action="store_true", help="decode: leave transformers out")
    parser.add_argument(
        "--shapes", metavar="0.5b,7b,…", help="of shapes: sizes of Qwen2.5-Coder; default: to 7b"
    )
    parser.add_argument("--no-heal", action="store_true", help="infill: add rows without healing")
    parser.add_argument(
        "--run-tests",
        action="store_true",
        help="infill: run what the model writes, with the problems' tests, to see if it works. It "
        "runs as you, in processes with little time, memory and no right to write files; "
        "that stops mistakes, not malice",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="decode, peers: also draw the rows there"
    )
    parser.set_defaults(run=_bench)


def _add_check(parser: argparse.ArgumentParser) -> None:
    checks = parser.add_subparsers(required=True, metavar="WHAT")
    exact = checks.add_parser(
        "exact", help="is the text the same with and without drafts, on this model and device?"
    )
    _add_engine_options(exact)
    exact.add_argument("--device", help="auto, cpu, cuda or another torch device")
    exact.add_argument("--limit", type=int, default=10, help="prompts; default: 10")
    exact.add_argument("--tokens", type=int, default=64, help="of each text; default: 64")
    exact.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    exact.set_defaults(run=_check_exact)


def _serve(options: argparse.Namespace) -> None:
    _spin_briefly()
    with nothing_to_collect():
        from specengine.serve import Door, HttpDoorSettings, serve
        from specengine.settings import load_settings

    _log_to_stderr()
    names = ("model", "drafter", "draft_model", "precision", "device", "threads", "idle_exit_s")
    given = {name: getattr(options, name) for name in names}
    if options.http and options.idle_exit_s is None:
        # Clients of HTTP cannot start an engine again, as editors do.
        given["idle_exit_s"] = 0.0
    http = HttpDoorSettings.parse(options.http, options.api_key_file) if options.http else None
    serve(load_settings(given), Door(options.socket, options.listen_file, http))


def _complete(options: argparse.Namespace) -> None:
    from specengine.ask import Place, Wishes, complete_at

    wishes = Wishes(options.max_tokens, options.temperature, options.seed)
    command = _engine_command(options)
    done = asyncio.run(
        complete_at(
            Place.parse(options.place),
            command,
            wishes,
            lambda status: _show_progress(status.progress, status.detail),
        )
    )
    if not options.json:
        print(done.text)
        return
    answer = {
        "text": done.text,
        "tokens": done.token_ids,
        "stop_reason": done.stop_reason,
        "model": done.model,
        "drafter": done.drafter,
        "timings": {
            **msgspec.to_builtins(done.ms),
            **msgspec.to_builtins(done.tokens),
            "steps": done.steps,
        },
    }
    print(json.dumps(answer, ensure_ascii=False))


def _engine_command(options: argparse.Namespace) -> EngineCommand:
    from specengine.settings import EngineSettings, load_settings

    names = ("model", "drafter", "draft_model", "precision")
    settings = load_settings({name: getattr(options, name) for name in names})
    further: list[str] = []
    if settings.draft_model:
        further += ["--draft-model", absolute_model(settings.draft_model)]
    if settings.precision != EngineSettings().precision:
        further += ["--precision", settings.precision]
    # As an editor with default settings names it, so that both use one engine.
    drafter = "" if settings.drafter == EngineSettings().drafter else settings.drafter
    return EngineCommand(settings.model, drafter, tuple(further), idle_exit_s=settings.idle_exit_s)


def _list_models(options: argparse.Namespace) -> None:
    from specengine.models import registry
    from specengine.models.convert import list_models
    from specengine.models.families import can_run

    known = registry.load()
    if options.json:
        print(json.dumps([_model_facts(known, status) for status in list_models(known)]))
        return
    columns = "{:24}{:10}{:12}{:10}{:10}{:24}{}"
    print(columns.format("model", "runs", "memory", "here", "fills in", "draft model", "licence"))
    for status in list_models(known):
        entry = known.get(status.name)
        print(
            columns.format(
                f"{status.name} *" if status.name == known.default else status.name,
                "yes" if can_run(entry.architecture, entry.tokenizer) else "upstream",
                f"{entry.memory_gb:.1f} GB" if entry.memory_gb else "?",
                f"{status.size_bytes / 1e6:.0f} MB" if status.folder else "-",
                "yes" if entry.fim else "-",
                entry.draft or "-",
                status.licence or "?",
            )
        )
    print(
        "\n* default. runs: upstream means not in this engine yet, only behind another server."
        "\nmemory: in bfloat16 with 4,096 tokens of context. here: on disk; fetched when used."
        "\nfills in: reads the text behind the cursor too."
    )


def _model_facts(known: Registry, status: ModelStatus) -> dict[str, object]:
    from specengine.models.families import can_run

    entry = known.get(status.name)
    return {
        "name": status.name,
        "is_default": status.name == known.default,
        "runs": can_run(entry.architecture, entry.tokenizer),
        "memory_gb": entry.memory_gb or None,
        "size_bytes": status.size_bytes if status.folder else None,
        "reads_suffix": entry.fim is not None,
        "reads_files": entry.file_sep is not None,
        "draft": entry.draft,
        "licence": status.licence or None,
    }


def _pull_model(options: argparse.Namespace) -> None:
    from specengine.models import registry
    from specengine.models.convert import ensure_model

    known = registry.load()
    entry = known.resolve(options.name or known.default)
    folder = ensure_model(entry, _show_progress)
    print(f"{entry.name} is in {folder}")


def _check_model(options: argparse.Namespace) -> None:
    from specengine.models import registry
    from specengine.models.convert import check_model

    known = registry.load()
    check = check_model(known.resolve(options.name or known.default), _show_progress)
    if check.problems:
        sys.exit("\n".join(f"specengine: {problem}" for problem in check.problems))
    print(f"{check.name} is whole, in {check.folder}")


def _bench(options: argparse.Namespace) -> None:
    _spin_briefly()
    from specengine.bench.run import run

    run(options.what, options)


def _check_exact(options: argparse.Namespace) -> None:
    _spin_briefly()
    from specengine.bench.run import check_exact

    if not check_exact(options):
        sys.exit("specengine: some texts differ; see first_difference.")


def _train_fim(options: argparse.Namespace) -> None:
    _spin_briefly()
    from specengine.bench.machine import describe
    from specengine.train.run import train_fim

    machine = describe()
    hardware = f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}"
    adapter = train_fim(options, _benchmark_texts(), hardware, _show_progress)
    print(f'The adapter is in {adapter}. Name it in models.toml as source = "adapter:{adapter}".')


def _train_heads(options: argparse.Namespace) -> None:
    _spin_briefly()
    from specengine.bench.machine import describe
    from specengine.train.heads_run import train_heads

    machine = describe()
    hardware = f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}"
    folder = train_heads(options, _benchmark_texts(), hardware, _show_progress)
    print(f'The head is in {folder}. In models.toml: heads = {{ {options.kind} = "{folder}" }}')


def _measure_middles(options: argparse.Namespace) -> None:
    from specengine.train.run import measure_middles

    print("\n".join(measure_middles(options, _benchmark_texts(), _show_progress)))


def _benchmark_texts() -> list[str]:
    """Return the texts that benchmarks ask for, of which nothing may be learnt."""
    from specengine.bench.workloads import load_problems

    return [problem.prompt + problem.canonical_solution for problem in load_problems()]


def _trace(options: argparse.Namespace) -> None:
    from specengine.trace.page import write_page
    from specengine.trace.reading import default_path, read_trace
    from specengine.trace.summary import summarise
    from specengine.trace.table import as_lines

    trace = read_trace(options.file or default_path())
    print("\n".join(as_lines(summarise(trace))))
    if options.html is not None:
        write_page(trace, options.html)
        print(f"\nThe page is in {options.html}")


def _demo(options: argparse.Namespace) -> None:
    from specengine.bench.demo import demo

    demo()


def _spin_briefly() -> None:
    """Set up torch's threads; call it before torch is loaded.

    By default its threads wait for each other by spinning for milliseconds. When the cores have
    other work too, the one that is waited for does not run, and a pass took up to 40 times as long.
    A few microseconds bridge the gaps within a pass just as well.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def _version() -> str:
    from importlib.metadata import version

    return version("specengine")


def _show_progress(fraction: float, detail: str) -> None:
    """Draw one line on a terminal; stay silent in a pipe, except for the end."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{fraction:4.0%} {detail}", end="", file=sys.stderr, flush=True)
        if fraction >= 1:
            print(file=sys.stderr)


def _log_to_stderr() -> None:
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_stderr])
    take_over_threads()


if __name__ == "__main__":
    main()
