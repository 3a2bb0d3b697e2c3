"""Run the month and the kills side by side, each in a project of its own, and print the figures of both at the end.

python -m tests.soak --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil


class Part:
    """A command whose lines are printed with its name. What it prints from a line "{" on is kept as its figures."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self._figures = name, list[str]()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,  # Ctrl-C reaches it once, from here, so that it can stop its servers
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if self._figures or line == "{\n":
                    self._figures.append(line)
                else:
                    print(f"{self.name} | {line}", end="", flush=True)

    def ended(self) -> dict[str, Any]:
        """Wait for the end; return the figures, and the exit code."""
        code = self.process.wait()
        self._thread.join()
        return {**(json.loads("".join(self._figures)) if self._figures else {}), "exit code": code}


def side_by_side(commands: dict[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Run commands at once; return the figures of each. If this is interrupted, they end first."""
    parts = [Part(name, command) for name, command in commands.items()]
    try:
        return {part.name: part.ended() for part in parts}
    finally:
        for part in parts:
            part.process.terminate()
        for part in parts:
            part.process.wait()


def main() -> None:
    """Parse the command line, run both, and print their figures."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    asked, began = parser.parse_args(), time.monotonic()
    psutil.cpu_percent()
    python = (sys.executable, "-m")
    found = side_by_side(
        {
            "month": (*python, "tests.soak.month", "--seed", str(asked.seed)),
            "kills": (*python, "tests.soak.soak", "--seed", str(asked.seed), "--kills", str(asked.kills)),
        }
    )
    machine = {
        "seconds": round(time.monotonic() - began),
        "load at the end": [round(one, 1) for one in os.getloadavg()],
        "processors busy %": psutil.cpu_percent(),  # since the first call
    }
    print(json.dumps({**found, **machine}, indent=1))
    sys.exit(any(one["exit code"] for one in found.values()))


if __name__ == "__main__":
    main()
