"""Show a defect of docs/internals/track-record.md on the commit before its mend.

``python -m tools.show_defect [NUMBER ...]`` checks that commit out into a temporary folder, adds
the files of the tests that the row names (today's, unless the row names a commit), and runs these
tests. They must fail there; the ends of the failures are printed. Where a test needs what its mend
has brought, the row names a mutation: it takes the mend out of today's code. Exit code 1 if a
test passes, or fails only because something is absent: then it does not show the defect.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "track-record.md"
PLUGIN = "absent_names"
SUPPORT = ("tests", "integration", "jvm_shim")
# The test itself needs what the mend has brought: that is not the defect.
NOT_THE_DEFECT = ("AbsentNameError", "TypeError: ", "AttributeError: ", "ImportError: ", "ERROR ")
TIMEOUT_S = 900
LEAST_CELLS = 5


@dataclass(frozen=True)
class Defect:
    """One row of the track record.

    Parameters
    ----------
    number : str
        As the page counts it.
    before : str
        The last commit that has the defect.
    tests_of : str
        The commit whose tests show it; empty for today's.
    tests : tuple of str
        Node ids of the tests that show it.
    mutations : tuple of str
        Names of the mutations that show it.
    """

    number: str
    before: str
    tests_of: str
    tests: tuple[str, ...]
    mutations: tuple[str, ...] = ()


def defects(page: Path = PAGE) -> list[Defect]:
    """Read the rows of the page: number, defect, tests, what was seen, commit before (, mend)."""
    found = []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == LEAST_CELLS and re.fullmatch(r"\d+\w?", cells[0]):
            names = re.findall(r"`([^`]+)`", cells[2])
            tests = tuple(name for name in names if "::" in name)
            mutations = tuple(name for name in names if "::" not in name)
            before, *mend = re.findall(r"`([^`]+)`", cells[4]) or [""]
            found.append(Defect(cells[0], before, mend[0] if mend else "", tests, mutations))
    return found


def shown(defect: Defect) -> bool:
    """Run a defect's tests on its commit; tell whether each of them shows it."""
    results = [_killed(mutation, defect.number) for mutation in defect.mutations]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "before"
        _git("worktree", "add", "--detach", "--quiet", str(folder), defect.before)
        try:
            _overlay(folder, defect)
            results += [_fails(test, folder, defect) for test in defect.tests]
            return all(results)
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _overlay(folder: Path, defect: Defect) -> None:
    """Put the files of the named tests, and what is new beside them, to the old fixtures."""
    named = {test.partition("::")[0] for test in defect.tests}
    if defect.tests_of:
        _git("-C", str(folder), "checkout", "--quiet", defect.tests_of, "--", *named)
        named = set()
    else:
        files = [file for top in SUPPORT for file in (ROOT / top).glob("*.*")]
        named |= {str(file.relative_to(ROOT)) for file in files if file.suffix == ".java"}
        named |= {
            name
            for name in (str(f.relative_to(ROOT)) for f in files)
            if not (folder / name).exists()
        }
    for name in named:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "tools" / f"{PLUGIN}.py", folder)


def _killed(mutation: str, number: str) -> bool:
    """Take a mend out of today's code; tell whether its tests fail then."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", mutation],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    killed = done.returncode == 0 and ": killed" in done.stdout
    print(
        f"{number}: mutation {mutation}: {'fails, as it should' if killed else 'DOES NOT SHOW IT'}"
    )
    return killed


def _fails(test: str, folder: Path, defect: Defect) -> bool:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", PLUGIN),
            *("--tb=line", test),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    failed = done.returncode == 1 and not any(word in done.stdout for word in NOT_THE_DEFECT)
    verdict = "fails, as it should" if failed else "DOES NOT SHOW IT"
    print(f"{defect.number}: {test}: {verdict}", flush=True)
    said = [line for line in lines if re.match(r"E  |/|FAILED|ERROR", line)]
    for line in (said or lines)[-3:]:
        print(f"    {line[:200]}")
    return failed


def _git(*arguments: str) -> None:
    git = shutil.which("git")
    assert git is not None, "git is not on the PATH"
    subprocess.run([git, "-C", str(ROOT), *arguments], check=True, capture_output=True)


def main() -> int:
    """Show the defects that the command line names, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("number", nargs="*", help="as in the page's first column; all by default")
    wanted = parser.parse_args().number
    chosen = [d for d in defects() if not wanted or d.number in wanted]
    if not chosen:
        print(f"no such row in {PAGE.relative_to(ROOT)}: {' '.join(wanted)}")
        return 1
    results = [shown(defect) for defect in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
