"""From a folder of safetensors to a decoder in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import torch

from specengine.errors import LoadError
from specengine.models.architecture import Architecture, read_architecture
from specengine.models.decoder import Decoder, Layer, Weights
from specengine.models.linear import Linear, pack, proven_widths
from specengine.models.tensor_files import FILE_ERRORS, open_tensors

Precision = Literal["bfloat16", "float32"]
DTYPES: Final[Mapping[Precision, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
DERIVED: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of weights that may lie unused: rope's angles, and a head tied to the embedding."""

OnFraction = Callable[[float], None]


def load_decoder(
    folder: Path,
    precision: Precision = "bfloat16",
    *,
    device: str = "cpu",
    on_fraction: OnFraction | None = None,
) -> Decoder:
    """Return the decoder whose weights lie in ``folder``.

    Raises:  LoadError when weights are missing, of a wrong shape, or too large for the memory.
    """
    architecture = read_architecture(folder)
    check_memory(architecture, precision, device)
    reader = WeightReader(folder, DTYPES[precision], torch.device(device))
    try:
        return Decoder(architecture, _read_weights(reader, architecture, on_fraction))
    except torch.OutOfMemoryError as error:
        raise LoadError(f"not enough memory on {device} for the model in {folder}.") from error


def decoder_from(
    architecture: Architecture, tensors: Mapping[str, torch.Tensor], precision: Precision
) -> Decoder:
    """Return a decoder of tensors with Hugging Face names, for small models made in memory."""
    reader = TensorReader(tensors, DTYPES[precision])
    return Decoder(architecture, _read_weights(reader, architecture, None))


def check_memory(
    architecture: Architecture, precision: Precision | Literal["int8"], device: str
) -> None:
    """Refuse a model that does not fit the free memory of this machine.

    Raises:  LoadError with the bytes that are needed and free.
    """
    itemsize = 1 if precision == "int8" else DTYPES[precision].itemsize
    needed = architecture.num_parameters * itemsize
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise LoadError(
            f"the model needs {needed:,} bytes in {precision}, {free:,} are free on {device}.",
            hint="Choose a smaller model, or close other programs.",
        )


def _free_bytes(device: str) -> int | None:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


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
        return tensor

    def _get(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class WeightReader(TensorReader):
    """Takes weights by name out of the safetensors files of a folder."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__({}, dtype)
        self._device = device
        self._files = _files_by_weight(folder)

    def names(self) -> Collection[str]:
        """Return the names of all weights."""
        return self._files.keys()

    def _get(self, name: str) -> torch.Tensor:
        path = self._files[name]
        try:
            with open_tensors(path, str(self._device)) as file:
                return file.get_tensor(name)
        except FILE_ERRORS as error:
            raise LoadError(f"cannot read {name} from {path}: {error}.") from error


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


def _read_weights(
    reader: TensorReader, sizes: Architecture, on_fraction: OnFraction | None
) -> Weights:
    widths: dict[tuple[int, ...], tuple[int, ...]] = {}

    def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        # Layers share shapes, and a kernel is chosen by shape: one proof serves them all.
        kind, packed = (*weight.shape, bias is not None), pack(weight)
        if kind not in widths:
            widths[kind] = proven_widths(packed, bias)
        return Linear(packed, bias, widths[kind])

    embedding = reader.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
    layers: list[Layer] = []
    for index in range(sizes.num_layers):
        layers.append(_read_layer(reader, sizes, f"model.layers.{index}", linear))
        if on_fraction is not None:
            on_fraction((index + 1) / sizes.num_layers)
    head = embedding
    if not sizes.has_tied_embeddings:
        head = reader.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
    final_norm = reader.vector("model.norm.weight", sizes.hidden_size)
    reader.check_all_taken()
    return Weights(embedding, tuple(layers), final_norm, linear(head))


def _read_layer(
    reader: TensorReader,
    sizes: Architecture,
    name: str,
    linear: Callable[[torch.Tensor, torch.Tensor | None], Linear],
) -> Layer:
    hidden, inner, head_dim = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    mlp, attention = f"{name}.mlp", f"{name}.self_attn"
    gate_up = [reader.matrix(f"{mlp}.{part}_proj.weight", inner, hidden) for part in ("gate", "up")]
    has_head_norms = sizes.family == "qwen3"

    def head_norm(part: str) -> torch.Tensor | None:
        if not has_head_norms:
            return None
        return _paired(reader.vector(f"{attention}.{part}_norm.weight", head_dim), head_dim)

    num_values = sizes.num_heads * head_dim
    return Layer(
        attention_norm=reader.vector(f"{name}.input_layernorm.weight", hidden),
        qkv=linear(*_read_qkv(reader, sizes, attention)),
        query_norm=head_norm("q"),
        key_norm=head_norm("k"),
        output=linear(reader.matrix(f"{attention}.o_proj.weight", hidden, num_values), None),
        mlp_norm=reader.vector(f"{name}.post_attention_layernorm.weight", hidden),
        gate_up=linear(torch.cat(gate_up), None),
        down=linear(reader.matrix(f"{mlp}.down_proj.weight", hidden, inner), None),
    )


def _read_qkv(
    reader: TensorReader, sizes: Architecture, name: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return q, k and v as one weight and bias, the rotated dimensions of q and k in pairs."""
    has_bias = sizes.family == "qwen2"
    weights: list[torch.Tensor] = []
    biases: list[torch.Tensor] = []
    for part, num_heads in (
        ("q", sizes.num_heads),
        ("k", sizes.num_kv_heads),
        ("v", sizes.num_kv_heads),
    ):
        num_rows = num_heads * sizes.head_dim
        weight = reader.matrix(f"{name}.{part}_proj.weight", num_rows, sizes.hidden_size)
        weights.append(weight if part == "v" else _paired(weight, sizes.head_dim))
        if has_bias:
            bias = reader.matrix(f"{name}.{part}_proj.bias", num_rows)
            biases.append(bias if part == "v" else _paired(bias, sizes.head_dim))
    return torch.cat(weights), torch.cat(biases) if has_bias else None


def _paired(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows so that dimensions i and i + D / 2 of each head become neighbours.

    Hugging Face checkpoints rotate that pair; as neighbours they are one complex number. Queries
    and keys are reordered alike, so their products are the same.
    """
    heads = torch.unflatten(rows, 0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(rows.shape)
