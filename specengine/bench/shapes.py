"""How fast passes of larger models are on this device, without their weights.

The time of a pass does not depend on what the weights are, so random ones of the right shapes do:
nothing is fetched. Which drafts would be accepted does depend on them; so what speculation would
bring is computed from an assumed acceptance, and the column says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import torch

from specengine.cache.kv_cache import KVCache
from specengine.drafters.base import Observer
from specengine.drafters.trained import drafts_of
from specengine.heads.head import Head, HeadSizes
from specengine.models.architecture import Architecture
from specengine.models.graphs import GraphDecoder, run_again
from specengine.models.load import TensorReader
from specengine.models.memory import NO_SEQUENCES, check_memory
from specengine.models.target import ChainTarget, Target
from specengine.models.targets import DTYPES, Precision, target_of

ASSUMED_ACCEPTANCE: Final = 0.7
"""Of each drafted token, given that those before it were accepted."""
STEP_WIDTHS: Final = (1, 8, 16)
CONTEXTS: Final = (512, 4096)
PROMPT_TOKENS: Final = 2048
REPEATS: Final = 7
CHAINED: Final = 8
HEAD_DEPTH: Final = 5
HEAD_TOKENS: Final = 32_000
"""Those that the EAGLE head of the measurement knows."""
HEAD_NORMS: Final = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
COMMITTED: Final = 3
"""Tokens that it reads before each draft, which is what a pass writes."""
WEIGHT_SPREAD: Final = 0.02

_QWEN: Final = Architecture(
    family="qwen2",
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4_864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    context_len=32_768,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    has_tied_embeddings=True,
)
SHAPES: Final[Mapping[str, Architecture]] = {
    "0.5b": _QWEN,
    "1.5b": replace(
        _QWEN,
        hidden_size=1_536,
        intermediate_size=8_960,
        num_layers=28,
        num_heads=12,
        head_dim=128,
    ),
    "3b": replace(
        _QWEN,
        hidden_size=2_048,
        intermediate_size=11_008,
        num_layers=36,
        num_heads=16,
        head_dim=128,
    ),
    "7b": replace(
        _QWEN,
        vocab_size=152_064,
        hidden_size=3_584,
        intermediate_size=18_944,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        has_tied_embeddings=False,
    ),
    "14b": replace(
        _QWEN,
        vocab_size=152_064,
        hidden_size=5_120,
        intermediate_size=13_824,
        num_layers=48,
        num_heads=40,
        num_kv_heads=8,
        head_dim=128,
        has_tied_embeddings=False,
    ),
}
"""Those of Qwen2.5-Coder."""

OnProgress = Callable[[float, str], None]


class ShapeRow(msgspec.Struct, frozen=True):
    """One shape in one precision, at one number of positions before a pass."""

    shape: str
    precision: str
    device: str
    context: int
    ms_by_width: dict[int, float]
    """Milliseconds of a pass of 1, 8 and 16 rows; medians."""
    spread: float
    """Of the pass of 8 rows: largest minus smallest time, over the median."""
    unrecorded_ms: float | None
    """A pass of 8 rows without CUDA graphs; None where there are none."""
    chained_ms: float | None
    """Of each token of a draft of 8 that the device makes by itself; None where it cannot."""
    eagle_ms: float | None
    """Of a draft by an EAGLE-3 head of the target's sizes that the device makes by itself: 3 tokens
    read, a tree of 5 levels. None where the host would look at each level."""
    prompt_tok_s: float
    plain_tok_s: float
    synthetic_tok_s: float
    """With drafts of 7 tokens at no cost, of which each is accepted with probability 0.7."""
    memory_gb: float | None
    """Most that torch had on the device, in 10^9 bytes."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    shapes: Sequence[str]
    precisions: Sequence[Precision]
    device: torch.device
    contexts: Sequence[int] = CONTEXTS
    prompt_tokens: int = PROMPT_TOKENS
    repeats: int = REPEATS


class RandomReader(TensorReader):
    """Makes weights of any name as they are asked for."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__({}, dtype)
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def has(self, name: str) -> bool:
        """Say that there is any weight."""
        return True

    def names(self) -> Collection[str]:
        """Return nothing: no weight can be left over."""
        return ()

    def matrix(self, name: str, *shape: int) -> torch.Tensor:
        """Return small random numbers."""
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        return weight.normal_(0, WEIGHT_SPREAD, generator=self._generator)

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        """Return ones."""
        return torch.ones(shape, device=self._device)


def measure(
    plan: Plan, on_progress: OnProgress, sizes_of: Mapping[str, Architecture] = SHAPES
) -> list[ShapeRow]:
    """Return a row for each shape, precision and context.

    Raises:  LoadError when a model does not fit.
    """
    rows: list[ShapeRow] = []
    asked: list[tuple[str, Precision]] = [
        (shape, precision) for shape in plan.shapes for precision in plan.precisions
    ]
    for number, (shape, precision) in enumerate(asked):
        on_progress(number / len(asked), f"{shape} in {precision}")
        sizes = sizes_of[shape]
        check_memory(sizes, precision, plan.device, NO_SEQUENCES)
        if plan.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        reader = RandomReader(DTYPES[precision], plan.device)
        target = target_of(reader, sizes, precision, plan.device, step_rows=max(STEP_WIDTHS))
        cache = KVCache(target.kv_shape, max(*plan.contexts, plan.prompt_tokens) + 512)
        measured = [_row(plan, shape, target, cache, context) for context in plan.contexts]
        # At last, so that the head's memory is not counted as the model's.
        eagle_ms = _eagle_ms(plan, target)
        rows += [msgspec.structs.replace(row, eagle_ms=eagle_ms) for row in measured]
        del target, cache, reader
    on_progress(1.0, "done")
    return rows


def expected_tokens(num_drafted: int, acceptance: float) -> float:
    """Return the tokens that a pass writes on average.

    Source:  Leviathan et al. 2023, arXiv 2211.17192, equation 1.
    """
    return (1 - acceptance ** (num_drafted + 1)) / (1 - acceptance)


def _row(plan: Plan, shape: str, target: Target, cache: KVCache, context: int) -> ShapeRow:
    times = {width: _step_ms(plan, target, cache, context, width) for width in STEP_WIDTHS}
    medians = {width: statistics.median(each) for width, each in times.items()}
    on_device = plan.device.type == "cuda"
    return ShapeRow(
        shape=shape,
        precision=target.precision,
        device=str(plan.device),
        context=context,
        ms_by_width={width: round(median, 2) for width, median in medians.items()},
        spread=round((max(times[8]) - min(times[8])) / medians[8], 3),
        unrecorded_ms=_unrecorded_ms(plan, target, context),
        chained_ms=_chained_ms(plan, target, cache, context),
        eagle_ms=None,
        prompt_tok_s=round(_prompt_tok_s(plan, target, cache)),
        plain_tok_s=round(1000 / medians[1], 1),
        synthetic_tok_s=round(1000 / medians[8] * expected_tokens(7, ASSUMED_ACCEPTANCE), 1),
        memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_device else None,
    )


def _step_ms(plan: Plan, target: Target, cache: KVCache, context: int, width: int) -> list[float]:
    """Return the milliseconds of some passes of so many rows."""

    def one_pass() -> None:
        # What the positions before hold does not matter for the time.
        cache.length = context
        float(target.forward([0] * width, cache, num_logits=width)[0, 0])

    return _times_ms(plan, one_pass)


def _times_ms(plan: Plan, work: Callable[[], object]) -> list[float]:
    """Return the milliseconds of some calls; the first, which may record, is left out."""
    times: list[float] = []
    for _ in range(plan.repeats + 1):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1000)
    return times[1:]


def _prompt_tok_s(plan: Plan, target: Target, cache: KVCache) -> float:
    speeds: list[float] = []
    for _ in range(3):
        cache.truncate(0)
        started = time.perf_counter()
        float(target.forward([0] * plan.prompt_tokens, cache, num_logits=1)[0, 0])
        speeds.append(plan.prompt_tokens / (time.perf_counter() - started))
    return max(speeds[1:])


def _unrecorded_ms(plan: Plan, target: Target, context: int) -> float | None:
    if not isinstance(target, GraphDecoder):
        return None
    plain = GraphDecoder(
        target.architecture,
        target.weights,
        target.precision,
        step_rows=target.step_rows,
        recorder=run_again,
    )
    cache = KVCache(plain.kv_shape, context + 512)
    return round(statistics.median(_step_ms(plan, plain, cache, context, 8)), 2)


def _chained_ms(plan: Plan, target: Target, cache: KVCache, context: int) -> float | None:
    if not isinstance(target, ChainTarget):
        return None

    def one_draft() -> None:
        cache.length = context
        target.greedy_chain([0], cache, CHAINED)

    return round(statistics.median(_times_ms(plan, one_draft)) / CHAINED, 2)


def _eagle_ms(plan: Plan, target: Target) -> float | None:
    """Return the milliseconds of a draft, which looks at as many rows in any context."""
    if not isinstance(target, GraphDecoder):
        return None
    recorder = None if plan.device.type == "cuda" else run_again
    source = drafts_of(_eagle_head(target), target, 1, recorder=recorder)
    token_ids = [0, 0]
    drafter = source.start(token_ids)
    assert isinstance(drafter, Observer)
    rows = torch.randn(COMMITTED, target.architecture.hidden_size, device=target.kv_shape.device)

    def one_draft() -> None:
        start = len(token_ids) - 1
        token_ids.extend([0] * COMMITTED)
        drafter.observe(dict.fromkeys(drafter.layers, rows), start)
        drafter.propose(token_ids, max(STEP_WIDTHS) // 2 - 1)

    return round(statistics.median(_times_ms(plan, one_draft)), 2)


def _eagle_head(target: Target) -> Head:
    """Return a head of random weights that is as large as one layer of the target."""
    sizes = target.architecture
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, values = (num * sizes.head_dim for num in (sizes.num_heads, sizes.num_kv_heads))
    matrices = {
        "fc": (hidden, 3 * hidden),
        "lm_head": (min(HEAD_TOKENS, sizes.vocab_size), hidden),
        "layers.0.self_attn.q_proj": (queries, 2 * hidden),
        "layers.0.self_attn.k_proj": (values, 2 * hidden),
        "layers.0.self_attn.v_proj": (values, 2 * hidden),
        "layers.0.self_attn.o_proj": (hidden, queries),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    norms = ("norm", *(f"layers.0.{name}" for name in HEAD_NORMS))
    reader = RandomReader(torch.bfloat16, target.kv_shape.device)
    tensors = {f"{name}.weight": reader.matrix(name, *shape) for name, shape in matrices.items()}
    tensors |= {f"{name}.weight": reader.vector(name, hidden) for name in norms}
    return Head(
        kind="eagle",
        layers=(1, sizes.num_layers // 2, sizes.num_layers),
        depth=HEAD_DEPTH,
        sizes=HeadSizes(
            hidden,
            inner,
            sizes.num_heads,
            sizes.num_kv_heads,
            sizes.head_dim,
            sizes.norm_eps,
            sizes.rope_theta,
        ),
        tensors=tensors,
        draft_ids=torch.arange(matrices["lm_head"][0]),
    )
