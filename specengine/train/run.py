"""``specengine train``: from options to a trained adapter with its card."""

from __future__ import annotations

import argparse
import logging
import shlex
import shutil
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from specengine.errors import ConfigError, SettingsInvalid
from specengine.models import registry
from specengine.models.adapters import Adapter
from specengine.models.architecture import read_architecture
from specengine.models.convert import ensure_model
from specengine.models.registry import ModelEntry
from specengine.models.staging import OnProgress, cache_root
from specengine.models.tensor_files import read_tensors
from specengine.models.tokenizer import Tokenizer
from specengine.train.batches import BatchMaker, measured_samples
from specengine.train.card import Making, check_plots, write_card
from specengine.train.corpus import Corpus, DocumentChooser, read_corpus
from specengine.train.fetch import Listing, fetch_corpus, read_listing
from specengine.train.loop import Plan, Run, measure, read_history
from specengine.train.memory import keep_memory
from specengine.train.network import Network
from specengine.train.samples import SampleLayout, SampleMaker, Sentinels, SentinelTexts

logger = logging.getLogger(__name__)

BASE: Final = "smollm2-135m"
RANK: Final = 16
TOKENS: Final = 6_000_000
MEASURED: Final[Sequence[SampleLayout]] = ("plain", "suffix_first")
ADAPTER: Final = "adapter"
"""Folder of the result, within that of the run."""


def train_fim(
    options: argparse.Namespace, forbidden: Sequence[str], machine: str, on_progress: OnProgress
) -> Path:
    """Train an adapter, or go on where a run was interrupted; return its folder.

    ``forbidden`` are texts of which nothing may be learnt, because they are measured on.

    Raises:  SpecEngineError.
    """
    plan = _plan(options)
    check_plots()
    trim = keep_memory()
    entry, folder = _base(options, on_progress)
    tokenizer = Tokenizer.load(folder)
    texts = _sentinels(options)
    maker = SampleMaker(tokenizer, Sentinels.of(tokenizer, texts))
    corpus, listing = _corpus(options, forbidden, on_progress, only_held_out=False)
    network = _network(folder, options)
    if options.init is not None:
        network.take(Adapter.load(options.init))
    out: Path = options.out or cache_root() / "train" / f"{entry.name}-fim"
    run = Run(network, out, plan, on_saved=trim)
    batches = BatchMaker(DocumentChooser(corpus.train), maker, plan.seed)
    measured = measured_samples(corpus.held_out, maker, MEASURED)
    with stop_wish() as wishes:
        run.train(batches, measured, say, lambda: bool(wishes))
    adapter = out / ADAPTER
    network.adapter().save(adapter, entry.source)
    making = Making(
        name=f"{entry.name}-fim",
        base=entry.name,
        base_licence=entry.licence or "unknown",
        command=_command(options),
        machine=machine,
        corpus=corpus.summary(),
        sentinels=f"suffix `{texts.suffix}`, prefix `{texts.prefix}`, middle `{texts.middle}`, "
        f"end `{texts.end}`",
        listing=listing,
    )
    write_card(adapter, making, read_history(out))
    return adapter


def measure_middles(
    options: argparse.Namespace, forbidden: Sequence[str], on_progress: OnProgress
) -> list[str]:
    """Return how well a model writes the middles of held-out packages, a line for each layout."""
    _, folder = _base(options, on_progress)
    tokenizer = Tokenizer.load(folder)
    maker = SampleMaker(tokenizer, Sentinels.of(tokenizer, _sentinels(options)))
    corpus, _ = _corpus(options, forbidden, on_progress, only_held_out=True)
    network = _network(folder, options)
    lines: list[str] = []
    for layout, samples in measured_samples(corpus.held_out, maker, MEASURED).items():
        row = measure(network, layout, samples, 0)
        lines.append(
            f"{layout:14}{row.num_samples} middles, perplexity {row.perplexity:.3f}, "
            f"exact {row.exact_match:.1%}, ends {row.ends:.1%}"
        )
    return lines


def _plan(options: argparse.Namespace) -> Plan:
    if min(options.tokens, options.rank, options.batch_tokens) < 1 or not 0 < options.rate < 1:
        raise SettingsInvalid(
            "--tokens, --rank and --batch-tokens must be 1 or more, --rate between 0 and 1."
        )
    return Plan(
        tokens=options.tokens,
        learning_rate=options.rate,
        batch_tokens=options.batch_tokens,
        seed=options.seed,
    )


def _sentinels(options: argparse.Namespace) -> SentinelTexts:
    if options.sentinels is None:
        return SentinelTexts()
    names = [name.strip() for name in options.sentinels.split(",")]
    if len(names) != 4 or len(set(names)) != 4:
        raise SettingsInvalid(
            f"--sentinels has {len(names)} names; it needs four different ones.",
            hint="Name special tokens for prefix, suffix, middle and end, joined by commas.",
        )
    return SentinelTexts(*names)


def _base(options: argparse.Namespace, on_progress: OnProgress) -> tuple[ModelEntry, Path]:
    entry = registry.load().resolve(options.model or BASE)
    return entry, ensure_model(entry, on_progress)


def _corpus(
    options: argparse.Namespace,
    forbidden: Sequence[str],
    on_progress: OnProgress,
    *,
    only_held_out: bool,
) -> tuple[Corpus, Listing | None]:
    listing, folders = None, options.data
    if not folders:
        listing, folders = read_listing(), [cache_root() / "corpus"]
        fetch_corpus(listing, folders[0], on_progress, only_held_out=only_held_out)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder.", hint="Give --data a folder.")
    on_progress(0.5, "reading source files")
    corpus = read_corpus(folders, forbidden)
    if not corpus.held_out or not (corpus.train or only_held_out):
        raise ConfigError(
            f"There are {len(corpus.train)} files to learn from and {len(corpus.held_out)} of "
            "packages that are held out; both are needed.",
            hint="Give folders whose subfolders are packages with source code, sixteen or more.",
        )
    on_progress(1.0, corpus.summary())
    return corpus, listing


def _network(folder: Path, options: argparse.Namespace) -> Network:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= read_tensors(file)
    torch.manual_seed(options.seed)  # pyright: ignore[reportUnknownMemberType]
    has_compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    if not has_compiler:
        logger.warning("There is no C++ compiler: steps take about twice as long.")
    return Network(
        read_architecture(folder),
        weights,
        options.rank,
        device=options.device,
        is_compiled=has_compiler,
    )


@contextmanager
def stop_wish() -> Generator[list[int]]:
    """Collect wishes to stop, so that the step that runs is finished and saved."""
    wishes: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: wishes.append(number))
    try:
        yield wishes
    finally:
        signal.signal(signal.SIGINT, before)


def say(line: str) -> None:
    """Show a step in place on a terminal, and each of them as a line in a file."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
    else:
        sys.stderr.write(f"{line.rstrip()}\n")
    sys.stderr.flush()


def _command(options: argparse.Namespace) -> str:
    words = ["specengine", "train", "fim"]
    for name in ("model", "tokens", "rank", "rate", "batch_tokens", "seed", "device"):
        value = getattr(options, name)
        words += [f"--{name.replace('_', '-')}", str(BASE if value is None else value)]
    if options.init is not None:
        words += ["--init", str(options.init)]
    if options.sentinels is not None:
        words += ["--sentinels", options.sentinels]
    for folder in options.data or ():
        words += ["--data", str(folder)]
    return shlex.join(words)
