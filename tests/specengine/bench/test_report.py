from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from specengine.bench.machine import Machine, describe
from specengine.bench.report import Report, table, table_of, write_report
from specengine.errors import SettingsInvalid

MACHINE = Machine("a cpu", 2, 2, "Linux 6", "3.11", "2.13")


class Row(msgspec.Struct, frozen=True):
    name: str
    speed: float
    share: float | None
    model: str = "tiny"


class Size(msgspec.Struct, frozen=True):
    num_bytes: int


def test_columns_are_aligned_and_what_is_common_stands_above():
    rows = [Row("plain", 3.0, None), Row("suffix", 10.123, 0.5)]
    assert table(rows).splitlines() == [
        "model tiny",
        "name    speed  share",
        "plain    3.00      -",
        "suffix  10.12   0.50",
    ]


def test_values_by_key_are_shown_side_by_side():
    records = [{"ms": {1: 2.5, 8: 3.0}, "of": {"a": 1}}, {"ms": {1: 2.5, 8: 4.0}, "of": {"a": 1}}]
    assert table_of(records).splitlines() == [
        "of a: 1",
        "ms",
        "1: 2.50 8: 3.00",
        "1: 2.50 8: 4.00",
    ]


def test_single_row_has_nothing_in_common_with_others():
    assert table([Row("plain", 3.0, None)]).splitlines() == [
        "name   speed  share  model",
        "plain   3.00      -  tiny",
    ]


def test_rows_of_two_kinds_share_a_table():
    lines = table([Row("plain", 3.0, None), Size(7)]).splitlines()
    assert lines == [
        "share -",
        "name   speed  model  num_bytes",
        "plain   3.00  tiny           -",
        "-          -  -              7",
    ]


def test_report_is_written_whole(tmp_path: Path):
    file = tmp_path / "report.json"
    write_report(Report(MACHINE, "specengine bench decode", [Row("plain", 3.0, None)]), file)
    content = json.loads(file.read_text("utf-8"))
    assert content["command"] == "specengine bench decode"
    assert content["rows"] == [{"name": "plain", "speed": 3.0, "share": None, "model": "tiny"}]
    assert content["machine"]["cores"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_place_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(SettingsInvalid, match="nowhere"):
        write_report(Report(MACHINE, "", []), tmp_path / "nowhere" / "report.json")


def test_machine_names_what_numbers_depend_on():
    machine = describe()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.torch[0].isdigit()
    msgspec.json.encode(machine)


def test_several_numbers_of_a_cell_stand_side_by_side() -> None:
    assert table_of([{"a": (0.5, 0.25)}, {"a": ()}]).splitlines()[1:] == ["0.50 0.25", "-"]
