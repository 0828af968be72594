"""What the ``config.json`` of a head's folder says of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from specengine.errors import LoadError
from specengine.heads.head import HeadSizes
from specengine.models.architecture import Rope, scaling_of

CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 1 << 20
Positive = Annotated[int, msgspec.Meta(gt=0)]
T = TypeVar("T")


class LayerConfig(msgspec.Struct):
    """The keys that a Llama-like layer needs; others do not matter to a head."""

    hidden_size: Positive
    intermediate_size: Positive
    num_attention_heads: Positive
    vocab_size: Positive
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0)]
    num_hidden_layers: Positive = 1
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    hidden_act: str = "silu"
    rope_theta: Annotated[float, msgspec.Meta(gt=0)] | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    layer_types: list[str] | None = None

    def sizes(self, path: Path) -> HeadSizes:
        """Return the layer's sizes.

        Raises:  LoadError when they cannot be run.
        """
        num_kv_heads = self.num_key_value_heads or self.num_attention_heads
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % num_kv_heads or head_dim % 2 or not head_dim:
            raise LoadError(f"{path} has heads of {head_dim} that cannot be grouped or turned.")
        if self.hidden_act != "silu":
            raise LoadError(f"{path} wants the activation {self.hidden_act!r}; heads have silu.")
        if set(self.layer_types or ()) - {"full_attention"}:
            raise LoadError(
                f"{path} wants {self.layer_types} attention; heads have full attention."
            )
        rope = self.rope_parameters or self.rope_scaling or Rope()
        return HeadSizes(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_attention_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=self.rms_norm_eps,
            rope_theta=rope.rope_theta or self.rope_theta or 10_000.0,
            rope_scaling=scaling_of(rope, path),
        )


def read_config(folder: Path, kind: type[T]) -> T:
    """Return what is read of ``config.json``.

    Raises:  LoadError when it is missing, damaged, or lacks a key.
    """
    path = folder / CONFIG
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise LoadError(f"{path} has more than {MAX_CONFIG_BYTES} bytes.")
        return msgspec.json.decode(content, type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadError(
            f"cannot read {path}: {error}.", hint="Is it a folder of a trained head?"
        ) from error
