"""What is drawn at random in tests on servers, and how to draw the same again."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from collections.abc import Iterator

SEED = int(os.environ.get("OBSERVED_SEED", secrets.randbelow(1 << 16)))


@contextlib.contextmanager
def repeatable(nth: int = 0) -> Iterator[random.Random]:
    """Give what a test draws by. If it fails, it says by which OBSERVED_SEED the same is drawn."""
    seed = SEED + nth
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"OBSERVED_SEED={seed}")
        raise
