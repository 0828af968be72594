"""Low-rank adapters: a learnt change of some weights, small enough to ship.

They lie in folders in the file format of the peft library: ``adapter_config.json`` and
``adapter_model.safetensors``. Plain LoRA only: W' = W + alpha / r x B A.

Source:  Hu et al. 2021, arXiv 2106.09685.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import torch

from specengine.errors import LoadError
from specengine.models.tensor_files import FILE_ERRORS, read_tensors, write_tensors

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class _Config(msgspec.Struct):
    """What is read of an ``adapter_config.json``, and what must not be set."""

    r: Annotated[int, msgspec.Meta(gt=0)]
    lora_alpha: Annotated[float, msgspec.Meta(gt=0)]
    peft_type: str = "LORA"
    bias: str = "none"
    use_dora: bool = False
    use_rslora: bool = False
    rank_pattern: dict[str, object] = {}
    alpha_pattern: dict[str, object] = {}
    modules_to_save: list[str] | None = None


@dataclass(frozen=True)
class Factors:
    """The change of one weight [out, in]: ``up`` [out, r] times ``down`` [r, in]."""

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True)
class Adapter:
    """Factors by the name of the weight that they change, and their common scale."""

    scale: float
    factors: Mapping[str, Factors]

    @classmethod
    def load(cls, folder: Path) -> Adapter:
        """Read an adapter.

        Raises:  LoadError when a file is missing or damaged, or asks for more than plain LoRA.
        """
        config = _read_config(folder / CONFIG)
        file = folder / WEIGHTS
        try:
            tensors = read_tensors(file)
        except FILE_ERRORS as error:
            raise LoadError(f"{file} cannot be read: {error}.") from error
        names = {name.removesuffix(_DOWN).removesuffix(_UP) for name in tensors}
        factors: dict[str, Factors] = {}
        for name in sorted(names):
            down, up = tensors.get(f"{name}{_DOWN}"), tensors.get(f"{name}{_UP}")
            is_whole = name.startswith(_PREFIX) and down is not None and up is not None
            if not is_whole or down is None or up is None or not _fit(down, up, config.r):
                raise LoadError(f"{file} has no pair of factors of rank {config.r} for {name}.")
            factors[f"{name.removeprefix(_PREFIX)}.weight"] = Factors(down, up)
        return cls(config.lora_alpha / config.r, factors)

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter in bfloat16; ``base`` says which model it changes."""
        tensors: dict[str, torch.Tensor] = {}
        for name, factors in self.factors.items():
            key = f"{_PREFIX}{name.removesuffix('.weight')}"
            tensors[f"{key}{_DOWN}"] = factors.down.detach().bfloat16().cpu().clone()
            tensors[f"{key}{_UP}"] = factors.up.detach().bfloat16().cpu().clone()
        rank = next(iter(self.factors.values())).down.shape[0]
        modules = {name.removesuffix(".weight").rpartition(".")[2] for name in self.factors}
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": rank,
            "lora_alpha": rank * self.scale,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted(modules),
            "inference_mode": True,
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, tensors)
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight with its change, added in float32; one that has no change as it is.

        Raises:  LoadError when the factors are of another shape.
        """
        factors = self.factors.get(name)
        if factors is None:
            return weight
        if weight.shape != (factors.up.shape[0], factors.down.shape[1]):
            raise LoadError(
                f"the adapter changes {name} as if it were {factors.up.shape[0]} x "
                f"{factors.down.shape[1]}; it is {' x '.join(map(str, weight.shape))}.",
                hint="The adapter was made for another model.",
            )
        up, down = factors.up.float(), factors.down.float()
        return torch.addmm(weight.float(), up, down, alpha=self.scale).to(weight.dtype)


def merge_files(base: Path, adapter: Path, folder: Path) -> None:
    """Write a model's files into a folder, its weights with the adapter's change in them.

    Merged once and not at each load, so that whatever reads the folder reads the tuned model.
    Memory holds one file of weights.

    Raises:  LoadError when the adapter is damaged or was made for another model.
    """
    change, known = Adapter.load(adapter), set[str]()
    for file in sorted(path for path in base.iterdir() if path.is_file()):
        if file.suffix != ".safetensors":
            shutil.copyfile(file, folder / file.name)
            continue
        tensors = read_tensors(file)
        known |= tensors.keys()
        merged = {name: change.merge(name, tensor) for name, tensor in tensors.items()}
        write_tensors(folder / file.name, merged)
    missing = change.factors.keys() - known
    if missing:
        raise LoadError(
            f"{adapter} changes {min(missing)}, which {base} does not have.",
            hint="The adapter was made for another model.",
        )


def _read_config(file: Path) -> _Config:
    try:
        config = msgspec.json.decode(file.read_bytes(), type=_Config)
    except (OSError, msgspec.MsgspecError) as error:
        raise LoadError(f"{file} cannot be read: {error}.") from error
    extras = (
        config.bias != "none",
        config.use_dora,
        config.use_rslora,
        config.rank_pattern,
        config.alpha_pattern,
        config.modules_to_save,
    )
    if config.peft_type != "LORA" or any(extras):
        raise LoadError(f"{file} asks for more than plain LoRA, which is all that can be merged.")
    return config


def _fit(down: torch.Tensor, up: torch.Tensor, rank: int) -> bool:
    return down.dim() == up.dim() == 2 and down.shape[0] == up.shape[1] == rank
