"""Fixtures for everything about model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specengine.models.tiny_gguf import TinyGguf


@pytest.fixture(scope="session")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file that converts; not to be changed."""
    return TinyGguf().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
