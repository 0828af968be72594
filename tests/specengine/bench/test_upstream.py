"""Facts about the benchmark of servers upstream."""

from __future__ import annotations

import pytest

from specengine.bench import upstream


@pytest.mark.e2e
def test_each_number_of_connections_has_a_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream, "CONNECTIONS", (1, 2))
    monkeypatch.setattr(upstream, "EVENT_MS", (0,))
    shown: list[str] = []
    rows = upstream.measure(8, lambda _, text: shown.append(text))
    assert [(row.connections, row.requests) for row in rows] == [(1, 8), (2, 8)]
    assert all(row.requests_s > 0 and row.p99_ms >= row.p50_ms for row in rows)
    assert shown == ["1 connections", "2 connections"]
