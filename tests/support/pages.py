"""The snippets of the documentation, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snippets(page: str) -> list[tuple[str, str]]:
    """Return language and text of each snippet of a page.

    Parameters
    ----------
    page : str
        Its path below the project's root.
    """
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def snippet(page: str, beginning: str) -> str:
    """Return the snippet of a page that begins with a text; there has to be exactly one."""
    [text] = [text for _, text in snippets(page) if text.startswith(beginning)]
    return text
