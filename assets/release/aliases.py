"""Aliases of a registered model: which version is served, which passed the gate last, which was served before.

``champion`` is served, ``challenger`` passed the gate last, ``previous`` was champion before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from assets.mlflow_errors import if_there
from assets.release.versions import (
    check_opens,
    dataset_of,
    hint_if_new,
    model_name,
    numbers_of,
    promoting,
    register_command,
    set_tags,
)
from xc_core.errors import MissingError, MovedError

T = TypeVar("T")
CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"
PREVIOUS: Final = "previous"
ROLLED_BACK: Final = "rolled_back"
"""Tag: when a person took the version out of service; the gate alone does not bring it back."""


def version_of(client: Any, name: str, alias: str) -> Any | None:
    """Return the model version that an alias points at, None if there is none.

    An error of the server is raised: otherwise the gate would take any model for the first one.
    """
    from mlflow.exceptions import MlflowException

    version = None
    with if_there():
        version = client.get_model_version_by_alias(name, alias)
    if version is not None and not str(version.version).isdecimal():
        raise MlflowException(f"the version {version.version!r} at the alias {alias}; is it MLflow's address?")
    return version


def same_version(one: Any | None, other: Any | None) -> bool:
    """Return True for two equal versions, or none twice."""
    return bool((one and one.version) == (other and other.version))


class ChampionChangedError(Exception):
    """Another version became champion than the one that a model was compared with."""


def check_champion(client: Any, name: str, champion: Any | None) -> None:
    """Raise ChampionChangedError if another version than ``champion`` is champion now, or if there is none any more."""
    if not same_version(champion, version_of(client, name, CHAMPION)):
        raise ChampionChangedError


def until_champion_stays(attempt: Callable[[], T]) -> T:
    """Call ``attempt`` until it ends without ChampionChangedError; return its result. Judging a model takes minutes."""
    while True:
        with suppress(ChampionChangedError):
            return attempt()


def set_champion(client: Any, name: str, version: int, *, back: bool = False) -> None:
    """Point champion at ``version`` and previous at the old champion, in an order that always leaves a champion.

    If the process is killed between the two, the same promotion does the rest, as previous was set first. ``back`` sets
    the champion first: a rollback cannot be repeated, because another one would undo it.

    Every change of the champion goes through this function, under the lock of one machine, which the caller holds.
    MLflow cannot set an alias on the condition that it still points at the old version, so the alias is read again:
    raises MovedError if another process set it at that moment.
    """
    old, moves = version_of(client, name, CHAMPION), [(CHAMPION, str(version))]
    if old is not None and int(old.version) != version:
        moves.insert(1 if back else 0, (PREVIOUS, old.version))
    for alias, number in moves:
        client.set_registered_model_alias(name, alias, number)
    if ROLLED_BACK in client.get_model_version(name, str(version)).tags:
        client.delete_model_version_tag(name, str(version), ROLLED_BACK)
    current = version_of(client, name, CHAMPION)
    if current is None or int(current.version) != version:
        found = "no version" if current is None else f"version {current.version}"
        do = f"xc promote --dataset {dataset_of(name)} --version {version} sets this one"
        raise MovedError(
            f"{found} as champion of {name}: another process set the alias at the same moment",
            expected=f"version {version}, which this one had set",
            do=f"decide which one should serve; {do}",
        )


def roll_back(
    client: Any, dataset: str, moving: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[int, int]:
    """Exchange champion and previous; return (new champion, what it replaced), which the gate does not bring back.

    Raises MissingError if there is no previous champion, MissingError or CorruptError if it cannot be opened,
    MovedError if another process changed the champion meanwhile; then the champion stays.
    """
    name = model_name(dataset)
    champion, previous = version_of(client, name, CHAMPION), version_of(client, name, PREVIOUS)
    if champion is None or previous is None or champion.version == previous.version:
        others = [number for number in numbers_of(client, name) if champion is None or number != int(champion.version)]
        found = "no champion" if champion is None else "no previous champion"
        cut = f"; an earlier change was cut off, version {previous.version} is both" if champion and previous else ""
        raise MissingError(
            f"{found} of {name}{cut}{hint_if_new(client)}",
            expected="a model that was champion before",
            do=promoting(dataset, others)
            if others
            else f"there is no other version; register one: {register_command(name)}",
        )
    check_opens(previous)
    with moving():
        if not same_version(champion, version_of(client, name, CHAMPION)):  # to open a model takes seconds
            found = f"another champion of {name} than version {champion.version}, since the rollback began"
            do = f"if it is to be replaced too: xc rollback --dataset {dataset}"
            raise MovedError(found, expected="the same one; nothing was changed", do=do)
        set_tags(client, name, int(champion.version), {ROLLED_BACK: datetime.now(UTC).isoformat(timespec="seconds")})
        set_champion(client, name, int(previous.version), back=True)
    return int(previous.version), int(champion.version)
