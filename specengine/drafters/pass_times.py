"""What a pass of the target takes, by its rows and by how much text stands before them.

Measured once for a model on a machine, in a few passes at start-up, and stored in the cache folder.
Every pass of real work corrects it. Drafts are chosen by ratios of these times; what makes all
passes slower at once, such as another busy program, changes none.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch

from specengine.cache.kv_cache import KVCache
from specengine.models.integer import IntegerDecoder
from specengine.models.target import Target

logger = logging.getLogger(__name__)

WIDTHS: Final = (1, 2, 4, 8, 16, 32)
"""Rows that are measured, as far as a draft may be so long."""

CONTEXTS: Final = (64, 1024)
"""Positions before them."""

PROBE_MS: Final = 250.0
"""Measuring ends after so long, though not before the narrowest and the widest pass."""

ROUNDS: Final = 4
"""Each time is the shortest of so many."""

MEMORY: Final = 40.0
"""Real passes of one width that are remembered."""

LEAST_MS: Final = 1e-6
"""No pass takes less, wherever the lines go."""

DRIFTED: Final = 1.5
"""A width that is so much dearer or cheaper than it was, beside one row, is measured anew at the
next start."""

Clock = Callable[[], float]


class Measured(msgspec.Struct, frozen=True):
    """Milliseconds of passes, [contexts][widths]."""

    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Refuse a table that is no table, as a damaged file may hold."""
        is_whole = len(self.ms) == len(self.contexts) > 0 and len(self.widths) > 1
        if not is_whole or any(len(row) != len(self.widths) for row in self.ms):
            raise ValueError("times of passes that do not make a table")
        if not all(0 < each < math.inf for row in self.ms for each in row):
            raise ValueError("times of passes that are no times")

    def at(self, num_rows: int, context: int) -> float:
        """Return the time of a pass, between and beyond what was measured along straight lines."""
        by_context = [_line(self.widths, row, num_rows) for row in self.ms]
        return max(_line(self.contexts, by_context, context), LEAST_MS)


class PassTimes:
    """What was measured, and what real passes have shown since."""

    def __init__(self, measured: Measured, file: Path | None = None) -> None:
        self.measured = measured
        self._file = file
        """Where it is stored, to be dropped when it is no longer true."""
        self._logs = [0.0] * len(measured.widths)
        """Logarithm of real time over measured time, of each width."""
        self._weights = [0.0] * len(measured.widths)

    def ms(self, num_rows: int, context: int) -> float:
        """Return what a pass takes, in measured milliseconds."""
        return max(_line(self.measured.widths, self._by_width(context), num_rows), LEAST_MS)

    def extra_ms(self, num_rows: int, context: int, num_others: int = 1) -> list[float]:
        """Return what 0 to ``num_rows`` drafted rows add to a pass of some others."""
        widths, by_width = self.measured.widths, self._by_width(context)
        all_rows = range(num_others, num_others + num_rows + 1)
        times = [_line(widths, by_width, rows) for rows in all_rows]
        return [ms - times[0] for ms in times]

    def note(self, num_rows: int, context: int, ms: float) -> None:
        """Take in a real pass."""
        at = bisect.bisect_left(self.measured.widths, num_rows)
        if at == len(self._logs) or ms <= 0:
            return
        log = math.log(ms / self.measured.at(num_rows, context))
        self._weights[at] = min(self._weights[at] + 1, MEMORY)
        # A pass that took many times as long was interrupted; it says little about passes.
        log = min(max(log, self._logs[at] - 0.7), self._logs[at] + 0.7)
        self._logs[at] += (log - self._logs[at]) / self._weights[at]
        if self._file is not None and self._weights[at] == MEMORY:
            self._drop_if_drifted(at)

    def _by_width(self, context: int) -> list[float]:
        """Return what passes of the measured widths take."""
        drift = 0.0
        times: list[float] = []
        for at, column in enumerate(zip(*self.measured.ms, strict=True)):
            # A width that nobody has seen goes by the nearest narrower one that somebody has.
            if self._weights[0] and self._weights[at]:
                trust = min(self._weights[0], self._weights[at]) / MEMORY
                drift = min(max(self._logs[at] - self._logs[0], -0.7), 0.7) * trust
            times.append(_line(self.measured.contexts, column, context) * math.exp(drift))
        # Fewer rows are never dearer: where it looks so, something came between.
        for at in reversed(range(len(times) - 1)):
            times[at] = min(times[at], times[at + 1])
        return times

    def _drop_if_drifted(self, at: int) -> None:
        drift = self._logs[at] - self._logs[0]
        if self._weights[0] == MEMORY and abs(drift) > math.log(DRIFTED):
            assert self._file is not None
            logger.info(
                "passes of %d rows take %.0f %% of what was measured, beside one row; they are "
                "measured anew at the next start",
                self.measured.widths[at],
                100 * math.exp(drift),
            )
            self._file.unlink(missing_ok=True)
            self._file = None


def known_or_measured(target: Target, cache: KVCache, max_rows: int, folder: Path) -> PassTimes:
    """Return what is stored for such a target on this machine, or measure and store it.

    ``cache`` must be empty, and is left so. What cannot be stored is measured at each start.
    """
    widths = _widths(max_rows)
    facts = [
        target.architecture,
        target.precision,
        target.kernel.file if isinstance(target, IntegerDecoder) else torch.__version__,
        _device(target.kv_shape.device),
        torch.get_num_threads(),
        widths,
        CONTEXTS,
        cache.capacity,
    ]
    file = folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"
    try:
        return PassTimes(msgspec.json.decode(file.read_bytes(), type=Measured), file)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("cannot read %s, so passes are measured again: %s", file, error)
    measured = measure(target, cache, widths)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(measured))
    except OSError as error:
        logger.warning("cannot store how long passes take: %s", error)
    return PassTimes(measured, file)


def measure(
    target: Target, cache: KVCache, widths: Sequence[int], clock: Clock = time.perf_counter
) -> Measured:
    """Return how long passes take; the cache must be empty, and is left so."""
    contexts = [each for each in CONTEXTS if each + widths[-1] <= cache.capacity]
    contexts = contexts or [cache.capacity - widths[-1]]
    best: dict[tuple[int, int], float] = {}
    started = clock()
    for _ in range(ROUNDS):
        for context in contexts:
            # The ends first: if time is short, what lies between follows from them.
            for width in (widths[0], widths[-1], *widths[1:-1]):
                if len(best) >= 2 and (clock() - started) * 1000 > PROBE_MS:
                    return _filled(best, widths, contexts)
                took_ms = _pass_ms(target, cache, width, context, clock)
                if (context, width) not in best:
                    # The first pass of a shape is slow.
                    took_ms = _pass_ms(target, cache, width, context, clock)
                    best[context, width] = took_ms
                best[context, width] = min(best[context, width], took_ms)
    return _filled(best, widths, contexts)


def _pass_ms(target: Target, cache: KVCache, width: int, context: int, clock: Clock) -> float:
    cache.truncate(0)
    # What the rows before it hold does not matter for the time.
    cache.advance(context)
    before = clock()
    # Until the choice of a token is there: a device works on by itself.
    int(target.forward([0] * width, cache, num_logits=width).argmax(-1).sum())
    took_ms = (clock() - before) * 1000
    cache.truncate(0)
    return took_ms


def _filled(
    best: dict[tuple[int, int], float], widths: Sequence[int], contexts: Sequence[int]
) -> Measured:
    """Return the table; where a context was not measured in full, it is left out."""
    full = [each for each in contexts if (each, widths[0]) in best and (each, widths[-1]) in best]
    rows: list[tuple[float, ...]] = []
    for context in full:
        known = [width for width in widths if (context, width) in best]
        times = [best[context, width] for width in known]
        rows.append(tuple(_line(known, times, width) for width in widths))
    return Measured(tuple(widths), tuple(full), tuple(rows))


def _widths(max_rows: int) -> tuple[int, ...]:
    narrower = [width for width in WIDTHS if width < max_rows]
    return (*narrower, max(max_rows, 2)) if narrower else (1, 2)


def _line(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """Return y at x along straight lines through points, the outer lines going on."""
    if len(xs) == 1:
        return ys[0]
    at = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return f"{device} {platform.machine()}"
    return next((line for line in lines if line.startswith("model name")), str(device))
