from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specengine.errors import LoadError
from specengine.models import convert
from specengine.models.convert import ensure_model
from specengine.models.families import SUPPORTED, Family, TokenizerKind, can_run, check_runs
from specengine.models.registry import ModelEntry


@pytest.mark.parametrize("family", [*SUPPORTED.values(), None])
def test_family_of_the_decoder_runs_with_byte_level_tokens(family: Family | None) -> None:
    """One that declares none says it in its own config."""
    assert can_run(family, "byte-level")
    check_runs("mine", family, "byte-level")


@pytest.mark.parametrize(
    ("family", "tokenizer", "lacking"),
    [
        ("starcoder2", "byte-level", "starcoder2"),
        ("gemma", "sentencepiece", "gemma"),
        ("llama", "sentencepiece", "sentencepiece tokenizers"),
    ],
)
def test_other_model_is_refused_before_it_is_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: Family,
    tokenizer: TokenizerKind,
    lacking: str,
) -> None:
    monkeypatch.setattr(convert, "fetch_snapshot", pytest.fail)
    entry = ModelEntry("mine", "hf:owner/name@main", architecture=family, tokenizer=tokenizer)
    assert not can_run(family, tokenizer)
    with pytest.raises(LoadError, match="behind an upstream server") as caught:
        ensure_model(entry, cache_dir=tmp_path)
    assert caught.value.what == f"mine is declared, but this engine does not run {lacking} yet."
    assert list(tmp_path.iterdir()) == []


def test_models_are_known_without_torch() -> None:
    """Listing them would else take seconds."""
    program = "import sys; import specengine.models.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
