"""``specengine train heads``: from a model and folders of code to a head that drafts for it."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import torch

from specengine.decoding.prompt import PromptLayout
from specengine.errors import ConfigError, SettingsInvalid
from specengine.heads.files import Verifier, load, save
from specengine.heads.head import Kind
from specengine.models import registry
from specengine.models.architecture import Architecture, read_architecture
from specengine.models.convert import ensure_model
from specengine.models.registry import ModelEntry
from specengine.models.staging import OnProgress, cache_root
from specengine.models.target import Target
from specengine.models.targets import load_target
from specengine.models.tensor_files import read_tensors
from specengine.models.tokenizer import Tokenizer
from specengine.train.beginnings import begin, draft_vocabulary, frozen_of, taps_of
from specengine.train.card import check_plots
from specengine.train.corpus import Corpus, read_corpus, read_workspace
from specengine.train.fetch import Listing, fetch_corpus, read_listing
from specengine.train.head_card import HeadMaking, write_head_card
from specengine.train.head_samples import PROMPT_TOKENS, openings
from specengine.train.heads_loop import MEASURED_SHARDS, HeadPlan, HeadRun, read_head_history
from specengine.train.memory import keep_memory
from specengine.train.objectives import TRAINED
from specengine.train.run import say, stop_wish
from specengine.train.streams import LENGTH, ROWS, StreamStore

HEAD: Final = "head"
"""Folder of the result, within that of the run."""
VOCABULARY_TEXTS: Final = 4000
"""Texts whose tokens are counted for the head's vocabulary."""
DEPTHS: Final = {"medusa": 4, "eagle": 4, "mtp": 3, "parallel": 5, "draft_model": 5}
DEPTHS_OF_OWN: Final = {"layer_skip": 7, "streaming": 4}
"""Of kinds that read streams which no other kind does; theirs lie in folders of their own."""


def train_heads(
    options: argparse.Namespace, forbidden: Sequence[str], machine: str, on_progress: OnProgress
) -> Path:
    """Train a head, or go on where a run was interrupted; return its folder.

    ``forbidden`` are texts of which nothing may be learnt, because they are measured on.

    Raises:  SpecEngineError.
    """
    _check(options)
    check_plots()
    entry = registry.load().resolve(options.model or registry.load().default)
    folder = ensure_model(entry, on_progress)
    base = _Base(entry, folder)
    corpus, listing = _corpus(options, forbidden, on_progress)
    kind = cast("Kind", options.kind)
    layers = _layers(options, base.architecture)
    train, held_out = _streams(options, base, corpus, layers, on_progress)
    weights = base.weights()
    if options.init is not None:
        head = load(options.init)
        sizes = base.architecture
        head.check_fits(sizes.hidden_size, sizes.vocab_size, sizes.num_layers)
    else:
        vocabulary = _vocabulary(base, corpus)
        depth = options.depth or (DEPTHS | DEPTHS_OF_OWN)[kind]
        head = begin(kind, depth, base.architecture, weights, vocabulary, options.seed)
    passed = head.layers if kind == "streaming" else ()
    frozen = frozen_of(base.architecture, weights, passed)
    out = options.out or cache_root() / "train" / f"{entry.name}-{kind}"
    plan = HeadPlan(options.tokens, options.rate, options.seed)
    run = HeadRun(head, frozen, out, plan, on_saved=keep_memory())
    with stop_wish() as wishes:
        run.train(train, held_out, say, lambda: bool(wishes))
    result = out / HEAD
    save(run.head, result, Verifier(entry.name, base.architecture))
    making = HeadMaking(
        name=f"{entry.name}-{kind}",
        kind=kind,
        target=entry.name,
        licence=entry.licence or "unknown",
        command=_command(options, kind),
        machine=machine,
        corpus=corpus.summary(),
        num_stream_tokens=len(train) * ROWS * LENGTH,
        num_bytes=sum(file.stat().st_size for file in result.glob("*.safetensors")),
        listing=listing,
    )
    write_head_card(result, making, read_head_history(out))
    return result


@dataclass(frozen=True)
class _Base:
    """The target and its folder."""

    entry: ModelEntry
    folder: Path

    @property
    def architecture(self) -> Architecture:
        return read_architecture(self.folder)

    def weights(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            tensors |= read_tensors(file)
        return tensors

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    def layout(self) -> PromptLayout:
        return PromptLayout(self.entry, self.tokenizer(), PROMPT_TOKENS)


def _check(options: argparse.Namespace) -> None:
    if options.kind not in TRAINED:
        raise SettingsInvalid(
            f"there is no head of the kind {options.kind!r} to train.",
            hint=f"There are {', '.join(TRAINED)}.",
        )
    least = ROWS * LENGTH
    if options.tokens < least or options.stream_tokens < least or not 0 < options.rate < 1:
        raise SettingsInvalid(
            f"--tokens and --stream-tokens must be {least} or more, --rate between 0 and 1."
        )
    if options.depth is not None and not 1 <= options.depth <= 16:
        raise SettingsInvalid(f"--depth is {options.depth}; allowed are 1 to 16.")


def _layers(options: argparse.Namespace, architecture: Architecture) -> tuple[int, ...]:
    """Return the streams that are kept: those of all kinds, so that nearly all kinds share them."""
    num_layers = architecture.num_layers
    kind = options.kind if options.kind in DEPTHS_OF_OWN else "eagle"
    wanted = {num_layers, *taps_of(kind, num_layers)}
    if options.init is not None:
        wanted |= set(load(options.init).layers)
    return tuple(sorted(wanted))


def _corpus(
    options: argparse.Namespace, forbidden: Sequence[str], on_progress: OnProgress
) -> tuple[Corpus, Listing | None]:
    if options.workspace is not None:
        if not options.workspace.is_dir():
            raise ConfigError(f"{options.workspace} is no folder.")
        corpus, listing = read_workspace(options.workspace, forbidden), None
    elif options.data:
        corpus, listing = read_corpus(options.data, forbidden), None
    else:
        listing, packages = read_listing(), cache_root() / "corpus"
        fetch_corpus(listing, packages, on_progress)
        corpus = read_corpus([packages], forbidden)
    if not corpus.train or not corpus.held_out:
        raise ConfigError(
            f"There are {len(corpus.train)} files to learn from and {len(corpus.held_out)} that "
            "are held out; both are needed.",
            hint="Give folders with more source code.",
        )
    on_progress(1.0, corpus.summary())
    return corpus, listing


def _streams(
    options: argparse.Namespace,
    base: _Base,
    corpus: Corpus,
    layers: tuple[int, ...],
    on_progress: OnProgress,
) -> tuple[StreamStore, StreamStore]:
    """Return what to learn from and what to measure on, computed where it is not there yet."""
    source = _digest(options)
    folder = cache_root() / "streams" / f"{base.entry.name}-{source}"
    if options.kind in DEPTHS_OF_OWN:
        folder = folder.with_name(f"{folder.name}-{options.kind}")
    name = f"{base.folder.name} {source}, written by itself"
    numbers = {"train": options.stream_tokens // (ROWS * LENGTH), "held-out": MEASURED_SHARDS}
    documents = {"train": corpus.train, "held-out": corpus.held_out}
    stores = {part: StreamStore(folder / part, name, layers) for part in numbers}
    layout, tokenizer = base.layout(), base.tokenizer()
    ends = tokenizer.end_ids | tokenizer.special_ids  # as in the engine
    target: Target | None = None
    for part, store in stores.items():
        if len(store) >= numbers[part]:
            continue
        target = target or load_target(base.folder, options.precision, device=options.device)
        prompts = openings(documents[part], layout, options.seed)

        def show(done: float, part: str = part) -> None:
            on_progress(done, f"{base.entry.name} goes on with code ({part})")

        store.collect(target, prompts, ends, numbers[part], show)
    return stores["train"], stores["held-out"]


def _vocabulary(base: _Base, corpus: Corpus) -> torch.Tensor:
    prompts = itertools.islice(openings(corpus.train, base.layout(), seed=1), VOCABULARY_TEXTS)
    texts = (prompt.token_ids for prompt in prompts)
    return draft_vocabulary(texts, base.architecture.vocab_size)


def _digest(options: argparse.Namespace) -> str:
    """Return a short name of where the text comes from and how it is drawn."""
    places = [options.workspace] if options.workspace else options.data or []
    named = "\n".join(sorted(str(place.resolve()) for place in places))
    text = f"{named}\n{options.seed}\n{options.precision}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _command(options: argparse.Namespace, kind: str) -> str:
    words = ["specengine", "train", "heads", "--kind", kind]
    for name in ("model", "tokens", "stream_tokens", "rate", "depth", "seed"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("init", "workspace"):
        if getattr(options, name) is not None:
            words += [f"--{name}", str(getattr(options, name))]
    for place in options.data or ():
        words += ["--data", str(place)]
    return shlex.join(words)
