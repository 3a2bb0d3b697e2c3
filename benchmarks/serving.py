"""A load test of ``xc serve``, with micro-batching on and off.

``python -m benchmarks.serving --bundle FOLDER --documents data/NAME/corpus/documents.parquet``

Two servers run one after the other in turn, so that other work on the machine slows both. Clients keep a connection
and send one text after the other. CPU time is that of the server's process.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import polars as pl
import psutil

from benchmarks.harness import machine

OFF = ("--max-batch", "1", "--max-wait-ms", "0")


@dataclass
class Load:
    """What the rounds of one setting measured."""

    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU milliseconds of the server per text, by round."""
    errors: int = 0

    def row(self, name: str, clients: int) -> str:
        """Return the figures as a row of Markdown."""
        ordered = sorted(self.latencies)
        p50, p95 = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95))
        rate, cpu = statistics.median(self.rates), statistics.median(self.cpu)
        return f"| {clients} | {name} | {p50:.0f} ms | {p95:.0f} ms | {rate:.1f} | {cpu:.1f} ms | {self.errors} |"


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    """Start ``xc serve`` on a free port; yield the port and the process; end it with SIGTERM."""
    command = [sys.executable, "-m", "xc_core.cli.main", "serve", "--bundle", str(bundle), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        try:
            line = next(text for text in process.stderr if "answers on" in text)
            yield int(line.rsplit(":", 1)[1]), psutil.Process(process.pid)
        finally:
            process.terminate()
        assert process.wait() == 0


def round_of(port: int, process: psutil.Process, texts: list[str], clients: int, seconds: float) -> Load:
    """Send texts from ``clients`` connections for ``seconds``."""
    load, lock, queue = Load(), threading.Lock(), itertools.cycle(texts)
    start = time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() - start < seconds:
            with lock:
                body = json.dumps({"text": next(queue)})
            began = time.perf_counter()
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            with lock:
                load.latencies.append(time.perf_counter() - began)
                load.errors += response.status != 200

    cpu_before = sum(process.cpu_times()[:2])
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.rates = [len(load.latencies) / (time.perf_counter() - start)]
    load.cpu = [1000 * (sum(process.cpu_times()[:2]) - cpu_before) / len(load.latencies)]
    return load


@click.command()
@click.option("--bundle", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--documents", type=click.Path(path_type=Path, exists=True), required=True, help="documents.parquet")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="Length of a round.")
def main(bundle: Path, documents: Path, rounds: int, seconds: float) -> None:
    """Measure latency and throughput with 1, 8 and 32 clients."""
    texts = [
        f"{a} {b}" for a, b in pl.read_parquet(documents, n_rows=2000, glob=False).select("title", "content").rows()
    ]
    click.echo(f"{machine()}\n\n| clients | micro-batching | p50 | p95 | texts/s | CPU per text | errors |")
    click.echo("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    with serving(bundle) as on, serving(bundle, *OFF) as off:
        for clients in (1, 8, 32):
            loads = {"on": Load(), "off": Load()}
            for number in range(rounds + 1):
                for name, (port, process) in (("on", on), ("off", off)):
                    measured = round_of(port, process, texts, clients, seconds)
                    if number:  # the first round warms up
                        loads[name].latencies += measured.latencies
                        loads[name].rates += measured.rates
                        loads[name].cpu += measured.cpu
                        loads[name].errors += measured.errors
            for name, load in loads.items():
                click.echo(load.row(name, clients))


if __name__ == "__main__":
    main()
