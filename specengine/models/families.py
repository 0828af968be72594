"""Kinds of models and tokenizers that can be declared, and which of them this engine runs.

Reads no model. All others can be declared so that they are known by name, licence and template;
they run behind an upstream server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from specengine.errors import LoadError

Family: TypeAlias = Literal[
    "llama",
    "qwen2",
    "qwen3",
    "deepseek-v2",
    "gemma",
    "gpt-bigcode",
    "granite",
    "llama-bias",
    "mistral",
    "qwen3-moe",
    "stablelm",
    "starcoder2",
]
"""llama-bias is Llama with a bias in every linear layer, which its config.json calls Llama too."""

TokenizerKind: TypeAlias = Literal["byte-level", "sentencepiece"]

Splits: TypeAlias = Literal["gpt2", "cl100k", "blanks"]
"""How a tokenizer cuts a text into words, whose borders no token crosses.

``gpt2``: a blank joins the letters behind it, a newline the indentation behind it. ``cl100k``: any
sign joins the letters behind it, and a newline ends a word. ``blanks``: a blank joins letters.
"""

SUPPORTED: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Families that the decoder runs, by the name in ``config.json``."""


def can_run(family: Family | None, tokenizer: TokenizerKind) -> bool:
    """Whether this engine runs such a model; one that declares no family may turn out to."""
    return (family is None or family in SUPPORTED.values()) and tokenizer == "byte-level"


def check_runs(name: str, family: Family | None, tokenizer: TokenizerKind) -> None:
    """Refuse a declared model before it is fetched.

    Raises:  LoadError with what the engine lacks.
    """
    if not can_run(family, tokenizer):
        is_known = family is None or family in SUPPORTED.values()
        lacking = f"{tokenizer} tokenizers" if is_known else family
        raise refusal(f"{name} is declared, but this engine does not run {lacking} yet.")


def refusal(what: str) -> LoadError:
    """Return the error for a model of a kind that does not run here."""
    return LoadError(
        what, hint=f"It runs {', '.join(SUPPORTED)}; use others behind an upstream server."
    )
