# pyright: standard
# matplotlib's types are too loose for strict checking.
"""A picture of how engines compare."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specengine.bench.peer_rows import PREFILL_LENGTHS, PeerRow
from specengine.errors import ConfigError, SettingsInvalid

PANELS: Final = (
    ("decoding, tokens/s", ("decode_tok_s",)),
    ("a whole completion, ms", ("end_to_end_ms",)),
    ("reading, tokens/s", tuple(f"prefill_{length}_tok_s" for length in PREFILL_LENGTHS)),
    ("first token, ms", ("first_token_cold_ms", "first_token_warm_ms")),
    ("start, s", ("start_up_s",)),
    ("peak memory, MB", ("peak_memory_mb",)),
)
"""Titles and the figures that are drawn; the first two differ from set to set."""

NUM_BY_SET: Final = 2
BAR_SHARE: Final = 0.8
"""Of the room between two contestants."""


def check_plots(file: Path) -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:  ConfigError when matplotlib is missing, or the file's place or form cannot be.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "plots are drawn with matplotlib, which is not installed.",
            hint="pip install 'specengine[peers]'",
        )
    from matplotlib.backend_bases import FigureCanvasBase

    forms = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:] not in forms:
        raise SettingsInvalid(
            f"cannot draw into {file}.", hint=f"It may end in {', '.join(forms)}."
        )
    if not file.parent.is_dir():
        raise SettingsInvalid(f"cannot draw into {file}: there is no such folder.")


def draw(file: Path, rows: Sequence[PeerRow]) -> None:
    """Draw rows as bars, one panel for each kind of figure; the ending of the name says the form.

    Raises:  SettingsInvalid when the file cannot be written.
    """
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys(row.set for row in rows))
    names = list(dict.fromkeys(_name(row) for row in rows))
    figure = Figure(figsize=(15, 2 + 0.6 * len(names)), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True)
    for at, (title, keys) in enumerate(PANELS):
        panel = panels[at // 3][at % 3]
        panel.set_title(title)
        bars = [(key, name) for key in keys for name in (sets if at < NUM_BY_SET else sets[:1])]
        for number, (key, set_name) in enumerate(bars):
            values = [getattr(row, key) or 0.0 for row in rows if row.set == set_name]
            places = [place + BAR_SHARE * number / len(bars) for place in range(len(names))]
            label = set_name if at < NUM_BY_SET else key
            panel.barh(places, values, height=BAR_SHARE / len(bars), align="edge", label=label)
        panel.set_yticks([place + BAR_SHARE / 2 for place in range(len(names))], names)
        if "first_token_warm_ms" in keys:
            panel.set_xscale("log")  # or nothing is seen of the shorter
        if len(bars) > 1:
            panel.legend(fontsize="small")
    panels[0][0].invert_yaxis()
    try:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise SettingsInvalid(f"cannot draw into {file}: {error.strerror}.") from error


def _name(row: PeerRow) -> str:
    drafter = "" if row.drafter == "none" else f" + {row.drafter}"
    return f"{row.engine} {row.precision}{drafter}"
