from __future__ import annotations

import threading
from pathlib import Path

import pytest

from specengine.models import staging
from specengine.models.staging import locked, staged


def test_staged_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with staged(target) as part:
        (part / "file").write_text("new")
        assert not target.exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "file"]


def test_staged_folder_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    with staged(target) as part:
        (part / "new").write_text("new")
    assert [path.name for path in target.iterdir()] == ["new"]


def test_failure_leaves_no_half_folder(tmp_path: Path) -> None:
    def interrupt(part: Path) -> None:
        (part / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "model") as part:
        interrupt(part)
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".model.part-1"
    stale.mkdir()
    (stale / "half").write_text("half")
    other = tmp_path / ".model-2.part-1"
    other.mkdir()
    with staged(tmp_path / "model"):
        assert not stale.exists()
    assert other.exists()


def test_second_process_waits_for_the_first(tmp_path: Path) -> None:
    target = tmp_path / "model"
    waits, order = threading.Event(), list[str]()

    def second() -> None:
        with locked(target, lambda _, detail: waits.set() if "waiting" in detail else None):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(target):
        thread.start()
        assert waits.wait(timeout=10)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_waiting_process_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "WAIT_S", 0.01)
    ticks: list[str] = []

    def stop_at_third(_: float, detail: str) -> None:
        ticks.append(detail)
        if len(ticks) == 3:
            raise KeyboardInterrupt

    def wait() -> None:
        with locked(tmp_path / "model", stop_at_third):
            raise AssertionError("another process holds the lock")

    with locked(tmp_path / "model"), pytest.raises(KeyboardInterrupt):
        wait()
    assert len(ticks) == 3
    with locked(tmp_path / "model"):
        pass
