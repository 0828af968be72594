from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specengine.bench.own import OwnContestant, load_own
from specengine.bench.peers import TransformersContestant, load_transformers
from specengine.errors import ConfigError
from specengine.settings import EngineSettings
from tests.specengine.tiny import save_tiny_model


class FakeModel:
    """Runs the passes it is told: how many rows go in, how many tokens come out."""

    def __init__(self, passes: list[tuple[int, int]]) -> None:
        self.passes = passes
        self.hooks: list[Callable[..., None]] = []
        self.options: dict[str, Any] = {}

    def register_forward_pre_hook(self, hook: Callable[..., None], *, with_kwargs: bool) -> Any:
        assert with_kwargs
        self.hooks.append(hook)
        return self

    def remove(self) -> None:
        self.hooks.clear()

    def generate(
        self, input_ids: torch.Tensor, *, stopping_criteria: list[Any], **options: Any
    ) -> torch.Tensor:
        self.options = options
        for num_rows, num_tokens in self.passes:
            rows = torch.zeros(1, num_rows, dtype=torch.long)
            for hook in self.hooks:
                hook(self, (), {"input_ids": rows})
            input_ids = torch.cat([input_ids, torch.full((1, num_tokens), 9)], dim=1)
            assert not stopping_criteria[0](input_ids, None).any()
        return input_ids


def test_passes_and_drafts_are_counted_from_outside():
    # Three prompt tokens and a draft of 4 with 2 accepted, no draft, a draft of 4 all accepted.
    model = FakeModel([(3 + 4, 3), (1, 1), (1 + 4, 5)])
    times = iter([0.0, 1.0, 1.5, 3.0])
    contestant = TransformersContestant(model, 4, clock=lambda: next(times))
    written = contestant.write([1, 2, 3], 9)
    assert written.token_ids == (9,) * 9
    assert (written.drafted, written.accepted) == (8, 6)
    assert (written.prefill_ms, written.decode_ms) == (1000, 2000)
    assert (written.num_decoded, written.passes) == (6, 2)
    assert model.options["prompt_lookup_num_tokens"] == 4
    assert not model.hooks


def test_plain_decoding_drafts_nothing():
    model = FakeModel([(3, 1), (1, 1)])
    contestant = TransformersContestant(model)
    written = contestant.write([1, 2, 3], 2)
    assert (written.drafted, written.accepted) == (0, 0)
    assert contestant.drafter == "none"
    assert "prompt_lookup_num_tokens" not in model.options


def test_draft_model_is_handed_over():
    model, assistant = FakeModel([(3 + 2, 3)]), object()
    contestant = TransformersContestant(model, assistant=assistant)
    written = contestant.write([1, 2, 3], 3)
    assert (written.drafted, written.accepted) == (2, 2)
    assert contestant.drafter == "assisted"
    assert model.options["assistant_model"] is assistant


def test_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        load_transformers(tmp_path, "float32")


@pytest.mark.slow
def test_both_engines_write_the_same_text_of_a_tiny_model_in_float32(tmp_path: Path):
    folder = save_tiny_model(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}), "utf-8")
    settings = EngineSettings(model=str(folder), precision="float32", prompt_tokens=256)
    own = OwnContestant(load_own(settings, lambda fraction, detail: None), "none")
    peer = TransformersContestant(load_transformers(folder, "float32"))
    prompt = [7, 8, 9, 20] * 10
    assert own.write(prompt, 16).token_ids == peer.write(prompt, 16).token_ids


@pytest.fixture(scope="module")
def tiny_transformers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}), "utf-8")
    return load_transformers(folder, "float32")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("drafting", [{}, {"lookup_tokens": 4}, {"assistant": True}])
def test_real_model_reads_one_token_of_a_stored_prompt(
    tiny_transformers: Any, drafting: dict[str, Any]
):
    if "assistant" in drafting:
        drafting = {"assistant": tiny_transformers}
    rows: list[int] = []
    hook = tiny_transformers.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    contestant = TransformersContestant(tiny_transformers, **drafting)
    assert contestant.resume_ms([7, 8, 9, 20] * 10) > 0
    hook.remove()
    assert rows == [39, 1]


@pytest.mark.slow
def test_draft_model_changes_passes_and_not_text(tiny_transformers: Any):
    prompt = [7, 8, 9, 20] * 10
    plain = TransformersContestant(tiny_transformers).write(prompt, 16)
    assisted = TransformersContestant(tiny_transformers, assistant=tiny_transformers)
    written = assisted.write(prompt, 16)
    assert written.token_ids == plain.token_ids
    assert written.passes < plain.passes
