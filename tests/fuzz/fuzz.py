"""``make fuzz``: random changes of good input for every boundary; whatever is no error with a message is a failure.

A case that reaches a new place of refusal, or is accepted, becomes a seed of later ones. Failures are written into
``tests/fuzz/corpus``, which the default tests replay.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.targets import Target, targets
from xc_core.errors import XCError

CORPUS = Path(__file__).parent / "corpus"
MOST_SEEDS = 300
"""Seeds of a boundary that are kept."""
SLOW_SECONDS = 2.0
"""A case that takes longer is a failure: time is bounded too."""


@dataclass
class Tally:
    """What came of the cases of a boundary."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    places: Counter[str] = field(default_factory=Counter)
    """Number of cases by the line that refused them."""
    failures: dict[str, bytes] = field(default_factory=dict)
    """The first case of each failure, by its description."""


def ended(target: Target, data: bytes) -> tuple[str, str]:
    """Return how a case ended, "accepted", "refused" or "failed", and the place or the failure."""
    started = time.process_time()
    try:
        target.run(data)
        outcome = "accepted", ""
    except XCError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ill = not (error.found and error.expected and error.do) or error.exit_code == 70 or len(str(error)) > 2000
        outcome = ("failed", f"message {error!r:.300}") if ill else ("refused", f"{frame.filename}:{frame.lineno}")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outcome = "failed", f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error!s:.150}"
    if time.process_time() - started > SLOW_SECONDS:
        return "failed", f"took more than {SLOW_SECONDS:g} s"
    return outcome


def fuzz(target: Target, cases: int, random: Random) -> Tally:
    """Try ``cases`` changes of the seeds of a boundary."""
    tally, seeds = Tally(), list(target.seeds)
    for seed in target.seeds:
        assert ended(target, seed)[0] == "accepted", f"{target.name}: its own seed is {ended(target, seed)}"
    for _ in range(cases):
        data = target.mutate(random.choice(seeds), random)[: 1 << 16]
        kind, place = ended(target, data)
        tally.tried += 1
        tally.accepted += kind == "accepted"
        tally.refused += kind == "refused"
        if kind == "failed":
            tally.failures.setdefault(place[:60], data)
        elif place not in tally.places or (kind == "accepted" and random.random() < 0.05):
            seeds[len(target.seeds) :] = [*seeds[len(target.seeds) :], data][-MOST_SEEDS:]
        tally.places[place] += 1
    return tally


def keep(target: Target, data: bytes) -> Path:
    """Write a failure into the corpus."""
    path = CORPUS / f"{hashlib.sha256(data).hexdigest()[:12]}.json"
    path.write_text(json.dumps({"target": target.name, "data": base64.b64encode(data).decode()}) + "\n")
    return path


def main() -> int:
    """Fuzz all boundaries; print a table; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [target for target in targets(Path(folder)) if arguments.only in target.name]
        total = sum(target.weight for target in chosen)
        print("| boundary | kind | tried | clear | accepted | places of refusal | failures |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        failed = tried = 0
        for target in chosen:
            tally = fuzz(target, -(-arguments.cases * target.weight // total), Random(arguments.seed))
            tried, failed = tried + tally.tried, failed + len(tally.failures)
            row = (target.name, target.group, f"{tally.tried:,}", f"{tally.refused:,}", f"{tally.accepted:,}")
            places = len(tally.places) - ("" in tally.places)
            print(f"| {' | '.join(row)} | {places} | {len(tally.failures)} |", flush=True)
            for reason, data in tally.failures.items():
                print(f"  {reason}: {keep(target, data)} {ended(target, data)[1]}", file=sys.stderr, flush=True)
    print(f"\n{tried:,} cases, {failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
