"""Valid names of datasets and recipes: a name never becomes a path outside the data folder."""

from __future__ import annotations

import re
from typing import Final

from xc_core.chain.registry import STAGES
from xc_core.errors import UsageError

DATA: Final = "data"
"""Folder of the datasets of a project."""
SETTINGS: Final = "settings"
"""Folder of resolved settings, one file per stage."""
CHANGES: Final = "changes"
"""Folder of the changelog of a dataset."""
ACCEPTANCE: Final = "acceptance"
"""Folder of the acceptance set of a dataset."""
INBOX: Final = "inbox"
"""Folder for a new copy of a whole dataset, until it is ingested."""
FIRST_RECIPE: Final = "words"
"""The recipe to train first on a dataset; README and docs/recipes.md say why."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}[a-z0-9]|[a-z0-9]")
_RESERVED: Final = frozenset({*STAGES, SETTINGS, CHANGES, ACCEPTANCE, INBOX, "raw"})
"""Names of folders that the pipeline uses itself."""


def first_command(dataset: str) -> str:
    """Return the command that trains a first model of a dataset."""
    return f"xc train --dataset {dataset} --recipe {FIRST_RECIPE}"


def is_name(name: str) -> bool:
    """Return True if a dataset or recipe can have the name."""
    return name not in _RESERVED and _NAME.fullmatch(name) is not None


def checked_name(kind: str, name: str) -> str:
    """Return ``name`` if it is valid for a dataset or recipe; raise UsageError otherwise."""
    if isinstance(name, str) and name in _RESERVED:
        raise UsageError(
            f"the {kind} name {name!r}, which the pipeline uses itself",
            expected="another name",
            do="choose another name",
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"the {kind} name {name!r}",
            expected="lower-case letters, digits and '-', at most 64, a letter or digit at both ends",
            do="choose another name",
        )
    return name
