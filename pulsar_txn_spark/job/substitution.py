"""References to the environment and to files, such as ``${NAME:-default}`` and ``${file:PATH}``."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_REFERENCE = re.compile(r"(\$?)\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT = ":-"


class SubstitutionError(ValueError):
    """A reference cannot be replaced; says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Replaces references in texts.

    Parameters
    ----------
    environment : mapping of str to str
    folder : Path
        Relative paths of files begin here.
    """

    environment: Mapping[str, str]
    folder: Path

    def replace(self, text: str, *, secret: bool = False) -> str:
        """Return the text with its references replaced.

        Parameters
        ----------
        text : str
        secret : bool
            Whether the value is one: then nobody else may be able to read its file.

        Raises
        ------
        SubstitutionError
        """

        def value(reference: re.Match[str]) -> str:
            if reference[1]:
                return reference[0][1:]
            return self._value(reference[2], secret=secret)

        return _REFERENCE.sub(value, text)

    def files(self, text: str) -> list[str]:
        """Return the values that come from files, for they may be secret wherever they stand."""
        inner = [match[2] for match in _REFERENCE.finditer(text) if not match[1]]
        return [self._value(text, secret=False) for text in inner if text.startswith("file:")]

    def _value(self, inner: str, *, secret: bool) -> str:
        source, has_default, default = inner.partition(_DEFAULT)
        if source.startswith("file:"):
            path = self.folder / Path(source.removeprefix("file:")).expanduser()
            if has_default and not path.exists():
                return default
            return _content(path, secret=secret)
        name = source.removeprefix("env:")
        if not _VARIABLE.fullmatch(name):
            raise SubstitutionError(
                f"expected ${{NAME}}, ${{NAME:-default}}, ${{env:NAME}} or ${{file:PATH}}, found "
                f"${{{source}}}. To pass ${{...}} on as it stands, write $${{...}}"
            )
        value = self.environment.get(name)
        # As in a shell, a default also takes the place of an empty value.
        if has_default:
            return value or default
        if value is None:
            raise SubstitutionError(
                f"the environment variable {name} is not set: set it, or name a default as in "
                f"${{{name}:-default}}"
            )
        return value


def literal(text: str) -> str:
    """Return what stands in the text itself: references count for what their defaults say."""
    return _REFERENCE.sub(
        lambda match: match[0] if match[1] else match[2].partition(_DEFAULT)[2], text
    )


def escaped(text: str) -> str:
    """Return a text that :meth:`Substitution.replace` turns into this one."""
    return _REFERENCE.sub(lambda match: f"${match[0]}", text)


def _content(path: Path, *, secret: bool) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise SubstitutionError(f"the file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SubstitutionError(f"the file {path} is no text in UTF-8") from None
    if secret and mode & stat.S_IROTH:
        raise SubstitutionError(
            f"the file {path} holds a secret and every user of this machine may read it. Run "
            f"chmod 600 {path} (for a mounted secret of Kubernetes: defaultMode 0440)"
        )
    return text.rstrip("\r\n")
