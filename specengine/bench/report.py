"""Rows of results as a table for people and as a file for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from specengine.bench.machine import Machine
from specengine.errors import SettingsInvalid

NO_VALUE: Final = "-"
"""What a table shows where there is no value."""


class Report(msgspec.Struct, frozen=True):
    """One run of one benchmark."""

    machine: Machine
    command: str
    """What makes these rows again."""
    rows: Sequence[msgspec.Struct]


def table(rows: Sequence[msgspec.Struct]) -> str:
    """Return rows as ``table_of`` does, with all their fields."""
    return table_of([msgspec.structs.asdict(row) for row in rows])


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records below the names of their values in aligned columns, numbers to the right.

    What all of several records have in common stands above them, once.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    values = {name: [record.get(name) for record in records] for name in names}
    common = {name for name in names if len(records) > 1 and _are_equal(values[name])}
    shown = [f"{name} {_cell(values[name][0])}" for name in names if name in common]
    columns = [_column(name, values[name]) for name in names if name not in common]
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([", ".join(shown), *lines] if shown else lines)


def write_report(report: Report, file: Path) -> None:
    """Write a report as JSON, whole or not at all.

    Raises:  SettingsInvalid when the place cannot be written.
    """
    partial = file.with_name(file.name + ".new")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        os.replace(partial, file)
    except OSError as error:
        raise SettingsInvalid(f"cannot write {file}: {error.strerror}.") from error


def _are_equal(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _column(name: str, values: Sequence[Any]) -> list[str]:
    cells = [name, *map(_cell, values)]
    width = max(map(len, cells))
    is_number = all(isinstance(value, int | float) for value in values if value is not None)
    return [cell.rjust(width) if is_number else cell.ljust(width) for cell in cells]


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NO_VALUE
    if isinstance(value, tuple):
        return " ".join(map(_cell, cast("tuple[Any, ...]", value))) or NO_VALUE
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return " ".join(f"{key}: {_cell(each)}" for key, each in pairs) or NO_VALUE
    return f"{value:.2f}" if isinstance(value, float) else str(value)
