"""A pytest plugin: what a commit does not have yet can be imported all the same.

``tools/show_defect.py`` runs the tests of a mend on the commit before it. What the mend has added
is not there: an absent class stands in for it. It can be expected as an error, which then is not
raised; whoever uses what he makes of it gets an :class:`AbsentNameError`, so that no such failure
passes for the defect.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

PACKAGES = ("pulsar_txn_spark", "tests", "integration")


class AbsentNameError(Exception):
    """A test has used what the commit does not have."""


def absent(module: str, name: str) -> type[Exception]:
    """Return what stands for a name that is not there."""

    def refuse(_: object, attribute: str) -> None:
        raise AbsentNameError(f"{module}.{name} is not there on this commit: {attribute}")

    def take(_: object, *__: object, **___: object) -> None:
        """Take whatever it is made from."""

    return type(name, (Exception,), {"__init__": take, "__getattr__": refuse, "__module__": module})


def fallback(module: str, path: Sequence[str] | None) -> Callable[[str], type[Exception]]:
    """Return the ``__getattr__`` of a module; `path` is that of a package."""

    def find(name: str) -> type[Exception]:
        submodule = path and importlib.machinery.PathFinder.find_spec(f"{module}.{name}", path)
        if name.startswith("__") or submodule:
            raise AttributeError(name)
        return absent(module, name)

    return find


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the package, and makes those that are not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, rest = name.partition(".")
        # Of its own files pytest asks what they have.
        if package not in PACKAGES or rest.startswith(("test_", "conftest")):
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is None or found.loader is None:
            return importlib.machinery.ModuleSpec(name, self)
        execute = found.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if not hasattr(module, "__getattr__"):
                module.__getattr__ = fallback(name, found.submodule_search_locations)  # type: ignore[method-assign]

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = fallback(module.__name__, None)  # type: ignore[method-assign]


sys.meta_path.insert(0, _Finder())
