"""The process that runs a stage for Dagster: the command ``xc``, whose messages Dagster Pipes sends to the event log.

Outside Dagster, Pipes does nothing, so this runs in a shell too. With several processes only rank 0 sends messages.
"""

from __future__ import annotations

import sys
import warnings

from dagster_pipes import open_dagster_pipes

from assets.cards import own_card
from xc_core.chain.workspace import Workspace
from xc_core.cli.main import main
from xc_core.distributed import World
from xc_core.progress import listen


def run(arguments: list[str]) -> None:
    """Run ``xc`` with ``arguments`` and exit with its code."""
    if World.from_environment().rank != 0:
        main(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = open_dagster_pipes()
    with opened as pipes:
        listen(lambda line: pipes.log.info(line))
        try:
            with own_card(arguments, Workspace.find().root / ".xc" / "lock"):
                main(arguments)
        except SystemExit as request:
            if request.code not in (0, None):
                raise


if __name__ == "__main__":
    run(sys.argv[1:])
