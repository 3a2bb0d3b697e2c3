"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from xc_core.causes import check_name
from xc_core.environment import DEVICE
from xc_core.errors import UsageError, nearest
from xc_core.params import MOST_NUMBER

dataset_option = click.option("--dataset", required=True, help="Name of the dataset.")
recipe_option = click.option("--recipe", default="ngame", show_default=True, help="Name of the recipe.")
force_option = click.option("--force", is_flag=True, help="Rebuild even if nothing changed.")
new_times_option = click.option(
    "--new-times",
    is_flag=True,
    help="With a split by time: accept other times of most known documents that are all close to one another.",
)
host_option = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Other machines can reach any address except loopback.",
)


def _use_device(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Let this process, and those that it starts, use the device; raise the error of a wrong or absent one now."""
    if value is not None:
        from xc_core.devices import Device

        os.environ[DEVICE] = Device.of(value).name


device_option = click.option(
    "--device",
    metavar="NAME",
    default=None,
    expose_value=False,
    callback=_use_device,
    help="Where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N. [default: XC_DEVICE, else auto]",
)


class Number(click.types.FloatParamType):
    """A finite number from ``least`` to ``most``, by default one that a setting may be. click itself takes nan."""

    def __init__(self, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return ``value`` as a number; raise UsageError if it is outside the range, nan or infinite."""
        number: float = super().convert(value, param, ctx)
        if not self.least <= number <= self.most:
            name = param.opts[0] if param is not None else "a number"
            bounds = f"from {self.least:,.12g} to {self.most:,.12g}"
            raise UsageError(f"{name} {number:g}", expected=f"a number {bounds}", do="fix the number")
        return number


class OpenedPath(click.Path):
    """A path that libraries open, which take its name in UTF-8; click itself takes any."""

    def __init__(self, *, resolve_path: bool = False) -> None:
        super().__init__(path_type=Path, resolve_path=resolve_path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return ``value`` as a path; raise ConfigError for a name that libraries would not find."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        check_name(path.absolute())
        return path


class Names(click.ParamType[str]):
    """One of some names, given as a list or as a function; an unknown one is refused with the nearest.

    A function is called when the option is used, so ``xc --help`` works even if a plug-in cannot be imported.
    """

    def __init__(self, name: str, names: list[str] | Callable[[], list[str]], *extra: str) -> None:
        self.name = name
        self._names = names
        self._extra = extra

    def _all_names(self) -> list[str]:
        return [*self._extra, *(self._names() if callable(self._names) else self._names)]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return all names, for the help."""
        names = "|".join(self._all_names())
        return f"{{{names}}}" if param.required else f"[{names}]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that start with ``incomplete``."""
        return [CompletionItem(name) for name in self._all_names() if name.startswith(incomplete)]

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``; raise UsageError if it is none of the names."""
        known = self._all_names()
        if value not in known:
            raise UsageError(
                f"{self.name} {value!r}{nearest(value, known)}",
                expected=f"one of {', '.join(known)}",
                do="fix the name",
            )
        return value
