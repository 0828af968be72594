"""Who takes part when engines are compared, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from specengine.bench import llama_cpp, peers
from specengine.bench.decode import PLAIN
from specengine.bench.gguf_weights import BFLOAT16, gguf_weights
from specengine.bench.peer_process import EngineName, Recipe
from specengine.bench.peer_rows import PREFILL_LENGTHS
from specengine.bench.workloads import NUM_TOKENS
from specengine.errors import SettingsInvalid
from specengine.models.architecture import read_architecture
from specengine.models.convert import ensure_model
from specengine.models.registry import ModelEntry, Registry
from specengine.models.staging import OnProgress
from specengine.settings import EngineSettings

PRECISIONS: Final = ("int8", BFLOAT16, "float32", "int4")
"""Of ours, where none is asked for."""


@dataclass(frozen=True)
class Ground:
    """What all contestants have in common."""

    entry: ModelEntry
    folder: Path
    """Its weights, in our layout."""
    threads: int
    context_tokens: int


@dataclass(frozen=True)
class Lineup:
    """Who is compared."""

    recipes: Sequence[Recipe]
    left_out: Sequence[str] = ()
    """A line for each that lacks something."""


def model_to_compare(known: Registry, name: str) -> ModelEntry:
    """Return the model of that name; without one, the default's base, which others can run too.

    Raises:  ModelUnknown.
    """
    entry = known.resolve(name or known.default)
    return entry if name or entry.base is None else entry.base


def usable_lengths(entry: ModelEntry, folder: Path) -> list[int]:
    """Return the lengths of prompts that a model can read, and go on from.

    Raises:  SettingsInvalid when even the shortest is too long.
    """
    context_len = read_architecture(folder).context_len
    lengths = [length for length in PREFILL_LENGTHS if context_for([length]) <= context_len]
    if not lengths:
        raise SettingsInvalid(
            f"{entry.name} reads at most {context_len} tokens; "
            f"to compare engines it must read {context_for(PREFILL_LENGTHS[:1])}.",
            hint="Choose another model.",
        )
    return lengths


def context_for(lengths: Sequence[int]) -> int:
    """Return how many positions all contestants get: the longest prompt, what they write, a draft.

    Rounded up as llama.cpp and ours do.
    """
    return -(-(max(lengths) + 2 * NUM_TOKENS) // 256) * 256


def line_up(
    known: Registry, settings: EngineSettings, ground: Ground, on_progress: OnProgress
) -> Lineup:
    """Return all contestants that this machine can run; plain decoding comes first in each engine.

    Raises:  ConfigError, LoadError.
    """
    if settings.device not in ("auto", "cpu"):
        raise SettingsInvalid(
            f"device is {settings.device}, but engines are compared on the CPU.",
            hint="Choose --device cpu.",
        )
    parts = [
        _transformers(known, settings, ground, on_progress),
        _llama_cpp(ground, on_progress),
        _own(settings, ground),
    ]
    return Lineup(
        [recipe for part in parts for recipe in part.recipes],
        [line for part in parts for line in part.left_out],
    )


def _transformers(
    known: Registry, settings: EngineSettings, ground: Ground, on_progress: OnProgress
) -> Lineup:
    if not peers.has_transformers():
        return Lineup([], [f"transformers is left out: not installed. {peers.INSTALL_HINT}"])
    plain = _recipe("transformers", BFLOAT16, ground.folder, ground)
    lookup = msgspec.structs.replace(plain, drafter=peers.lookup_name(peers.LOOKUP_TOKENS))
    partner = settings.draft_model or ground.entry.draft
    if not partner:
        why = f"models.toml pairs no draft model with {ground.entry.name}"
        return Lineup([plain, lookup], [f"assisted generation of transformers is left out: {why}."])
    draft_folder = ensure_model(known.resolve(partner), on_progress)
    assisted = msgspec.structs.replace(plain, drafter=peers.ASSISTED, draft_model=str(draft_folder))
    return Lineup([plain, lookup, assisted])


def _llama_cpp(ground: Ground, on_progress: OnProgress) -> Lineup:
    binary = llama_cpp.find_server()
    if binary is None:
        return Lineup([], [f"llama.cpp is left out: not installed. {llama_cpp.INSTALL_HINT}"])
    weights = gguf_weights(ground.entry, on_progress)
    if weights is None:
        return Lineup([], [f"llama.cpp is left out: {ground.entry.name} is no GGUF file."])
    files = {weights.precision: weights.stored}
    # A file that is in bfloat16 already needs no second one.
    if weights.precision != "BF16":
        files[BFLOAT16] = weights.bfloat16
    recipes: list[Recipe] = []
    for precision, file in files.items():
        plain = _recipe("llama.cpp", precision, file, ground)
        plain = msgspec.structs.replace(plain, binary=binary)
        recipes += [plain, msgspec.structs.replace(plain, drafter=llama_cpp.NGRAM)]
    return Lineup(recipes)


def _own(settings: EngineSettings, ground: Ground) -> Lineup:
    precisions = PRECISIONS if settings.precision == "auto" else (settings.precision,)
    plain = [_recipe("specengine", precision, ground.folder, ground) for precision in precisions]
    return Lineup(
        [
            msgspec.structs.replace(recipe, drafter=drafter)
            for recipe in plain
            for drafter in dict.fromkeys((PLAIN, settings.drafter))
        ]
    )


def _recipe(engine: EngineName, precision: str, model: Path, ground: Ground) -> Recipe:
    """Return plain decoding of an engine."""
    return Recipe(engine, precision, PLAIN, str(model), ground.threads, ground.context_tokens)
