"""Adapters are merged as peft merges them, and refused when they cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specengine.errors import ConfigError, LoadError
from specengine.models import registry
from specengine.models.adapters import CONFIG, WEIGHTS, Adapter, Factors
from specengine.models.convert import check_model, ensure_model, list_models
from specengine.models.registry import ModelEntry
from specengine.models.tensor_files import read_tensors, write_tensors
from tests.specengine.tiny import save_tiny_model

RANK = 2
PARTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
NAMES = tuple(f"model.layers.{index}.{part}.weight" for index in (0, 1) for part in PARTS)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = save_tiny_model(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    # Only transformers and peft need it.
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    tensors = read_tensors(base / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    factors = {
        name: Factors(
            torch.randn(RANK, tensors[name].shape[1], generator=generator),
            torch.randn(tensors[name].shape[0], RANK, generator=generator) * 0.1,
        )
        for name in NAMES
    }
    Adapter(2.0, factors).save(tmp_path / "adapter", "tiny")
    return tmp_path / "adapter"


def entry_of(adapter: Path, base: Path) -> ModelEntry:
    return ModelEntry("tuned", f"adapter:{adapter}", base=ModelEntry("tiny", str(base)))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft about transformers
def test_the_merged_folder_holds_what_peft_makes_of_base_and_adapter(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    peft: Any = pytest.importorskip("peft")
    merged = ensure_model(entry_of(adapter, base), cache_dir=tmp_path)
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter
    ).merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    token_ids = torch.arange(20)[None]
    with torch.inference_mode():
        logits, expected = ours(token_ids).logits, theirs(token_ids).logits
        unchanged = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(token_ids)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(unchanged.logits, expected, atol=1e-2)


def test_a_merged_model_is_made_once_and_anew_for_another_adapter(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    first = ensure_model(entry_of(adapter, base), cache_dir=tmp_path)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert ensure_model(entry_of(adapter, base), cache_dir=tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    loaded = Adapter.load(adapter)
    Adapter(2.0, dict(list(loaded.factors.items())[:1])).save(adapter, "tiny")
    assert ensure_model(entry_of(adapter, base), cache_dir=tmp_path) != first


def test_a_merged_model_is_checked_like_any_other(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    entry = entry_of(adapter, base)
    merged = ensure_model(entry, cache_dir=tmp_path)
    assert check_model(entry, cache_dir=tmp_path).problems == []
    (merged / "model.safetensors").write_bytes(b"")
    assert len(check_model(entry, cache_dir=tmp_path).problems) > 0


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    factors = Factors(torch.full((RANK, 3), 0.5), torch.full((4, RANK), -2.0))
    Adapter(1.5, {"model.layers.0.mlp.down_proj.weight": factors}).save(tmp_path, "tiny")
    loaded = Adapter.load(tmp_path)
    assert loaded.scale == 1.5
    (name,) = loaded.factors
    assert name == "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(loaded.factors[name].down.float(), factors.down)
    assert torch.equal(loaded.factors[name].up.float(), factors.up)


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def damage_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"{}")


def drop_a_factor(folder: Path) -> None:
    tensors = read_tensors(folder / WEIGHTS)
    del tensors[min(tensors)]
    write_tensors(folder / WEIGHTS, tensors)


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**config, **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove_weights, WEIGHTS),
        (damage_weights, WEIGHTS),
        (drop_a_factor, "pair of factors"),
        (change_config(r=3), "rank 3"),
        (change_config(r=0), CONFIG),
        (change_config(use_dora=True), "plain LoRA"),
        (change_config(peft_type="IA3"), "plain LoRA"),
        (change_config(modules_to_save=["lm_head"]), "plain LoRA"),
        (change_config(rank_pattern={"q_proj": 4}), "plain LoRA"),
    ],
)
def test_a_damaged_or_foreign_adapter_is_refused_and_nothing_is_left(
    tmp_path: Path, base: Path, adapter: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(adapter)
    with pytest.raises(LoadError, match=named):
        ensure_model(entry_of(adapter, base), cache_dir=tmp_path)
    assert not list((tmp_path / "models").glob("*/*"))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.layers.9.mlp.down_proj.weight", "does not have"),
        ("model.layers.0.mlp.down_proj.weight", "as if it were 4 x 3"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    tmp_path: Path, base: Path, name: str, what: str
) -> None:
    factors = Factors(torch.ones(RANK, 3), torch.ones(4, RANK))
    Adapter(1.0, {name: factors}).save(tmp_path / "foreign", "other")
    with pytest.raises(LoadError, match=what):
        ensure_model(entry_of(tmp_path / "foreign", base), cache_dir=tmp_path)


def test_an_adapter_that_is_not_there_is_named(tmp_path: Path, base: Path) -> None:
    with pytest.raises(LoadError, match="no adapter at"):
        ensure_model(entry_of(tmp_path / "nothing", base), cache_dir=tmp_path)


DECLARED = """
[models.base]
source = "/models/base"
architecture = "llama"
licence = "MIT"

[models.tuned]
source = "adapter:/models/tuned"
architecture = "llama"
licence = "MIT"
{base}
"""


def load_declared(tmp_path: Path, base: str) -> registry.Registry:
    file = tmp_path / "models.toml"
    file.write_text(DECLARED.format(base=base))
    return registry.load(file)


def test_a_declared_adapter_knows_its_base(tmp_path: Path) -> None:
    entry = load_declared(tmp_path, 'base = "base"').get("tuned")
    assert entry.base is not None
    assert entry.base.source == "/models/base"


@pytest.mark.parametrize(("base", "what"), [("", "needs a base"), ('base = "no"', "no model")])
def test_an_adapter_needs_a_base_that_is_declared(tmp_path: Path, base: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_declared(tmp_path, base)


def test_a_declared_adapter_that_is_missing_is_listed_as_not_here(tmp_path: Path) -> None:
    known = load_declared(tmp_path, 'base = "base"')
    status = {status.name: status for status in list_models(known, tmp_path)}
    assert status["tuned"].folder is None
