"""From a folder of safetensors to the weights of a decoder: by name, and nothing left over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import torch

from specengine.errors import LoadError
from specengine.models.adapters import Adapter
from specengine.models.architecture import Architecture
from specengine.models.tensor_files import FILE_ERRORS, TensorFile, open_tensors
from specengine.models.weights import Layer, Weights

DERIVED: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of weights that may lie unused: rope's angles, and a head tied to the embedding."""

OnFraction = Callable[[float], None]
M = TypeVar("M")


class TensorReader:
    """Takes weights by name out of a mapping, and refuses what is missing or misshapen."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Say whether there is a weight of that name."""
        return name in self.names()

    def names(self) -> Collection[str]:
        """Return the names of all weights."""
        return self._tensors.keys()

    def check_all_taken(self) -> None:
        """Refuse weights that nothing has asked for: the model would run without them."""
        left = {name for name in self.names() if not name.endswith(DERIVED)} - self._taken
        if left:
            raise LoadError(
                f"{len(left)} weights have no place in this architecture, {min(left)} among them.",
                hint="The model is of a kind that this engine cannot run.",
            )

    def matrix(self, name: str, *shape: int) -> torch.Tensor:
        """Return a weight in the precision of matrix products."""
        return self._take(name, shape).to(self._dtype).contiguous()

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        """Return a norm's weight; norms run in float32."""
        return self._take(name, shape).float()

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if not self.has(name):
            raise LoadError(f"the weights lack {name}.")
        self._taken.add(name)
        tensor = self._get(name)
        if tuple(tensor.shape) != shape:
            raise LoadError(f"{name} has shape {tuple(tensor.shape)}; config.json wants {shape}.")
        # Few numbers; those of matrices are looked at where they are made integers.
        if tensor.dim() == 1 and not bool(tensor.float().isfinite().all()):
            raise LoadError(f"{name} holds values that are no numbers.")
        return tensor

    def _get(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class WeightReader(TensorReader):
    """Takes weights by name out of the safetensors files of a folder."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__({}, dtype)
        self._device = device
        self._files = _files_by_weight(folder)
        self._open: dict[Path, TensorFile] = {}

    def names(self) -> Collection[str]:
        """Return the names of all weights."""
        return self._files.keys()

    def _get(self, name: str) -> torch.Tensor:
        path = self._files[name]
        try:
            if path not in self._open:
                self._open[path] = open_tensors(path, str(self._device))
            return self._open[path].get_tensor(name)
        except FILE_ERRORS as error:
            raise LoadError(f"cannot read {name} from {path}: {error}.") from error


class MergedReader(TensorReader):
    """Takes weights out of another reader, with an adapter's change in them, in float32."""

    def __init__(self, reader: TensorReader, change: Adapter) -> None:
        super().__init__({}, torch.float32)
        self._reader, self._change = reader, change

    def names(self) -> Collection[str]:
        """Return the names of all weights."""
        return self._reader.names()

    def _get(self, name: str) -> torch.Tensor:
        return self._change.merge(name, self._reader._get(name).float())


class _Index(msgspec.Struct):
    """What is read of a ``model.safetensors.index.json``."""

    weight_map: dict[str, str]


def _files_by_weight(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    try:
        if index.exists():
            names = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
            return {weight: _inside(folder, name) for weight, name in names.items()}
        with open_tensors(single, "cpu") as file:
            return dict.fromkeys(file.keys(), single)
    except (*FILE_ERRORS, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read the weights in {folder}: {error}.") from error


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise LoadError(f"{folder} names {name!r}, which is no .safetensors file of its own.")
    return folder / name


def read_weights(
    reader: TensorReader,
    sizes: Architecture,
    make: Callable[[torch.Tensor, torch.Tensor | None], M],
    *,
    are_paired: bool,
    on_fraction: OnFraction | None = None,
) -> Weights[M]:
    """Return all weights of a decoder, each matrix as ``make`` makes it of weight and bias.

    With ``are_paired`` the dimensions that are rotated together lie side by side.

    Raises:  LoadError when one is missing, left over, or of a wrong shape.
    """
    embedding = reader.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
    layers: list[Layer[M]] = []
    for index in range(sizes.num_layers):
        layers.append(read_layer(reader, sizes, index, make, are_paired=are_paired))
        if on_fraction is not None:
            on_fraction((index + 1) / sizes.num_layers)
    head = embedding
    if not sizes.has_tied_embeddings:
        # It is part of no product, so nothing else looks at it. In pieces, which need no memory.
        pieces = torch.split(embedding, 1024)
        if not all(bool(piece.isfinite().all()) for piece in pieces):
            raise LoadError("model.embed_tokens.weight holds values that are no numbers.")
        head = reader.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
    final_norm = reader.vector("model.norm.weight", sizes.hidden_size)
    reader.check_all_taken()
    return Weights(embedding, tuple(layers), final_norm, make(head, None))


def read_layer(
    reader: TensorReader,
    sizes: Architecture,
    index: int,
    make: Callable[[torch.Tensor, torch.Tensor | None], M],
    *,
    are_paired: bool,
) -> Layer[M]:
    """Return one layer of a decoder, as ``read_weights`` does.

    Raises:  LoadError when a weight is missing or of a wrong shape.
    """
    return _LayerReader(reader, sizes, f"model.layers.{index}", are_paired).layer(make)


@dataclass(frozen=True)
class _LayerReader:
    reader: TensorReader
    sizes: Architecture
    name: str
    are_paired: bool

    def layer(self, make: Callable[[torch.Tensor, torch.Tensor | None], M]) -> Layer[M]:
        reader, sizes, name = self.reader, self.sizes, self.name
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        gate_up = [
            reader.matrix(f"{name}.mlp.{part}_proj.weight", inner, hidden)
            for part in ("gate", "up")
        ]
        num_values = sizes.num_heads * sizes.head_dim
        output = reader.matrix(f"{name}.self_attn.o_proj.weight", hidden, num_values)
        return Layer(
            attention_norm=reader.vector(f"{name}.input_layernorm.weight", hidden),
            qkv=make(*self._qkv()),
            query_norm=self._head_norm("q"),
            key_norm=self._head_norm("k"),
            output=make(output, None),
            mlp_norm=reader.vector(f"{name}.post_attention_layernorm.weight", hidden),
            gate_up=make(torch.cat(gate_up), None),
            down=make(reader.matrix(f"{name}.mlp.down_proj.weight", hidden, inner), None),
        )

    def _qkv(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return q, k and v as one weight and bias."""
        sizes = self.sizes
        numbers = {"q": sizes.num_heads, "k": sizes.num_kv_heads, "v": sizes.num_kv_heads}
        weights: list[torch.Tensor] = []
        biases: list[torch.Tensor] = []
        for part, num_heads in numbers.items():
            name, num_rows = f"{self.name}.self_attn.{part}_proj", num_heads * sizes.head_dim
            weight = self.reader.matrix(f"{name}.weight", num_rows, sizes.hidden_size)
            weights.append(weight if part == "v" else self._arranged(weight))
            if sizes.family == "qwen2":
                bias = self.reader.matrix(f"{name}.bias", num_rows)
                biases.append(bias if part == "v" else self._arranged(bias))
        return torch.cat(weights), torch.cat(biases) if biases else None

    def _head_norm(self, part: str) -> torch.Tensor | None:
        if self.sizes.family != "qwen3":
            return None
        name = f"{self.name}.self_attn.{part}_norm.weight"
        return self._arranged(self.reader.vector(name, self.sizes.head_dim))

    def _arranged(self, rows: torch.Tensor) -> torch.Tensor:
        return paired(rows, self.sizes.head_dim) if self.are_paired else rows


def paired(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows so that dimensions i and i + D / 2 of each head become neighbours.

    Hugging Face checkpoints rotate that pair; as neighbours they are one complex number. Queries
    and keys are reordered alike, so their products are the same.
    """
    heads = torch.unflatten(rows, 0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(rows.shape)
