"""What several test packages share."""

from __future__ import annotations

import os

# Before torch is loaded: threads that spin for long stop each other when the machine is busy.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

from pathlib import Path

import pytest
from hypothesis import settings

from specengine.models import convert, registry

# The same examples in every run, and no clock: what CI says must not depend on the machine.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The folder of the default model; only for tests that are marked `model`."""
    declared = registry.load(own_file=Path("no-own-models.toml"))
    return convert.ensure_model(declared.get(declared.default))
