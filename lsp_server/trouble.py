"""Logs an exception that nobody expected by its kind and place, never by its message.

Messages of foreign exceptions quote what they stumbled over, which may be source text.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

MAX_FRAMES: Final = 12
"""The innermost ones tell where it happened."""


def log_trouble(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log what failed, the exception's type, and the places that it came by."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[::-1])
    logger.error("%s: %s at %s", what, type(error).__name__, places or "?")
