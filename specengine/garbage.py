"""No search for garbage while a program starts: what is made there comes to stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def nothing_to_collect() -> Generator[None]:
    """Import without looking for garbage, which takes a tenth of the time and finds none.

    Nobody looks at what is there by then later either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
