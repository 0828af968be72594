"""The model card of an adapter: what it was made of, how, and what came of it, with a picture."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from specengine.errors import ConfigError
from specengine.train.fetch import Listing
from specengine.train.loop import Measurement, Step

PICTURE: Final = "loss.svg"
SMOOTHED_STEPS: Final = 25


@dataclass(frozen=True)
class Making:
    """How an adapter was made."""

    name: str
    base: str
    base_licence: str
    command: str
    machine: str
    corpus: str
    """A summary of what was learnt from."""
    sentinels: str
    listing: Listing | None
    """None where the text came from folders of the user's own."""


def check_plots() -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:  ConfigError.
    """
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError(
            "the loss curve is drawn with matplotlib, which is not installed.",
            hint="pip install 'specengine[train]'",
        ) from error


def write_card(folder: Path, making: Making, history: Sequence[Step | Measurement]) -> None:
    """Write ``README.md`` and the picture beside an adapter."""
    steps = [line for line in history if isinstance(line, Step)]
    measurements = [line for line in history if isinstance(line, Measurement)]
    draw(folder / PICTURE, steps, measurements)
    last = steps[-1]
    text = f"""# {making.name}

A low-rank adapter that teaches {making.base} to fill in the middle of code. Licence:
{making.base_licence}, as the base.

- Made by: `{making.command}`
- On: {making.machine}
- Trained on {last.tokens:,} tokens in {last.step:,} steps, {last.seconds / 3600:.1f} hours
- Sentinels: {making.sentinels}
- Text: {making.corpus}

## Held-out packages

{_table(measurements)}

Perplexity is that of the middle's tokens, without the end token. Exact: greedy decoding writes the
whole middle, token for token. Ends: the end token is the likeliest where the middle ends. The plain
layout sees the text before the hole only; base is step 0.

![Loss by step]({PICTURE})
"""
    if making.listing is not None:
        text += f"\n## Sources\n\n{sources(making.listing)}\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def draw(file: Path, steps: Sequence[Step], measurements: Sequence[Measurement]) -> None:
    """Draw the loss of the steps, and above it the perplexity of the held-out middles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for layout in sorted({line.layout for line in measurements}):
        own = [line for line in measurements if line.layout == layout]
        upper.plot([line.step for line in own], [line.perplexity for line in own], label=layout)
    upper.set_ylabel("held-out perplexity")
    upper.legend()
    numbers, losses = [line.step for line in steps], [line.loss for line in steps]
    lower.plot(numbers, losses, linewidth=0.4, color="0.7")
    lower.plot(numbers, _smoothed(losses), linewidth=1.2)
    lower.set_ylabel("training loss, nats")
    lower.set_xlabel("step")
    save = cast("Callable[..., None]", figure.savefig)  # pyright: ignore[reportUnknownMemberType]
    save(file, metadata={"Date": None})


def _smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and those before it, at most so many."""
    means: list[float] = []
    for end in range(1, len(values) + 1):
        recent = values[max(0, end - SMOOTHED_STEPS) : end]
        means.append(sum(recent) / len(recent))
    return means


def _table(measurements: Sequence[Measurement]) -> str:
    lines = ["| step | layout | perplexity | exact | ends |", "|---|---|---|---|---|"]
    lines += [
        f"| {line.step} | {line.layout} | {line.perplexity:.2f} | {line.exact_match:.1%} "
        f"| {line.ends:.1%} |"
        for line in measurements
    ]
    return "\n".join(lines)


def sources(listing: Listing) -> str:
    """Return the packages that were learnt from, with their licences."""
    packages = [*listing.pypi.items(), *listing.npm.items()]
    licences = Counter(package.licence for _, package in packages)
    counts = ", ".join(f"{number} {licence}" for licence, number in licences.most_common())
    names = ", ".join(f"{name} {package.version}" for name, package in packages)
    return (
        f"The Python standard library (PSF-2.0), and {len(packages)} packages: {counts}. One in "
        f"sixteen is held out.\n\n{textwrap.fill(names, 120, break_on_hyphens=False)}."
    )
