"""One bound for all whole numbers on the command line: what no machine can count to is refused at once.

Other numbers have the type ``Number`` of ``xc_core.cli.options``.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import click
from click.types import IntParamType

from xc_core.errors import UsageError, preview

MOST: Final = 10**12


def bound_numbers(command: click.Command) -> click.Command:
    """Let every whole number among the arguments and options of ``command`` be at most ``MOST``; return it.

    A second call for a command changes nothing.
    """
    for param in command.params:
        if isinstance(param.type, IntParamType) and "convert" not in vars(param.type):
            param.type = _bounded(param.type)
    return command


def _bounded(kind: Any) -> Any:
    """Return a copy of a type of click that refuses whole numbers beyond ``MOST``."""
    bounded = copy.copy(kind)  # click shares one object of a type among all options

    def convert(value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = kind.convert(value, param, ctx)
        if not abs(number) <= MOST:
            name = param.opts[-1] if param is not None else "a number"
            raise UsageError(
                f"{name} {preview(str(value))}", expected=f"a whole number up to {MOST:,}", do="fix the number"
            )
        return number

    bounded.convert = convert
    return bounded
