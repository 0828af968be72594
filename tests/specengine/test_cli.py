"""What the command prints; what it starts is tested with real processes in tests/e2e."""

from __future__ import annotations

import json

import pytest

from specengine.cli import main


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("specengine 0.")


@pytest.mark.parametrize("arguments", [[], ["fly"], ["bench", "fly"], ["models"]])
def test_unknown_or_missing_commands_are_refused_with_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: specengine" in capsys.readouterr().err


def test_models_are_listed_with_their_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("SPECENGINE_CACHE", str(tmp_path))
    main(["models", "list"])
    lines = capsys.readouterr().out.splitlines()
    (default,) = (line for line in lines if "smollm2-135m-fim *" in line)
    assert " ".join(default.split()) == "smollm2-135m-fim * yes 0.4 GB - yes - Apache-2.0"
    rows = {name: " ".join(rest) for name, *rest in (line.split() for line in lines if line)}
    assert rows["qwen2.5-coder-7b"] == "yes 15.5 GB - yes qwen2.5-coder-0.5b Apache-2.0"
    assert rows["starcoder2-3b"].startswith("upstream 6.2 GB")


def test_models_are_listed_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("SPECENGINE_CACHE", str(tmp_path))
    main(["models", "list", "--json"])
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert [name for name, model in models.items() if model["is_default"]] == ["smollm2-135m-fim"]
    assert models["qwen2.5-coder-7b"] == {
        "name": "qwen2.5-coder-7b",
        "is_default": False,
        "runs": True,
        "memory_gb": 15.5,
        "size_bytes": None,
        "reads_suffix": True,
        "reads_files": True,
        "draft": "qwen2.5-coder-0.5b",
        "licence": "Apache-2.0",
    }
    assert not models["smollm2-135m-fim"]["reads_files"]
    assert not models["starcoder2-3b"]["runs"]
