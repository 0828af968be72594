"""Training of a head that can be killed at any time: steps, measurements, checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import torch

from specengine.errors import LoadError
from specengine.heads.head import Head
from specengine.models.tensor_files import open_tensors, write_tensors
from specengine.train.gradients import clip_gradients
from specengine.train.objectives import Frozen, outcome
from specengine.train.streams import StreamStore, order_of

STATE: Final = "state.safetensors"
HISTORY: Final = "history.jsonl"
SAVE_SECONDS: Final = 40.0
WARMUP_STEPS: Final = 40
MAX_NORM: Final = 1.0
MEASURE_EVERY: Final = 200
"""Steps between two measurements."""
MEASURED_SHARDS: Final = 6
MOMENTS: Final = ("exp_avg", "exp_avg_sq")

OnLine = Callable[[str], None]


class HeadPlan(msgspec.Struct, frozen=True):
    """What the optimizer does."""

    tokens: int
    """To train on; shards are seen several times."""
    learning_rate: float = 8e-4
    seed: int = 0


class HeadStep(msgspec.Struct, frozen=True, tag="step"):
    """One line of the history."""

    step: int
    tokens: int
    seconds: float
    loss: float


class HeadMeasurement(msgspec.Struct, frozen=True, tag="measurement"):
    """How often a head guesses right on packages that it has not learnt from."""

    step: int
    seconds: float
    hits: tuple[float, ...]
    """Share of right guesses by depth, where all tokens before were right."""

    @property
    def tokens_per_pass(self) -> float:
        """Return what a chain of its guesses would give, if depths were independent."""
        total = survival = 1.0
        for hit in self.hits:
            survival *= hit
            total += survival
        return total


class HeadRun:
    """A training run in a folder."""

    def __init__(
        self,
        head: Head,
        frozen: Frozen,
        folder: Path,
        plan: HeadPlan,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Take up what the folder holds, or begin with ``head``.

        ``on_saved`` is called at each checkpoint.

        Raises:  LoadError when the state does not fit the head.
        """
        self._frozen, self._folder, self._plan = frozen, folder, plan
        self._on_saved = on_saved
        self._tensors = {
            name: tensor.clone().requires_grad_() for name, tensor in head.tensors.items()
        }
        self._head = replace(head, tensors=self._tensors)
        folder.mkdir(parents=True, exist_ok=True)
        parameters = list(self._tensors.values())
        self._optimizer = torch.optim.AdamW(
            parameters, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self.step = self.tokens = 0
        self.seconds = 0.0
        self._resume()
        self._saved_at = time.monotonic()

    @property
    def head(self) -> Head:
        """Return the head as it stands."""
        tensors = {name: tensor.detach() for name, tensor in self._tensors.items()}
        return replace(self._head, tensors=tensors)

    def train(
        self,
        store: StreamStore,
        held_out: StreamStore,
        on_line: OnLine,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take steps until the planned number of tokens is reached or somebody asks to stop."""
        if self.step == 0:
            self._measure(held_out, on_line)
        while self.tokens < self._plan.tokens and not should_stop():
            started = time.monotonic()
            loss, num_tokens, hits = self._step(store)
            elapsed = time.monotonic() - started
            self.step += 1
            self.tokens += num_tokens
            self.seconds += elapsed
            self._append(HeadStep(self.step, self.tokens, round(self.seconds, 1), round(loss, 4)))
            left = (self._plan.tokens - self.tokens) / num_tokens * elapsed / 60
            on_line(
                f"step {self.step}  {self.tokens / self._plan.tokens:4.0%}  loss {loss:.3f}  right "
                f"{' '.join(f'{hit:.0%}' for hit in hits)}  {num_tokens / elapsed:,.0f} tokens/s  "
                f"{left:.0f} minutes left"
            )
            if time.monotonic() - self._saved_at > SAVE_SECONDS:
                self.save()
            if self.step % MEASURE_EVERY == 0:
                self._measure(held_out, on_line)
        self.save()
        self._measure(held_out, on_line)

    def save(self) -> None:
        """Write the state; the old one stays until the new one is whole."""
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in self._tensors.items():
            tensors[f"{name}.value"] = tensor.detach()
            for moment in MOMENTS:
                state = self._optimizer.state[tensor]
                if moment in state:
                    tensors[f"{name}.{moment}"] = state[moment]
        counts = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        new = self._folder / f"{STATE}.new"
        write_tensors(new, tensors, {name: str(value) for name, value in counts.items()})
        os.replace(new, self._folder / STATE)
        self._on_saved()
        self._saved_at = time.monotonic()

    def _step(self, store: StreamStore) -> tuple[float, int, list[float]]:
        epoch, at = divmod(self.step, len(store))
        shard = store.read(order_of(len(store), self._plan.seed, epoch)[at])
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.learning_rate * self._rate_share()
        torch.manual_seed(self.step)  # pyright: ignore[reportUnknownMemberType]
        with torch.autocast("cpu", torch.bfloat16):
            made = outcome(self._head, self._frozen, shard)
        made.loss.backward()  # pyright: ignore[reportUnknownMemberType]
        clip_gradients(list(self._tensors.values()), MAX_NORM, self.step)
        self._optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        self._optimizer.zero_grad()
        return float(made.loss.detach()), shard.num_tokens, made.hits

    def _rate_share(self) -> float:
        """Return the part of the full rate: a warm-up, a plateau, a fall over the last half."""
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        left = 1.0 - self.tokens / self._plan.tokens
        return warm * max(0.02, min(1.0, left / 0.5))

    @torch.no_grad()
    def _measure(self, held_out: StreamStore, on_line: OnLine) -> None:
        hits: list[list[float]] = []
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        for number in range(min(len(held_out), MEASURED_SHARDS)):
            with torch.autocast("cpu", torch.bfloat16):
                hits.append(outcome(self._head, self._frozen, held_out.read(number)).hits)
        means = tuple(round(sum(depth) / len(depth), 4) for depth in zip(*hits, strict=True))
        line = HeadMeasurement(self.step, round(self.seconds, 1), means)
        self._append(line)
        on_line(
            f"step {self.step}  held out: right {' '.join(f'{hit:.1%}' for hit in means)}, "
            f"{line.tokens_per_pass:.2f} tokens a pass\n"
        )

    def _append(self, line: HeadStep | HeadMeasurement) -> None:
        with (self._folder / HISTORY).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    @torch.no_grad()
    def _resume(self) -> None:
        file = self._folder / STATE
        if not file.exists():
            (self._folder / HISTORY).unlink(missing_ok=True)
            return
        with open_tensors(file) as state:
            names, counts = set(state.keys()), state.metadata() or {}
            if names and {name.rpartition(".")[0] for name in names} != set(self._tensors):
                raise LoadError(
                    f"{file} is of another kind of head.", hint="Choose another folder: --out DIR."
                )
            for name, tensor in self._tensors.items():
                saved = state.get_tensor(f"{name}.value")
                if saved.shape != tensor.shape:
                    raise LoadError(
                        f"{name} in {file} has shape {tuple(saved.shape)}, not "
                        f"{tuple(tensor.shape)}.",
                        hint="It is of another model; choose another folder: --out DIR.",
                    )
                tensor.copy_(saved)
                if f"{name}.{MOMENTS[0]}" in names:
                    self._optimizer.state[tensor] = {
                        "step": torch.tensor(float(counts["step"])),
                        **{moment: state.get_tensor(f"{name}.{moment}") for moment in MOMENTS},
                    }
        self.step, self.tokens = int(counts["step"]), int(counts["tokens"])
        self.seconds = float(counts["seconds"])
        kept = [line for line in read_head_history(self._folder) if line.step <= self.step]
        lines = b"".join(msgspec.json.encode(line) + b"\n" for line in kept)
        (self._folder / HISTORY).write_bytes(lines)


def read_head_history(folder: Path) -> list[HeadStep | HeadMeasurement]:
    """Return the lines of a run; a last one that was cut short is left out."""
    file = folder / HISTORY
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    decoder = msgspec.json.Decoder(HeadStep | HeadMeasurement)
    return [decoder.decode(line) for line in lines if line.endswith(b"\n")]
