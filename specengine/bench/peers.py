# pyright: standard
# transformers ships no types that strict checking could use.
"""Other engines on the same weights, called as their own documentation says.

``transformers`` is no dependency of the product: it is imported here only, when it is asked for.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from specengine.bench.contestants import Written
from specengine.errors import ConfigError

LOOKUP_TOKENS: Final = 10
"""``prompt_lookup_num_tokens``, as in the documentation of transformers."""

ASSISTED: Final = "assisted"
"""Assisted generation: a smaller model of the same tokens drafts."""


class TransformersContestant:
    """``generate`` of transformers: plain, with prompt lookup decoding, or with a draft model."""

    engine = "transformers"

    def __init__(
        self,
        model: Any,
        lookup_tokens: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        assistant: Any = None,
    ) -> None:
        self._model = model
        self._clock = clock
        self._drafting: dict[str, Any] = {}
        self.drafter = "none"
        if lookup_tokens:
            self.drafter = lookup_name(lookup_tokens)
            self._drafting["prompt_lookup_num_tokens"] = lookup_tokens
        elif assistant is not None:
            self.drafter = ASSISTED
            self._drafting["assistant_model"] = assistant

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        """Continue a prompt; generation has no end token, so that all lengths are equal."""
        return self._write(prompt_ids, num_tokens, self._drafting)

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        """Return how long the first token takes when all but the last of the prompt is stored.

        By itself ``generate`` stores nothing between calls; the documented way is to hand over the
        keys and values of the call before. That is done without drafts, which begin later.
        """
        from transformers import DynamicCache

        # Later versions call it `cache`, but take this name too, which earlier ones know alone.
        stored = {"past_key_values": DynamicCache(config=self._model.config)}
        self._write(prompt_ids[:-1], 1, stored)
        return self._write(prompt_ids, 1, stored).prefill_ms

    def _write(
        self, prompt_ids: Sequence[int], num_tokens: int, further: Mapping[str, Any]
    ) -> Written:
        watch = _Watch(self._clock)
        options = {"max_new_tokens": num_tokens, "do_sample": False, **further}
        input_ids = torch.tensor([list(prompt_ids)])
        hook = self._model.register_forward_pre_hook(watch.see_forward, with_kwargs=True)
        started = self._clock()
        try:
            with torch.inference_mode():
                output = self._model.generate(
                    input_ids,
                    attention_mask=torch.ones_like(input_ids),
                    stopping_criteria=[watch.see_pass],
                    **options,
                )
        finally:
            hook.remove()
        return watch.written(output[0].tolist(), len(prompt_ids), started)


class _Watch:
    """Notes what goes into each forward pass, and when how many tokens stood."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_rows = 0
        self._lengths: list[int] = []
        self._times: list[float] = []

    def see_forward(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._num_rows += kwargs["input_ids"].shape[1]

    def see_pass(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self._lengths.append(input_ids.shape[1])
        self._times.append(self._clock())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def written(self, token_ids: list[int], num_prompt: int, started: float) -> Written:
        num_written = len(token_ids) - num_prompt
        num_passes = len(self._lengths)
        return Written(
            token_ids=tuple(token_ids[num_prompt:]),
            num_prompt=num_prompt,
            prefill_ms=(self._times[0] - started) * 1000,
            decode_ms=(self._times[-1] - self._times[0]) * 1000,
            num_decoded=len(token_ids) - self._lengths[0],
            passes=num_passes - 1,
            # Each pass reads the token that the one before it has added, and a draft.
            drafted=self._num_rows - num_prompt - (num_passes - 1),
            accepted=num_written - num_passes,
        )


def lookup_name(num_tokens: int) -> str:
    """Return what rows call prompt lookup decoding."""
    return f"prompt_lookup {num_tokens}"


def has_transformers() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("transformers") is not None


def load_transformers(folder: Path, precision: str) -> Any:
    """Return the model of a folder, as transformers loads it; for int8 it has bfloat16.

    Raises:  ConfigError when transformers is not installed.
    """
    if not has_transformers():
        raise ConfigError("transformers is not installed.", hint=INSTALL_HINT)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model.eval()


INSTALL_HINT: Final = "To compare with it: pip install 'transformers>=5.20,<6'"
"""What to do about a missing transformers."""
