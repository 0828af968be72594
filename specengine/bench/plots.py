# pyright: standard
# matplotlib's types are too loose for strict checking.
"""Pictures of how engines and drafters compare."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specengine.bench.decode import PLAIN, DecodeRow
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
    _save(figure, file)


def draw_drafters(file: Path, rows: Sequence[DecodeRow]) -> None:
    """Draw what each way of drafting adds to plain decoding, and how far its drafts come.

    Raises:  SettingsInvalid when the file cannot be written.
    """
    from matplotlib.figure import Figure

    drafted = [row for row in rows if row.drafter != PLAIN]
    sets = list(dict.fromkeys(row.set for row in drafted))
    names = list(dict.fromkeys(row.drafter for row in drafted))
    figure = Figure(figsize=(15, 2.5 + 0.35 * len(names) * len(sets) ** 0.5), layout="constrained")
    speed, length, reach = figure.subplots(1, 3)
    height = BAR_SHARE / len(sets)
    for number, set_name in enumerate(sets):
        own = {row.drafter: row for row in drafted if row.set == set_name}
        places = [at + height * number for at, name in enumerate(names) if name in own]
        speed.barh(places, [row.speedup_vs_plain for row in own.values()], height, align="edge")
        worst = [row.worst_speedup for row in own.values()]
        speed.plot(worst, [at + height / 2 for at in places], "k|", label="worst prompt")
        values = [row.tokens_per_pass for row in own.values()]
        length.barh(places, values, height, align="edge", label=set_name)
    for panel, title in (
        (speed, "times plain decoding (| worst prompt)"),
        (length, "tokens a pass"),
    ):
        panel.set_title(title)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_yticks([at + BAR_SHARE / 2 for at in range(len(names))], names)
        panel.invert_yaxis()
    length.set_yticklabels([])
    length.legend(fontsize="small")
    for row in drafted:
        if row.set == sets[0] and row.accepted_at:
            shares = [100 * share for share in row.accepted_at]
            reach.plot(range(1, len(shares) + 1), shares, marker="o", label=row.drafter)
    reach.set_title(f"drafts accepted up to a place, %, {sets[0]}")
    reach.set_ylim(0, 100)
    if len(reach.lines):
        reach.legend(fontsize="small")
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise SettingsInvalid(f"cannot draw into {file}: {error.strerror}.") from error


def _name(row: DecodeRow) -> str:
    drafter = "" if row.drafter == "none" else f" + {row.drafter}"
    return f"{row.engine} {row.precision}{drafter}"
