"""The benchmark of the door asks a real one."""

from __future__ import annotations

import pytest

from specengine.bench import door


def test_each_way_and_number_of_connections_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CONNECTIONS", (1, 2))
    monkeypatch.setattr(door, "WARM_UP", 1)
    shown: list[str] = []
    rows = door.measure(4, lambda done, what: shown.append(what))
    assert [(row.way, row.connections, row.requests) for row in rows] == [
        (way, connections, 4) for way in ("whole", "stream", "infill") for connections in (1, 2)
    ]
    assert all(0 < row.p50_ms <= row.p95_ms <= row.p99_ms for row in rows)
    assert shown[0] == "whole, 1 connections"
