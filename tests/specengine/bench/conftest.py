"""Fixtures of the benchmarks."""

from __future__ import annotations

import pytest

from specengine.bench.own import OwnEngine, load_own
from specengine.settings import EngineSettings
from tests.specengine.tiny import save_tiny_model


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> OwnEngine:
    """A loaded engine of a few thousand weights; every use of it begins with an empty cache."""
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    settings = EngineSettings(model=str(folder), precision="float32", prompt_tokens=256)
    return load_own(settings, lambda fraction, detail: None)
