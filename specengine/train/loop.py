"""Training that can be killed at any time: steps, measurements, checkpoints.

A run is a folder: ``state.safetensors`` with the factors and the optimizer's moments, replaced at
least once a minute, and ``history.jsonl`` with a line for each step and each measurement.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from specengine.errors import LoadError
from specengine.models.tensor_files import TensorFile, open_tensors, write_tensors
from specengine.train.batches import MEASURED_TOKENS, Batch, BatchMaker, batch_of
from specengine.train.gradients import clip_gradients
from specengine.train.network import Network
from specengine.train.samples import Sample, SampleLayout

STATE: Final = "state.safetensors"
HISTORY: Final = "history.jsonl"
SAVE_SECONDS: Final = 40.0
"""Between two checkpoints; a step more is lost at most."""
MEASURE_ROWS: Final = 8

OnLine = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """What the optimizer does."""

    tokens: int
    """To train on, without padding; the rate falls all the way."""
    learning_rate: float = 3e-4
    warmup_steps: int = 40
    batch_tokens: int = 4096
    """Of one forward pass."""
    batches_per_step: int = 2
    max_norm: float = 1.0
    measure_seconds: float = 900.0
    seed: int = 0


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One line of the history."""

    step: int
    tokens: int
    """So far."""
    seconds: float
    """So far, of training alone."""
    loss: float
    rate: float


class Measurement(msgspec.Struct, frozen=True, tag="measurement"):
    """How well the middles of held-out packages are written, for one layout."""

    step: int
    layout: str
    num_samples: int
    perplexity: float
    """Of the middles' tokens, without the end token."""
    exact_match: float
    """Share of middles that greedy decoding writes token for token."""
    ends: float
    """Share of middles after which the end token is the likeliest; 0 for the plain layout."""


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Run:
    """A training run in a folder."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        plan: Plan,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Take up what the folder holds, or begin anew; ``on_saved`` is called at each checkpoint.

        Raises:  LoadError when the state does not fit the network.
        """
        self._network, self._folder, self._plan = network, folder, plan
        self._on_saved = on_saved
        folder.mkdir(parents=True, exist_ok=True)
        self._factors = network.parameters()
        self._optimizer = torch.optim.AdamW(
            self._factors, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self.progress = Progress()
        self._resume()
        self._saved_at = self._measured_at = time.monotonic()
        network.merge()

    def train(
        self,
        batches: BatchMaker,
        measured: dict[SampleLayout, list[Sample]],
        on_line: OnLine,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take steps until the planned number of tokens is reached or somebody asks to stop."""
        progress, plan = self.progress, self._plan
        if progress.step == 0:
            self._measure(measured, on_line)
        while progress.tokens < plan.tokens and not should_stop():
            started = time.monotonic()
            loss, num_tokens, rate = self._step(batches)
            elapsed = time.monotonic() - started
            progress.step += 1
            progress.tokens += num_tokens
            progress.seconds += elapsed
            line = Step(progress.step, progress.tokens, round(progress.seconds, 1), loss, rate)
            self._append(line)
            left = (plan.tokens - progress.tokens) / num_tokens * elapsed
            on_line(
                f"step {line.step}  {progress.tokens / plan.tokens:4.0%}  loss {loss:.3f}  "
                f"{num_tokens / elapsed:,.0f} tokens/s  {left / 60:.0f} minutes left"
            )
            if time.monotonic() - self._saved_at > SAVE_SECONDS:
                self.save()
            if time.monotonic() - self._measured_at > plan.measure_seconds:
                self._measure(measured, on_line)
        self.save()
        self._measure(measured, on_line)

    def save(self) -> None:
        """Write the state; the old one stays until the new one is whole."""
        tensors: dict[str, torch.Tensor] = {}
        for number, factor in enumerate(self._factors):
            tensors[f"{number}.factor"] = factor.detach()
            for name in ("exp_avg", "exp_avg_sq"):
                moments = self._optimizer.state[factor]
                if name in moments:
                    tensors[f"{number}.{name}"] = moments[name]
        metadata = {
            "step": str(self.progress.step),
            "tokens": str(self.progress.tokens),
            "seconds": str(self.progress.seconds),
        }
        new = self._folder / f"{STATE}.new"
        write_tensors(new, {name: tensor.cpu() for name, tensor in tensors.items()}, metadata)
        os.replace(new, self._folder / STATE)
        self._on_saved()
        self._saved_at = time.monotonic()

    def _step(self, batches: BatchMaker) -> tuple[float, int, float]:
        plan = self._plan
        rate = plan.learning_rate * self._rate_share()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        made = list(batches.step(self.progress.step, plan.batches_per_step, plan.batch_tokens))
        total_weight = sum(float(batch.weights.sum()) for batch in made)
        total = 0.0
        for batch in made:
            losses, _ = _losses(self._network, batch)
            loss = (losses * batch.weights.to(losses.device)).sum() / total_weight
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            total += float(loss.detach())
        clip_gradients(self._factors, plan.max_norm, self.progress.step)
        self._optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        self._optimizer.zero_grad()
        self._network.merge()
        return round(total, 4), sum(batch.num_tokens for batch in made), rate

    def _rate_share(self) -> float:
        """Return the part of the full rate: a warm-up, then a straight line down to nothing.

        Source:  Bergsma et al. 2025, arXiv 2502.15938.
        """
        warm = min(1.0, (self.progress.step + 1) / self._plan.warmup_steps)
        return warm * max(0.0, 1.0 - self.progress.tokens / self._plan.tokens)

    def _measure(self, measured: dict[SampleLayout, list[Sample]], on_line: OnLine) -> None:
        for layout, samples in measured.items():
            line = measure(self._network, layout, samples, self.progress.step)
            self._append(line)
            on_line(
                f"step {line.step}  held out, {layout}: perplexity {line.perplexity:.3f}, "
                f"exact {line.exact_match:.1%}, ends {line.ends:.1%}\n"
            )
        self._measured_at = time.monotonic()

    def _append(self, line: Step | Measurement) -> None:
        with (self._folder / HISTORY).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def _resume(self) -> None:
        file = self._folder / STATE
        if not file.exists():
            (self._folder / HISTORY).unlink(missing_ok=True)
            return
        with open_tensors(file) as state:
            names, metadata = set(state.keys()), state.metadata() or {}
            for number, factor in enumerate(self._factors):
                self._restore(factor, state, f"{number}.", names, int(metadata["step"]))
        self.progress = Progress(
            int(metadata["step"]), int(metadata["tokens"]), float(metadata["seconds"])
        )
        self._forget_after(self.progress.step)

    def _restore(
        self, factor: torch.Tensor, state: TensorFile, prefix: str, names: set[str], step: int
    ) -> None:
        if f"{prefix}factor" not in names:
            raise LoadError(f"{self._folder / STATE} is of another model.")
        saved = state.get_tensor(f"{prefix}factor")
        if saved.shape != factor.shape:
            raise LoadError(f"{self._folder / STATE} is of another model or rank.")
        with torch.no_grad():
            factor.copy_(saved)
        if f"{prefix}exp_avg" in names:
            self._optimizer.state[factor] = {
                "step": torch.tensor(float(step)),
                "exp_avg": state.get_tensor(f"{prefix}exp_avg").to(factor.device),
                "exp_avg_sq": state.get_tensor(f"{prefix}exp_avg_sq").to(factor.device),
            }

    def _forget_after(self, step: int) -> None:
        """Drop lines of steps that are done again."""
        kept = [line for line in read_history(self._folder) if line.step <= step]
        lines = [msgspec.json.encode(line) + b"\n" for line in kept]
        (self._folder / HISTORY).write_bytes(b"".join(lines))


def read_history(folder: Path) -> list[Step | Measurement]:
    """Return the lines of a run; a last one that was cut short is left out."""
    file = folder / HISTORY
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    decoder = msgspec.json.Decoder(Step | Measurement)
    return [decoder.decode(line) for line in lines if line.endswith(b"\n")]


@torch.no_grad()
def measure(
    network: Network, layout: SampleLayout, samples: Sequence[Sample], step: int
) -> Measurement:
    """Return how well some middles are written; nothing is learnt."""
    ends = layout != "plain"
    total_loss = 0.0
    num_tokens = num_exact = num_ended = 0
    for batch in _measure_batches(samples):
        losses, is_likeliest = _losses(network, batch)
        for row in range(len(batch.token_ids)):
            own = (batch.rows == row).to(losses.device)
            row_losses, row_likeliest = losses[own], is_likeliest[own]
            middle = len(row_losses) - ends
            total_loss += float(row_losses[:middle].sum())
            num_tokens += middle
            num_exact += bool(row_likeliest[:middle].all())
            num_ended += ends and bool(row_likeliest[-1])
    return Measurement(
        step=step,
        layout=layout,
        num_samples=len(samples),
        perplexity=round(math.exp(total_loss / num_tokens), 4),
        exact_match=round(num_exact / len(samples), 4),
        ends=round(num_ended / len(samples), 4),
    )


def _losses(network: Network, batch: Batch) -> tuple[torch.Tensor, ...]:
    """Return the losses at a batch's places, and whether their targets are the likeliest."""
    device = network.embedding.device
    hidden = network.hidden(batch.token_ids.to(device)).flatten(0, 1)
    return network.losses(hidden[batch.places.to(device)], batch.targets.to(device))


def _measure_batches(samples: Sequence[Sample]) -> Iterator[Batch]:
    for start in range(0, len(samples), MEASURE_ROWS):
        yield batch_of(samples[start : start + MEASURE_ROWS], MEASURED_TOKENS)
