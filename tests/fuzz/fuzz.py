"""``make fuzz``: random changes of good input for every boundary; whatever is no error with a message is a failure.

A case that reaches a new place of refusal, or is accepted, becomes a seed of later ones. Failures are written into
``tests/fuzz/corpus``, which the default tests replay. A run of all boundaries writes its table into docs/bad-input.md.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import json
import logging
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.served import client
from tests.fuzz.targets import Target, targets
from tests.pages import fill
from xc_core.chain.costs import processor
from xc_core.errors import XCError

CORPUS = Path(__file__).parent / "corpus"
MOST_SEEDS = 300
"""Seeds of a boundary that are kept."""
FAILURES = ("crash", "quiet", "slow")
PAGE = Path(__file__).parents[2] / "docs" / "bad-input.md"
SLOW_SECONDS = 2.0
"""A case that takes longer is a failure: time is bounded too."""
LARGE_MIB = 256
"""A case that raises the peak of the process's memory by more is a failure too."""


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
    failed: Counter[str] = field(default_factory=Counter)
    """Number of cases by the way in which they failed: a crash, accepted quietly, too slow."""


def ended(target: Target, data: bytes) -> tuple[str, str]:
    """Return how a case ended, "accepted", "refused", "crash", "quiet" or "slow", and the place or the failure.

    "crash" is anything but a message with its three parts; "quiet" is input that was accepted and breaks a rule.
    """
    started, peak = time.process_time(), _peak_mib()
    try:
        target.run(data)
        outcome = "accepted", ""
    except XCError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ill = not (error.found and error.expected and error.do) or error.exit_code == 70 or len(str(error)) > 2000
        place = getattr(error, "place", f"{frame.filename}:{frame.lineno}")
        outcome = ("crash", f"message {error!r:.300}") if ill else ("refused", place)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        broken = isinstance(error, AssertionError) and Path(frame.filename).parent == Path(__file__).parent
        outcome = (
            "quiet" if broken else "crash",
            f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error!s:.150}",
        )
    if time.process_time() - started > SLOW_SECONDS:
        return "slow", f"took more than {SLOW_SECONDS:g} s"
    if _peak_mib() - peak > LARGE_MIB:
        return "slow", f"took more than {LARGE_MIB} MiB"
    return outcome


def _peak_mib() -> int:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def fuzz(target: Target, cases: int, random: Random) -> Tally:
    """Try ``cases`` changes of the seeds of a boundary."""
    tally, seeds = Tally(), list(target.seeds)
    for seed in target.seeds:
        found = [ended(target, seed)]
        while found[-1][0] != "accepted" and len(found) < 3:  # a server on a busy machine may not answer in time
            found.append(ended(target, seed))
        assert found[-1][0] == "accepted", f"{target.name}: its own seed is {found}"
    for _ in range(cases):
        data = target.mutate(random.choice(seeds), random)[: 1 << 16]
        kind, place = ended(target, data)
        tally.tried += 1
        tally.accepted += kind == "accepted"
        tally.refused += kind == "refused"
        if kind in FAILURES:
            tally.failed[kind] += 1
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


def table(found: list[tuple[Target, Tally]]) -> str:
    """Return a table with a row per kind of boundary, and the sum."""
    kinds: dict[str, list[tuple[Target, Tally]]] = {}
    for target, tally in found:
        kinds.setdefault(target.group, []).append((target, tally))
    lines = ["| kind | boundaries | tried | clear | accepted | crash | quiet | slow |", "| --- " * 8 + "|"]
    for kind, pairs in [*kinds.items(), ("all", found)]:
        tallies = [tally for _, tally in pairs]
        numbers = [
            len(pairs),
            *(sum(getattr(one, name) for one in tallies) for name in ("tried", "refused", "accepted")),
        ]
        numbers += [sum(one.failed[name] for one in tallies) for name in FAILURES]
        lines.append(f"| {kind} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return "\n".join(lines)


def tried(chosen: list[Target], cases: int, seed: int) -> list[tuple[Target, Tally]]:
    """Fuzz boundaries by their weights; print a row for each, and what failed."""
    total, found = sum(target.weight for target in chosen), []
    for target in chosen:
        tally = fuzz(target, -(-cases * target.weight // total), Random(seed))
        found.append((target, tally))
        places = len(tally.places) - ("" in tally.places)
        print(f"{target.name}: {tally.tried:,} tried, {tally.refused:,} refused in {places} places, "
              f"{tally.accepted:,} accepted, {sum(tally.failed.values())} failed", flush=True)  # fmt: skip
        for reason, data in tally.failures.items():
            print(f"  {reason}: {keep(target, data)} {ended(target, data)[1]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Fuzz all boundaries; print a table; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of boundaries; the page stays as it is then")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, client(Path(folder)) as served:
        logging.disable()
        chosen = [target for target in targets(Path(folder), served) if arguments.only in target.name]
        found = tried(chosen, arguments.cases, arguments.seed)
    print(f"\n{table(found)}")
    if not arguments.only:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        command = f"python -m tests.fuzz.fuzz --cases {arguments.cases} --seed {arguments.seed}"
        fill(PAGE, "fuzz", f"{table(found)}\n\nRun on {date} on {processor()}: `{command}`.")
    return int(any(tally.failed for _, tally in found))


if __name__ == "__main__":
    sys.exit(main())
