"""The tables of keys in docs/job.md, made from the table that the reader of job files works with.

Run ``python -m tools.job_page docs/job.md``. A test holds the file against the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pulsar_txn_spark.job.keys import SECTIONS, Section

_PART = re.compile(r"(?<=<!-- keys -->\n).*?(?=<!-- end of keys -->)", re.DOTALL)


def tables() -> str:
    """Return all sections as Markdown."""
    return "\n## Keys\n\n" + "\n".join(map(_table, SECTIONS)) + "\n"


def _table(section: Section) -> str:
    lines = [f"### {section.title}", "", section.help, ""]
    if section.keys:
        lines += ["| Key | Value | Default | Content |", "|---|---|---|---|"]
    for key in section.keys:
        kind = ", ".join(f"`{word}`" for word in key.words) or str(key.kind)
        default = "required" if key.required else key.default
        lines.append(f"| `{key.name}` | {kind} | {default} | {key.help} |")
    return "\n".join([*lines, ""]) if section.keys else "\n".join(lines)


def page(text: str) -> str:
    """Return a page with its tables renewed."""
    return _PART.sub(lambda _: tables(), text)


def main(arguments: list[str] | None = None) -> int:
    """Renew a file; return the exit code."""
    file = Path((sys.argv[1:] if arguments is None else arguments)[0])
    file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
