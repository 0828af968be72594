"""A decoder in 8-bit integers, run by the native pass.

Weights are 8-bit integers with one scale for each output. A row of activations is a vector of
16-bit integers with one scale: precise enough to cost nothing in quality, and, as two rows of 8-bit
limbs, a sum of integers, which is exact in any order. ``native/pass.c`` has the arithmetic.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from specengine.cache.kv_cache import TILE, KVCache, KVShape
from specengine.models.architecture import Architecture, rope_frequencies
from specengine.models.limbs import to_integers
from specengine.models.target import PROMPT_ROWS, Rows, Tree
from specengine.models.weights import Layer, Weights
from specengine.native.build import Kernel

MAX_ROWS: Final = 32
"""Rows of one native call."""
LANES: Final = 16
DEPTH: Final = 64
LIMBS_PER_BLOCK: Final = 16
QUERIES: Final = 6
"""Query heads that the native attention takes together."""
MAX_HEAD_DIM: Final = 256


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("num_out", ctypes.c_int32),
        ("num_in", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", _Matrix),
        ("output", _Matrix),
        ("gate_up", _Matrix),
        ("down", _Matrix),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("inner", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("vocab", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("layers", ctypes.POINTER(_Layer)),
        ("final_norm", ctypes.c_void_p),
        ("head", _Matrix),
    )


class _Part(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("start", ctypes.c_int32),
        ("num_tiles", ctypes.c_int32),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("depths", ctypes.c_void_p),
        ("paths", ctypes.c_void_p),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        ("num_rows", ctypes.c_int32),
        ("num_parts", ctypes.c_int32),
        ("num_logits", ctypes.c_int32),
        ("most_tiles", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("parts", ctypes.POINTER(_Part)),
        ("scored", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("wide", ctypes.c_void_p),
        ("attended", ctypes.c_void_p),
        ("limbs", ctypes.c_void_p),
        ("row_scales", ctypes.c_void_p),
        ("limb_sums", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("num_taps", ctypes.c_int32),
        ("taps", ctypes.c_void_p),
        ("tapped", ctypes.c_void_p),
        ("model", ctypes.POINTER(_Model)),
        ("arrived", ctypes.c_int32),
        ("generation", ctypes.c_int32),
        ("thread_num", ctypes.c_void_p),
        ("team_size", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class IntegerMatrix:
    """A weight [N, K] in 8 bits, laid out as the native product reads it."""

    weights: torch.Tensor
    """int8 [N' / 16, K' / 64, 16, 16, 4]: outputs and inputs padded by zeros; the last two are 16
    outputs and 4 inputs."""
    scales: torch.Tensor
    """float32 [N']."""
    bias: torch.Tensor | None
    """float32 [N']."""

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> IntegerMatrix:
        """Round a weight to 8 bits, the largest of each output to 127."""
        num_out, num_in = weight.shape
        padded_out, padded_in = _round_up(num_out, LANES), _round_up(num_in, DEPTH)
        scales = torch.zeros(padded_out)
        integers = torch.zeros(padded_out, padded_in, dtype=torch.int8)
        integers[:num_out, :num_in], scales[:num_out] = to_integers(weight)
        packed = integers.view(padded_out // LANES, LANES, padded_in // DEPTH, DEPTH // 4, 4)
        padded_bias = None
        if bias is not None:
            padded_bias = torch.zeros(padded_out)
            padded_bias[:num_out] = bias.float()
        return cls(
            packed.permute(0, 2, 3, 1, 4).contiguous(),
            scales,
            padded_bias,
        )

    @property
    def num_in(self) -> int:
        """Return the number of inputs, padding among them."""
        return self.weights.shape[1] * DEPTH

    def native(self) -> _Matrix:
        """Return what the native pass sees of it."""
        return _Matrix(
            self.weights.shape[0] * LANES,
            self.num_in,
            self.weights.data_ptr(),
            self.scales.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )


class IntegerLinear:
    """A product by itself, for small networks beside a target; calls must not overlap.

    It computes what ``LimbLinear`` computes, to the bit.
    """

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None, kernel: Kernel) -> IntegerLinear:
        """Round a weight [N, K] to 8 bits; K must be a multiple of 16."""
        assert weight.shape[1] % LANES == 0, f"rows of {weight.shape[1]}"
        num_out, num_in = weight.shape
        return cls(IntegerMatrix.of(weight, bias), num_out, num_in, kernel)

    def __init__(self, matrix: IntegerMatrix, num_out: int, num_in: int, kernel: Kernel) -> None:
        """Take a weight that has N outputs and K inputs without its padding."""
        self._num_out, self._kernel = num_out, kernel
        self._matrix = matrix
        num_limbs = MAX_ROWS // 8 * LIMBS_PER_BLOCK * self._matrix.num_in
        self._limbs = torch.zeros(num_limbs, dtype=torch.int8)
        self._row_scales = torch.zeros(MAX_ROWS)
        self._limb_sums = torch.zeros(2 * MAX_ROWS, dtype=torch.int32)
        self._model = _Model(hidden=num_in, vocab=num_out, head=self._matrix.native())
        self._run: Any = kernel.library.specengine_product
        self._run.argtypes = (ctypes.POINTER(_Pass), ctypes.c_void_p)
        self._run.restype = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``, [T, K] to [T, N], float32."""
        wide = rows.float().contiguous()
        starts = range(0, wide.shape[0], MAX_ROWS)
        pieces = [self._product(wide[start : start + MAX_ROWS]) for start in starts]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        num_threads = torch.get_num_threads() if self._kernel.parallel else 1
        out = torch.empty(rows.shape[0], self._num_out)
        call = _Pass(
            num_rows=rows.shape[0],
            num_threads=num_threads,
            hidden=rows.data_ptr(),
            limbs=self._limbs.data_ptr(),
            row_scales=self._row_scales.data_ptr(),
            limb_sums=self._limb_sums.data_ptr(),
            logits=out.data_ptr(),
            model=ctypes.pointer(self._model),
            thread_num=self._kernel.thread_num if num_threads > 1 else None,
            team_size=self._kernel.team_size if num_threads > 1 else None,
        )
        self._run(ctypes.byref(call), self._kernel.parallel)
        return out


@dataclass
class _Scratch:
    """Memory that passes use, one after the other."""

    hidden: torch.Tensor
    wide: torch.Tensor
    attended: torch.Tensor
    limbs: torch.Tensor
    row_scales: torch.Tensor
    limb_sums: torch.Tensor
    scores: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def why_not(architecture: Architecture) -> str | None:
    """Return why the native pass cannot run a model of these sizes, or None."""
    sizes = architecture
    if sizes.head_dim > MAX_HEAD_DIM or sizes.head_dim % LANES:
        return f"heads of {sizes.head_dim}"
    if sizes.hidden_size % LANES or sizes.intermediate_size % LANES:
        return f"rows of {sizes.hidden_size} or {sizes.intermediate_size}"
    return None


class IntegerDecoder:
    """A target or a draft model; calls must not overlap."""

    def __init__(
        self, architecture: Architecture, weights: Weights[IntegerMatrix], kernel: Kernel
    ) -> None:
        reason = why_not(architecture)
        assert reason is None, reason
        self._architecture = architecture
        self.weights = weights
        self.kernel = kernel
        self._layers = (_Layer * len(weights.layers))(*map(_native_layer, weights.layers))
        self._model = self._native_model()
        self._scratch = self._allocate()
        self._cosines = torch.empty(0)
        self._sines = torch.empty(0)
        self._run: Any = kernel.library.specengine_pass
        self._run.argtypes = (ctypes.POINTER(_Pass), ctypes.c_void_p)
        self._run.restype = None

    @property
    def precision(self) -> str:
        """Return how its matrices are multiplied."""
        return "int8"

    @property
    def architecture(self) -> Architecture:
        """Return its sizes."""
        return self._architecture

    @property
    def prompt_rows(self) -> int:
        """Return the rows of a pass that reads a prompt."""
        return PROMPT_ROWS

    @property
    def batch_rows(self) -> int:
        """Return how many rows of several sequences one pass can take."""
        return MAX_ROWS

    @property
    def vocab_size(self) -> int:
        """Return the number of logits of a position."""
        return self._architecture.vocab_size

    @property
    def kv_shape(self) -> KVShape:
        """Return what a cache for this model must look like."""
        sizes = self._architecture
        return KVShape(
            sizes.num_layers,
            sizes.num_kv_heads,
            sizes.head_dim,
            torch.bfloat16,
            torch.device("cpu"),
            keys_by_dim=True,
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        """Append tokens to the cache and return the logits of the last ``num_logits`` of them.

        Shapes:  result [num_logits, V], float32; row i scores the token after that position.
        """
        num_rows = len(token_ids)
        assert 0 <= num_logits <= num_rows, f"{num_logits} logits of {num_rows} rows"
        assert tree is None or num_rows <= MAX_ROWS, f"a tree of {num_rows} rows"
        logits: list[torch.Tensor] = []
        for start in range(0, num_rows, MAX_ROWS):
            part = token_ids[start : start + MAX_ROWS]
            scored = min(len(part), max(0, start + len(part) - (num_rows - num_logits)))
            logits += self.forward_batch([Rows(part, cache, scored, tree)])
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    @torch.inference_mode()
    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        """Do ``forward`` for several sequences at once, each with the bits it has alone."""
        num_rows = sum(len(part.token_ids) for part in parts)
        assert num_rows <= MAX_ROWS, f"{num_rows} rows"
        for part in parts:
            assert part.cache.length + len(part.token_ids) <= part.cache.capacity
        logits = torch.empty(sum(part.num_logits for part in parts), self.vocab_size)
        self._pass(parts, num_rows, logits)
        for part in parts:
            part.cache.advance(len(part.token_ids))
        ends = list(itertools.accumulate(part.num_logits for part in parts))
        return [logits[end - part.num_logits : end] for end, part in zip(ends, parts, strict=True)]

    def _pass(self, parts: Sequence[Rows], num_rows: int, logits: torch.Tensor) -> None:
        scratch = self._scratch
        self._enter(parts, num_rows)
        taps = sorted(
            {layer for part in parts if part.tap is not None for layer in part.tap.layers}
        )
        tapped = torch.empty(len(taps), num_rows, self._architecture.hidden_size)
        tap_layers = torch.tensor(taps, dtype=torch.int32)
        self._extend_rotation(max(part.cache.length + len(part.token_ids) for part in parts))
        num_threads = torch.get_num_threads() if self.kernel.parallel else 1
        most_tiles = max(part.cache.capacity for part in parts) // TILE
        num_scores = num_threads * QUERIES * most_tiles * TILE
        if scratch.scores.numel() < num_scores:
            scratch.scores = torch.empty(num_scores)
        native_parts, scored, alive = _native_parts(parts)
        native = _Pass(
            num_rows,
            len(parts),
            logits.shape[0],
            most_tiles,
            num_threads,
            native_parts,
            scored.data_ptr(),
            self._cosines.data_ptr(),
            self._sines.data_ptr(),
            scratch.hidden.data_ptr(),
            scratch.wide.data_ptr(),
            scratch.attended.data_ptr(),
            scratch.limbs.data_ptr(),
            scratch.row_scales.data_ptr(),
            scratch.limb_sums.data_ptr(),
            scratch.scores.data_ptr(),
            logits.data_ptr(),
            len(taps),
            tap_layers.data_ptr(),
            tapped.data_ptr(),
            ctypes.pointer(self._model),
            0,
            0,
            self.kernel.thread_num if num_threads > 1 else None,
            self.kernel.team_size if num_threads > 1 else None,
        )
        self._run(ctypes.byref(native), self.kernel.parallel)
        del alive
        _give_out(parts, taps, tapped)

    def _enter(self, parts: Sequence[Rows], num_rows: int) -> None:
        """Begin the residual stream of all rows."""
        hidden = self._scratch.hidden
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        hidden[:num_rows] = self.weights.embedding[torch.tensor(token_ids)]
        first = 0
        for part in parts:
            if part.inputs is not None:
                hidden[first : first + len(part.token_ids)] = part.inputs
            first += len(part.token_ids)

    def _native_model(self) -> _Model:
        sizes, weights = self._architecture, self.weights
        return _Model(
            sizes.num_layers,
            sizes.hidden_size,
            sizes.intermediate_size,
            sizes.num_heads,
            sizes.num_kv_heads,
            sizes.head_dim,
            self.vocab_size,
            sizes.norm_eps,
            self._layers,
            weights.final_norm.data_ptr(),
            weights.head.native(),
        )

    def _allocate(self) -> _Scratch:
        sizes = self._architecture
        num_values = sizes.num_heads * sizes.head_dim
        num_qkv = num_values + 2 * sizes.num_kv_heads * sizes.head_dim
        widest = max(num_qkv, 2 * sizes.intermediate_size, sizes.hidden_size)
        deepest = _round_up(max(sizes.hidden_size, sizes.intermediate_size, num_values), DEPTH)
        return _Scratch(
            hidden=torch.zeros(MAX_ROWS, sizes.hidden_size),
            wide=torch.zeros(MAX_ROWS, widest),
            attended=torch.zeros(MAX_ROWS, num_values),
            limbs=torch.zeros(MAX_ROWS // 8 * LIMBS_PER_BLOCK * deepest, dtype=torch.int8),
            row_scales=torch.zeros(MAX_ROWS),
            limb_sums=torch.zeros(2 * MAX_ROWS, dtype=torch.int32),
        )

    def _extend_rotation(self, num_positions: int) -> None:
        """Know cosines and sines of so many positions, computed in blocks of one shape."""
        known = self._cosines.shape[0]
        if num_positions <= known:
            return
        frequencies = rope_frequencies(self._architecture)
        cosines, sines = [self._cosines] if known else [], [self._sines] if known else []
        for start in range(known, num_positions, TILE):
            positions = torch.arange(start, start + TILE, dtype=torch.float64)
            angles = torch.outer(positions, frequencies)
            cosines.append(angles.cos().float())
            sines.append(angles.sin().float())
        self._cosines, self._sines = torch.cat(cosines), torch.cat(sines)


def _native_parts(
    parts: Sequence[Rows],
) -> tuple[ctypes.Array[_Part], torch.Tensor, list[torch.Tensor]]:
    """Return what the native pass sees of them, the rows to score, and what must stay alive."""
    natives: list[_Part] = []
    scored: list[int] = []
    alive: list[torch.Tensor] = []
    first = 0
    for part in parts:
        num_rows, tree, pointers = len(part.token_ids), part.tree, (None, None)
        if tree is not None:
            paths = [(*path, *([0] * (MAX_ROWS - len(path)))) for path in tree.paths]
            arrays = [torch.tensor(each, dtype=torch.int32) for each in (tree.depths, paths)]
            alive += arrays
            pointers = tuple(each.data_ptr() for each in arrays)
        num_tiles = part.cache.capacity // TILE
        natives.append(
            _Part(first, num_rows, part.cache.length, num_tiles, *part.cache.pointers, *pointers)
        )
        scored += range(first + num_rows - part.num_logits, first + num_rows)
        first += num_rows
    return (_Part * len(natives))(*natives), torch.tensor(scored, dtype=torch.int32), alive


def _give_out(parts: Sequence[Rows], taps: list[int], tapped: torch.Tensor) -> None:
    """Hand each sequence the streams that it wants, [taps, all rows, hidden]."""
    first = 0
    for part in parts:
        end = first + len(part.token_ids)
        if part.tap is not None:
            wanted = [taps.index(layer) for layer in part.tap.layers]
            streams = tapped[:, first:end]
            part.tap.streams = streams if len(wanted) == len(taps) else streams[wanted]
        first = end


def _native_layer(layer: Layer[IntegerMatrix]) -> _Layer:
    norms = (layer.attention_norm, layer.query_norm, layer.key_norm, layer.mlp_norm)
    matrices = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return _Layer(
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(matrix.native() for matrix in matrices),
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
