from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest

from specengine.bench.peer_rows import PeerRow
from specengine.bench.plots import check_plots, draw, draw_drafters
from specengine.errors import ConfigError, SettingsInvalid

ROW = PeerRow(
    engine="specengine",
    set="humaneval",
    model="tiny",
    precision="int8",
    drafter="none",
    prefill_tok_s=500.0,
    decode_tok_s=100.0,
    tokens_per_pass=1.0,
    acceptance=None,
    accepted_at=(),
    draft_ms=None,
    speedup_vs_plain=1.0,
    worst_speedup=1.0,
    ms_per_pass=10.0,
    texts_differ=0,
    texts=2,
    runs=5,
    spread=0.1,
    threads=2,
    build="fake",
    prefill_256_tok_s=500.0,
    first_token_cold_ms=2000.0,
    first_token_warm_ms=20.0,
    end_to_end_ms=700.0,
    start_up_s=3.0,
    spreads={},
    against_transformers={},
    against_llama_cpp={},
)
ROWS = [
    ROW,
    msgspec.structs.replace(ROW, drafter="suffix"),
    msgspec.structs.replace(ROW, set="edits"),
    msgspec.structs.replace(ROW, set="edits", drafter="suffix"),
]


def test_missing_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        check_plots(Path("peers.svg"))


def test_contestants_and_figures_are_named_in_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_plots(tmp_path / "peers.svg")
    draw(tmp_path / "peers.svg", ROWS)
    text = (tmp_path / "peers.svg").read_text("utf-8")
    for name in ("specengine int8 + suffix", "decoding, tokens/s", "prefill_1024_tok_s", "edits"):
        assert f"<!-- {name} -->" in text


def test_drafters_are_drawn_beside_each_other(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        *ROWS,
        msgspec.structs.replace(ROW, drafter="eagle", accepted_at=(0.8, 0.5, 0.2)),
    ]
    draw_drafters(tmp_path / "drafters.svg", rows)
    text = (tmp_path / "drafters.svg").read_text("utf-8")
    for name in ("suffix", "eagle", "tokens a pass", "edits"):
        assert f"<!-- {name} -->" in text
    assert "<!-- none -->" not in text


@pytest.mark.parametrize("name", ["nowhere/peers.svg", "peers.txt"])
def test_place_or_form_that_cannot_be_is_named_before_all_else(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(SettingsInvalid, match=r"cannot draw into .*peers"):
        check_plots(tmp_path / name)


def test_place_that_cannot_be_written_in_the_end_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "peers.svg").mkdir()
    with pytest.raises(SettingsInvalid, match="Is a directory"):
        draw(tmp_path / "peers.svg", ROWS[:1])
