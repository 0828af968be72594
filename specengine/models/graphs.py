"""The decoder for an accelerator: passes of fixed shapes, each captured once and replayed.

There a pass of the plain decoder would wait for the host, which launches a thousand small kernels.
So everything that differs between passes lies in one tensor of the device, and a pass is recorded
for each width and each length of the window. The host sends that tensor, replays, and waits once,
for the logits.

A step has ``step_rows`` rows whatever was drafted, and a prompt is read ``PROMPT_ROWS`` at a time,
so most passes of plain and speculative decoding run the same kernels on the same shapes. Not all:
a tree's paths lie at other places of the window, the step behind a prompt's last chunk is as wide
as that, and the window's length depends on where a step began. Unlike on the CPU, rows may round
otherwise then.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.models.architecture import Architecture
from specengine.models.attention import HIDDEN
from specengine.models.decoder import Decoder
from specengine.models.linear import ROW_BLOCK
from specengine.models.target import Rows, Tap, Tree
from specengine.models.weights import Product, Weights

PROMPT_ROWS: Final = 256
"""Tokens of a pass that reads a prompt."""
LEAST_WINDOW: Final = 1024
"""Positions that the shortest pass attends to; windows double from there."""

Replay = Callable[[], None]


Recorder = Callable[[Replay], Replay]
"""Turns a pass over tensors that stay in place into something that repeats it."""


@dataclass(frozen=True)
class Inputs:
    """What differs between passes, in one tensor of the device, and views of it.

    Shapes:  token_ids [rows], start [1], scored [step_rows]: the rows whose logits are wanted;
        depths [rows]: how far each stands behind ``start``; seen [rows, rows]: 1 where a row sees
        another one of the pass.
    """

    all: torch.Tensor
    token_ids: torch.Tensor
    start: torch.Tensor
    scored: torch.Tensor
    depths: torch.Tensor
    seen: torch.Tensor

    @classmethod
    def allocate(cls, num_rows: int, num_scored: int, device: torch.device) -> Inputs:
        """Return inputs for passes of one width."""
        sizes = (num_rows, 1, num_scored, num_rows, num_rows * num_rows)
        everything = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        ends = list(itertools.accumulate(sizes))
        token_ids, start, scored, depths, seen = (
            everything[end - size : end] for size, end in zip(sizes, ends, strict=True)
        )
        return cls(everything, token_ids, start, scored, depths, seen.view(num_rows, num_rows))

    def set(self, token_ids: list[int], start: int, num_logits: int, tree: Tree | None) -> None:
        """Send a pass's values to the device; rows that are not needed are padding."""
        num_rows, width = len(token_ids), len(self.token_ids)
        depths = list(range(width))
        seen = torch.ones(width, width, dtype=torch.long).tril_()
        if tree is not None:
            depths[:num_rows] = tree.depths
            seen[:num_rows] = 0
            for row, path in enumerate(tree.paths):
                seen[row, list(path)] = 1
        scored = _padded(range(num_rows - num_logits, num_rows), len(self.scored))
        values = [*_padded(token_ids, width), start, *scored, *depths]
        self.all.copy_(torch.cat((torch.tensor(values), seen.flatten())))


class GraphDecoder(Decoder):
    """A decoder whose passes are recorded; calls must not overlap."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights[Product],
        precision: str,
        *,
        step_rows: int,
        recorder: Recorder | None = None,
    ) -> None:
        """Take weights on the device; steps of up to ``step_rows`` rows will all have that many."""
        super().__init__(architecture, weights, precision)
        self.step_rows = -(-step_rows // ROW_BLOCK) * ROW_BLOCK
        self._record = recorder or CudaRecorder()
        self._inputs = {
            rows: Inputs.allocate(rows, self.step_rows, self.device)
            for rows in (self.step_rows, PROMPT_ROWS)
        }
        self._logits_out = torch.zeros(self.step_rows, self.vocab_size, device=self.device)
        self._tapped: dict[int, torch.Tensor] = {}
        """Streams that passes keep, [PROMPT_ROWS, hidden] each, by how many layers they passed."""
        self._turns = torch.empty(0)
        self._recorded: weakref.WeakKeyDictionary[KVCache, dict[tuple[int, int], Replay]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def prompt_rows(self) -> int:
        """Return the rows of a pass that reads a prompt."""
        return PROMPT_ROWS

    @property
    def kv_shape(self) -> KVShape:
        """Return what a cache for this model must look like."""
        return replace(super().kv_shape, spare_rows=PROMPT_ROWS)

    @property
    def batch_rows(self) -> int:
        """Return 0: a recorded pass takes one sequence."""
        return 0

    @torch.inference_mode()
    def greedy_chain(self, token_ids: list[int], cache: KVCache, num: int) -> list[int]:
        """Append tokens to the cache and return the ``num`` that follow; see ``ChainTarget``.

        What a pass chooses stays on the device as the input of the next one.
        """
        if len(token_ids) > self.step_rows:
            self.forward(token_ids[:-1], cache, num_logits=0)
            token_ids = token_ids[-1:]
        inputs = self._inputs[self.step_rows]
        self._pass(token_ids, cache, 1, None, None)
        chosen = [self._logits_out[0].argmax()]
        inputs.scored.zero_()
        inputs.start.add_(len(token_ids))
        for _ in range(num - 1):
            inputs.token_ids[0].copy_(chosen[-1])
            self._replay(cache, self.step_rows, 1)
            chosen.append(self._logits_out[0].argmax())
            inputs.start.add_(1)
        return cast("list[int]", torch.stack(chosen).tolist())  # pyright: ignore[reportUnknownMemberType]

    def _forward(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        return [self._forward_one(rows) for rows in parts]

    def _forward_one(self, rows: Rows) -> torch.Tensor:
        assert rows.inputs is None, "recorded passes begin with tokens"
        token_ids, cache, num_logits = rows.token_ids, rows.cache, rows.num_logits
        num_rows = len(token_ids)
        assert 0 <= num_logits <= min(num_rows, self.step_rows), f"{num_logits} logits"
        self._know_taps(rows.tap)
        streams: list[torch.Tensor] = []
        first_scored = num_rows - num_logits
        while num_rows > PROMPT_ROWS and first_scored >= PROMPT_ROWS:
            streams.append(self._pass(token_ids[:PROMPT_ROWS], cache, 0, None, rows.tap))
            token_ids = token_ids[PROMPT_ROWS:]
            num_rows, first_scored = num_rows - PROMPT_ROWS, first_scored - PROMPT_ROWS
        assert num_rows <= PROMPT_ROWS, f"{num_logits} logits of {num_rows} rows"
        streams.append(self._pass(token_ids, cache, num_logits, rows.tree, rows.tap))
        if rows.tap is not None:
            rows.tap.streams = torch.cat(streams, dim=1)
        return self._logits_out[:num_logits].clone()

    def _know_taps(self, tap: Tap | None) -> None:
        """Have passes that keep the streams that somebody wants; recorded ones are dropped."""
        layers = () if tap is None else tap.layers
        if unknown := set(layers) - set(self._tapped):
            size = (PROMPT_ROWS, self.architecture.hidden_size)
            for num_layers in unknown:
                self._tapped[num_layers] = torch.zeros(size, device=self.device)
            self._recorded.clear()

    def _pass(
        self,
        token_ids: list[int],
        cache: KVCache,
        num_logits: int,
        tree: Tree | None,
        tap: Tap | None,
    ) -> torch.Tensor:
        """Do one recorded pass and return the streams that are wanted, [taps, T, hidden]."""
        num_rows = len(token_ids)
        width = self.step_rows if num_rows <= self.step_rows else PROMPT_ROWS
        self._know_turns(cache)
        self._inputs[width].set(token_ids, cache.length, num_logits, tree)
        self._replay(cache, width, num_rows)
        wanted = () if tap is None else tap.layers
        kept = [self._tapped[num_layers][:num_rows] for num_layers in wanted]
        return torch.stack(kept) if kept else torch.empty(0)

    def _replay(self, cache: KVCache, width: int, num_rows: int) -> None:
        """Do the recorded pass over inputs that are set, and keep so many of its rows."""
        assert cache.length + num_rows <= cache.capacity
        window = self._window(cache, cache.length + width)
        passes = self._recorded.setdefault(cache, {})
        if (width, window) not in passes:
            # The cache owns the pass, so the pass must not own the cache.
            own = weakref.proxy(cache)
            passes[width, window] = self._record(lambda: self._run(own, width, window))
        passes[width, window]()
        cache.advance(num_rows)

    def _run(self, cache: KVCache, width: int, window: int) -> None:
        """Do one pass, on tensors that stay where they are."""
        inputs = self._inputs[width]
        places = inputs.start + torch.arange(width, device=self.device)
        rotation = self._turns[inputs.start + inputs.depths]
        mask = self._window_mask(inputs, places, window)
        hidden = self.weights.embedding[inputs.token_ids].float()
        self._keep(0, hidden)
        for index, layer in enumerate(self.weights.layers):
            queries, keys, values = self.project(layer, hidden, rotation)
            cache.write_at(index, places, keys, values)
            tile_keys, tile_values = cache.tiles(index, 1)
            attended = _attend(queries, tile_keys[:, :, :window], tile_values[:, :, :window], mask)
            hidden.add_(layer.output(attended))
            hidden.add_(self._mlp(layer, hidden))
            self._keep(index + 1, hidden)
        self._logits_out.copy_(self._logits(hidden[inputs.scored]))

    def _keep(self, num_layers: int, hidden: torch.Tensor) -> None:
        if num_layers in self._tapped:
            self._tapped[num_layers][: hidden.shape[0]].copy_(hidden)

    def _window(self, cache: KVCache, length: int) -> int:
        window = LEAST_WINDOW
        while window < length:
            window *= 2
        return min(window, cache.capacity + PROMPT_ROWS)

    def _window_mask(self, inputs: Inputs, places: torch.Tensor, window: int) -> torch.Tensor:
        """Return the additive mask [1, 1, groups * rows, window]."""
        groups = self.architecture.num_heads // self.architecture.num_kv_heads
        is_seen = torch.arange(window, device=self.device) < inputs.start
        is_seen = is_seen.repeat(len(places), 1).index_copy_(1, places, inputs.seen.bool())
        mask = torch.zeros(is_seen.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill(~is_seen, HIDDEN).repeat(groups, 1)[None, None]

    def _know_turns(self, cache: KVCache) -> None:
        """Have the rotation of every position that a pass over this cache may have."""
        num_positions = cache.capacity + PROMPT_ROWS
        if self._turns.shape[0] < num_positions:
            # Recorded passes read the old ones, so they are recorded anew.
            self._recorded.clear()
            self._turns = self._rotation(0, num_positions)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the attention of some rows over one window.

    Shapes:  queries [T, H, D]; keys, values [1, KV, window, D]; mask [1, 1, H / KV * T, window];
        result [T, H * D].
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    # The query heads that share a K/V head are rows of one call: K/V need no copy per head.
    folded = queries.view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, num_kv_heads, -1, head_dim)
    attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    unfolded = attended.view(num_heads, num_rows, head_dim).transpose(0, 1)
    return unfolded.reshape(num_rows, num_heads * head_dim)


class CudaRecorder:
    """Records passes as CUDA graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, one_pass: Replay) -> Replay:
        """Run a pass twice, as kernels are chosen and loaded at first, then record it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            one_pass()
            one_pass()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            one_pass()
        return graph.replay


def run_again(one_pass: Replay) -> Replay:
    """Record nothing: for devices without graphs."""
    return one_pass


def _padded(values: range | list[int], num: int) -> list[int]:
    return [*values, *([0] * (num - len(values)))]
