"""The card of a head: what it was made of, how, and how often it guesses right, with a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from specengine.train.card import sources
from specengine.train.fetch import Listing
from specengine.train.heads_loop import HeadMeasurement, HeadStep

PICTURE: Final = "acceptance.svg"


@dataclass(frozen=True)
class HeadMaking:
    """How a head was made."""

    name: str
    kind: str
    target: str
    licence: str
    command: str
    machine: str
    corpus: str
    num_stream_tokens: int
    num_bytes: int
    listing: Listing | None


def write_head_card(
    folder: Path, making: HeadMaking, history: Sequence[HeadStep | HeadMeasurement]
) -> None:
    """Write ``README.md`` and the picture beside a head."""
    steps = [line for line in history if isinstance(line, HeadStep)]
    measurements = [line for line in history if isinstance(line, HeadMeasurement)]
    draw(folder / PICTURE, measurements)
    last = steps[-1]
    text = f"""# {making.name}

A head of the kind `{making.kind}` that drafts for {making.target}. It changes no text: the target
verifies what it drafts. Licence: {making.licence}, as the target.

- Made by: `{making.command}`
- On: {making.machine}
- Trained on {last.tokens:,} tokens in {last.step:,} steps, {last.seconds / 3600:.1f} hours; the
  streams are of {making.num_stream_tokens:,} positions
- Size: {making.num_bytes / 1e6:.1f} MB
- Text: {making.corpus}. From there come the prompts; how they go on the target wrote itself

## On packages that are held out

{_table(measurements)}

Right: the share of guesses that are the target's own choice, by depth, where all tokens before were
right. Tokens a pass: what a chain of them would give if depths were independent.

![Right guesses by depth and step]({PICTURE})
"""
    if making.listing is not None:
        text += f"\n## Sources\n\n{sources(making.listing)}\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def draw(file: Path, measurements: Sequence[HeadMeasurement]) -> None:
    """Draw the share of right guesses over the steps, a line for each depth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = cast("Any", figure.subplots())
    steps = [line.step for line in measurements]
    for depth in range(len(measurements[0].hits)):
        axes.plot(steps, [line.hits[depth] for line in measurements], label=f"depth {depth + 1}")
    axes.set_xlabel("step")
    axes.set_ylabel("right guesses")
    axes.set_ylim(0, 1)
    axes.legend()
    save = cast("Any", figure).savefig
    save(file, metadata={"Date": None})


def _table(measurements: Sequence[HeadMeasurement]) -> str:
    lines = ["| step | hours | right, by depth | tokens a pass |", "|---|---|---|---|"]
    lines += [
        f"| {line.step} | {line.seconds / 3600:.2f} | "
        f"{', '.join(f'{hit:.1%}' for hit in line.hits)} | {line.tokens_per_pass:.2f} |"
        for line in measurements
    ]
    return "\n".join(lines)
