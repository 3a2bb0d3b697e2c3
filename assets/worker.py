"""The process that does a stage's work for Dagster: the CLI's own code with Pipes listening.

Takes: the arguments of ``xc``.            Gives: log lines in Dagster's event log, an exit code.
May import: dagster_pipes, xc_core.        Never: does what ``xc`` does not.

Outside Dagster Pipes is silent, so this runs in a shell too. Of several processes only the first speaks.
"""

from __future__ import annotations

import sys
import warnings

from dagster_pipes import open_dagster_pipes

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
            main(arguments)
        except SystemExit as request:
            if request.code not in (0, None):
                raise


if __name__ == "__main__":
    run(sys.argv[1:])
