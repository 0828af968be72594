"""The settings page of the VS Code extension says what the language server accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lsp_server.settings import Settings, read_settings

EXTENSION = Path(__file__).parents[3] / "editors" / "vscode"
PACKAGE: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
SCHEMAS: dict[str, dict[str, Any]] = {
    key: schema
    for section in PACKAGE["contributes"]["configuration"]
    for key, schema in section["properties"].items()
    if key.count(".") == 2
}
"""Those of the server, which have a group; the extension's own have none."""

LIMITS = [
    (key, limit, step)
    for key, schema in SCHEMAS.items()
    for limit, step in (("minimum", -1), ("maximum", 1))
    if limit in schema
]


def problems_of(key: str, value: object) -> list[str]:
    _, group, name = key.split(".")
    return read_settings({group: {name: value}})[1]


def test_package_json_is_up_to_date() -> None:
    script = EXTENSION / "scripts" / "generate_settings.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


def test_all_defaults_together_are_the_server_s() -> None:
    data: dict[str, dict[str, object]] = {}
    for key, schema in SCHEMAS.items():
        _, group, name = key.split(".")
        data.setdefault(group, {})[name] = schema["default"]
    assert read_settings(data) == (Settings(), [])


@pytest.mark.parametrize(("key", "limit", "step"), LIMITS)
def test_the_server_has_the_same_limits(key: str, limit: str, step: int) -> None:
    value = SCHEMAS[key][limit]
    assert problems_of(key, value) == []
    assert problems_of(key, value + step) != []
