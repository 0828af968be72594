"""What can be set about the engine, with every default in sight.

Order: defaults, then ``engine.toml`` in the user's configuration folder, then environment variables
(``SPECENGINE_MODEL``, …), then command-line arguments.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import platformdirs

from specengine.errors import SettingsInvalid

ENVIRONMENT_PREFIX: Final = "SPECENGINE_"

OTHER_VARIABLES: Final = frozenset(
    {"SPECENGINE_API_KEY", "SPECENGINE_CACHE", "SPECENGINE_UPSTREAM_KEY"}
)
"""Environment variables with our prefix that are no settings."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value of each, checked."""

    model: str = ""
    """Name in models.toml, a folder, or a .gguf file; empty is the default of models.toml."""
    drafter: str = "auto"
    """Way of drafting, or several joined by + in order of preference."""
    draft_model: str = ""
    """Model of the draft_model drafter; empty is the one that models.toml pairs with the target."""
    precision: Literal["auto", "int8", "int4", "bfloat16", "float32"] = "auto"
    """Of the weights; auto is int8 on a CPU and bfloat16 elsewhere."""
    device: str = "auto"
    """Torch device; auto is a GPU of CUDA where torch can use one, and the CPU elsewhere."""
    num_draft_tokens: int = 7
    """Longest draft. Up to 7 cost no more than none: rows are computed in blocks of 8."""
    history_mb: int = 16
    """Memory for texts that the engine has seen, to draft from, in MiB; below 2 none is kept."""
    prompt_tokens: int = 1024
    """Longest prompt; a longer prefix loses its beginning."""
    max_tokens: int = 512
    """Longest completion that a request may ask for."""
    slots: int = 4
    """Requests that run at once, and sequences whose KV is kept."""
    max_waiting: int = 64
    """Requests that may wait; one more is refused."""
    idle_exit_s: float = 1800.0
    """Exit after so long without a connection; 0 is never."""
    threads: int = 0
    """Torch threads; 0 is torch's own choice."""

    def __post_init__(self) -> None:
        """Refuse numbers outside their range."""
        for name, low, high in (
            ("num_draft_tokens", 0, 31),
            ("history_mb", 0, 64),
            ("prompt_tokens", 16, 131_072),
            ("max_tokens", 1, 8_192),
            ("slots", 1, 64),
            ("max_waiting", 1, 10_000),
            ("idle_exit_s", 0, 1e9),
            ("threads", 0, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsInvalid(f"{name} is {value}; allowed are {low} to {high}.")

    @property
    def context_tokens(self) -> int:
        """Return how many positions a sequence may need: prompt, healing, completion, a draft."""
        return self.prompt_tokens + self.max_tokens + 64


def settings_file() -> Path:
    """Return where the user's own settings of the engine lie."""
    return platformdirs.user_config_path("specengine") / "engine.toml"


def load_settings(
    arguments: Mapping[str, object],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> EngineSettings:
    """Return the settings of a process; arguments that are None count as not given.

    Raises:  SettingsInvalid with source, key and what is allowed.
    """
    file = file or settings_file()
    merged: dict[str, object] = {}
    for where, values in (
        (str(file), _from_file(file)),
        ("the environment", _from_environment(os.environ if environment is None else environment)),
        ("the command line", {key: value for key, value in arguments.items() if value is not None}),
    ):
        _check_names(values, where)
        merged |= values
    try:
        return msgspec.convert(merged, EngineSettings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(f"a setting is not usable: {error}.") from error


def _from_file(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"cannot read {file}: {error}.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES
    }


def _check_names(values: Mapping[str, object], where: str) -> None:
    known = EngineSettings.__struct_fields__
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
            raise SettingsInvalid(f"{where} sets {name!r}, which does not exist.", hint=hint)
