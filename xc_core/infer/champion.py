"""The model that is served: which version it is, and where its files are. A ``Source`` returns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from xc_core.errors import CorruptError, MissingError
from xc_core.manifests import read_manifest


@dataclass(frozen=True)
class Champion:
    """A version of a dataset's model; its files are fetched when they are needed."""

    version: str
    """Name of the version; another version has another name."""
    digest: str
    """Digest of the packed model's content that this version was registered with; empty if unknown."""
    fetch: Callable[[], Path]
    """Returns a local folder with the packed model. Raises MissingError if its files are gone."""
    repair: str = ""
    """Command that repairs its files; empty if the messages about damaged files already say what to do."""
    dataset: str = ""
    """Dataset that the model must be of; empty for any. MLflow registers any model under any name."""
    recipe: str = ""
    """Recipe that it was registered with; empty if only its files tell."""
    unconfirmed: str = ""
    """Why nobody could tell whether this is still the champion, as it was before; empty if it is."""

    @contextmanager
    def opening(self) -> Iterator[Path]:
        """Yield the folder with the packed model; errors of the block about its files advise the command ``repair``.

        Raises MissingError, CorruptError.
        """
        with advising(self.repair):
            yield self.fetch()


@contextmanager
def advising(do: str) -> Iterator[None]:
    """Give a MissingError or CorruptError of the block the advice ``do``, unless it is empty."""
    try:
        yield
    except (MissingError, CorruptError) as error:
        if not do:
            raise
        raise type(error)(error.found, expected=error.expected, do=do, where=error.where) from error


Source: TypeAlias = Callable[[], Champion]
"""Returns the champion of now. Raises MissingError if there is none, UnavailableError if nobody can tell."""


def in_folder(folder: Path) -> Champion:
    """Return the packed model in ``folder`` as a version that is named by its content.

    Raises MissingError, CorruptError.
    """
    digest = read_manifest(folder, "model").digest()
    return Champion(digest[:12], digest, lambda: folder)
