"""Checkpoints: the state of a training as a chain of artefacts, from which a killed training resumes.

The first artefact has every row of the label tables that changed since the training began, each later one those that
changed since the one before; everything else is written whole. Each link names the link before it, so a chain that ends
early, or in a damaged link, is an earlier checkpoint.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xc_core import artifacts, manifests
from xc_core.devices import CPU
from xc_core.distributed import ALONE, World
from xc_core.errors import OLDEST_RELEASE, CorruptError, XCError
from xc_core.progress import report
from xc_core.train.state import History, Position, Task

KIND: Final = "checkpoint"
_STATE: Final = "state.safetensors"
_HISTORY: Final = "history.json"
_POSITION: Final = "position.json"
_ROWS: Final = "rows-*.safetensors"

_PART: Final = 1 << 26
"""Bytes of changed rows, about, that are copied and written together."""
BESIDE: Final = 1 << 28
"""Bytes of changed rows and large tensors that may be copied to be written beside the training; if there are more, it
waits until they are written, and large tensors are not copied."""
_LARGE: Final = 1 << 27
"""Bytes of a large tensor, for instance of all latest vectors; the largest matrix of a small encoder has fewer."""
_SHARE: Final = 0.05
"""Most of the time that checkpoints may take."""

Tensors = dict[str, Tensor]


@dataclass
class Checkpoints:
    """The checkpoint of one training in ``folder``; ``fingerprint`` identifies its inputs and parameters."""

    folder: Path
    fingerprint: str
    world: World = ALONE
    """The processes that train together: all of them save and restore together, the first one writes."""
    check: Callable[[], None] = lambda: None
    """Raises an error if the result of the training would not be kept; asked by the first process before each save,
    which would make the folder of a project that was moved again."""
    _links: list[Path] = field(default_factory=list, repr=False)
    """The chain that the next link continues; empty if the next checkpoint is a first one."""
    _bytes: list[int] = field(default_factory=list, repr=False)
    _running: Future[None] | None = field(default=None, repr=False)
    _saved: float = field(default_factory=time.monotonic, repr=False)
    _cost: float = field(default=0.0, repr=False)
    """Seconds that the last checkpoint took, beside the training or not."""

    def due(self, seconds: float) -> bool:
        """Return True if the last checkpoint is more than ``seconds`` old and all of them take at most 5 % of the time.

        Below 0 seconds it is always due.
        """
        age = time.monotonic() - self._saved
        busy = self._running is not None and not self._running.done()
        return seconds < 0 or (not busy and age > max(seconds, self._cost * (1 / _SHARE - 1)))

    def save(self, task: Task, position: Position, history: History, *, beside: bool = False) -> None:
        """Write what changed; with ``beside``, in a thread, unless a copy of it would be large.

        A write that failed before raises its error here or in ``wait``.
        """
        self.wait()
        started = time.monotonic()
        first = not self._links or not task.tables() or sum(self._bytes[1:]) > self._bytes[0]
        previous = "" if first else manifests.read_manifest(self._links[-1]).digest()
        folder = self.folder if first else self.folder / f"{len(self._links):04d}"
        state = {"fingerprint": self.fingerprint, "position": asdict(position), "task": task.name}
        contents = {_HISTORY: asdict(history), _POSITION: state | ({"after": previous} if previous else {})}
        parts, tensors = _changed_rows(task, self.world, since_start=first), _without_rows(task)
        size = _changed_bytes(task, since_start=first) + sum(
            value.nbytes for value in filter(_is_large, tensors.values())
        )
        beside = beside and self.world.size == 1 and size <= BESIDE
        saved_tensors = _on_cpu(tensors, copies=beside)
        self._links = [folder] if first else [*self._links, folder]

        def write(rows: Iterator[Tensors]) -> None:
            with artifacts.building(folder, kind=KIND) as build:
                save_file(saved_tensors, build.path / _STATE)
                for number, part in enumerate(rows):
                    save_file(part, build.path / _ROWS.replace("*", f"{number:05d}"))
                for name, content in contents.items():
                    build.json(name, content)
            self._record_link(folder, started)

        if self.world.size > 1:
            self._write_together(write, parts, folder, started)
        elif beside:
            copied = iter(list(parts))
            executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self._running = executor.submit(write, copied)
            executor.shutdown(wait=False)
        else:
            write(parts)
        for table in task.tables().values():
            table.changed_L.zero_()

    def _record_link(self, folder: Path, started: float) -> None:
        bytes_ = manifests.read_manifest(folder).bytes
        self._bytes = [bytes_] if folder == self.folder else [*self._bytes, bytes_]
        self._saved, self._cost = time.monotonic(), time.monotonic() - started

    def _write_together(
        self, write: Callable[[Iterator[Tensors]], None], parts: Iterator[Tensors], folder: Path, started: float
    ) -> None:
        """Write the rows of all processes; the first one holds one part of each at a time."""
        rows = _gather_parts(self.world, parts)

        def write_rows() -> None:
            try:
                write(rows)
            except Exception:
                deque(rows, maxlen=0)  # the others send all of theirs before they learn of an error
                raise

        if not self.world.first:
            deque(rows, maxlen=0)
        self.world.by_first(write_rows)
        if not self.world.first:
            self._record_link(folder, started)

    def wait(self) -> None:
        """Wait for a checkpoint that is being written beside the training; raise its error."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def restore(self, task: Task) -> tuple[Position, History]:
        """Load the last checkpoint into ``task`` and return its position and history.

        If there is none, or it is damaged or of another training, return those of the beginning.
        """
        self._links, self._saved = [], time.monotonic()
        try:
            manifest = artifacts.verify(self.folder, kind=KIND)
        except XCError as error:
            if self.folder.exists():
                report(f"{task.name}: the checkpoint cannot be used, starting from the beginning ({error.found})")
            return Position(), History()
        state = _position(self.folder)
        if state["fingerprint"] != self.fingerprint or state["task"] != task.name:
            report(f"{task.name}: the checkpoint is of other parameters or inputs, starting from the beginning")
            return Position(), History()
        self._links, self._bytes = [self.folder], [manifest.bytes]
        self._follow_links(task, manifest.digest())
        last = self._links[-1]
        try:
            _load_chain(task, self._links)
        except (KeyError, ValueError) as error:
            raise CorruptError(
                f"a checkpoint that does not fit this version, {self.folder} ({error})",
                expected=f"what {OLDEST_RELEASE} or a later version wrote",
                do="delete the folder, then run the same command again: the training starts from the beginning",
            ) from error
        position = Position(**_position(last)["position"])
        report(f"{task.name}: resuming at epoch {position.epoch}, batch {position.batch} (step {position.step})")
        return position, History(**json.loads((last / _HISTORY).read_text("utf-8")))

    def _follow_links(self, task: Task, digest: str) -> None:
        """Add the links after the first one, up to one that is absent, damaged or of an older chain."""
        while True:
            folder = self.folder / f"{len(self._links):04d}"
            try:
                manifest = artifacts.verify(folder, kind=KIND)
            except XCError as error:
                if folder.exists():
                    report(f"{task.name}: the last checkpoint cannot be used, resuming before it ({error.found})")
                return
            if _position(folder).get("after") != digest:
                return
            digest = manifest.digest()
            self._links.append(folder)
            self._bytes.append(manifest.bytes)


def _position(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / _POSITION).read_text("utf-8"))
    return state


def _without_rows(task: Task) -> Tensors:
    """Return the state of a task without the tensors that its tables have per row."""
    rows = {f"{prefix}{name}" for prefix, table in task.tables().items() for name in table.per_row()}
    return {name: value for name, value in task.tensors().items() if name not in rows}


def _is_large(value: Tensor) -> bool:
    return value.nbytes >= _LARGE


def _on_cpu(tensors: Tensors, *, copies: bool) -> Tensors:
    """Return tensors that can be saved. Without ``copies``, large tensors on the CPU are returned as they are.

    Two names of one tensor get a copy each: safetensors refuses memory that is shared.
    """
    savable, reused = {}, set()
    for name, value in tensors.items():
        tensor = value.detach().contiguous()
        reuse = not copies and tensor.is_cpu and _is_large(tensor) and tensor.untyped_storage().data_ptr() not in reused
        if reuse:
            reused.add(tensor.untyped_storage().data_ptr())
        savable[name] = tensor if reuse else tensor.to(CPU.torch, copy=True)
    return savable


def _changed_bytes(task: Task, *, since_start: bool) -> int:
    """Return the size of the rows to be written."""
    return sum(int(table.changed(since_start).sum()) * table.row_bytes for table in task.tables().values())


def _changed_rows(task: Task, world: World, *, since_start: bool) -> Iterator[Tensors]:
    """Yield the rows that changed, with their labels, in parts; of a table that all processes have, in the first."""
    for prefix, table in task.tables().items():
        if table.shard.whole and not world.first:
            continue
        labels = table.changed(since_start).nonzero().squeeze(1)
        for part in torch.split(labels, max(_PART // max(table.row_bytes, 1), 1)):
            rows = {name: value.index_select(0, part).cpu() for name, value in table.per_row().items()}
            yield {
                f"{prefix}{name}": value for name, value in (rows | {"labels": table.shard.labels(part).cpu()}).items()
            }


def _gather_parts(world: World, parts: Iterator[Tensors]) -> Iterator[Tensors]:
    """Yield the parts of all processes in the first one, nothing in the others. All processes go through it."""
    ended = False
    while not ended:
        part = next(parts, None)
        ended = all(world.everyone(part is None))
        yield from (p for p in world.to_first(part) if p is not None)


def _load_chain(task: Task, links: list[Path]) -> None:
    """Put the rows of all ``links`` into the task's tables, in order, and load the rest from the last one."""
    tensors = load_file(links[-1] / _STATE)
    for prefix, table in task.tables().items():
        if f"{prefix}mean/steps" in tensors:
            table.average()
    for path in (path for link in links for path in sorted(link.glob(_ROWS))):
        part = load_file(path)
        (prefix,) = (name.removesuffix("labels") for name in part if name.endswith("labels"))
        table = task.tables()[prefix]
        labels = part[f"{prefix}labels"].numpy()
        rows = torch.from_numpy(np.flatnonzero(table.shard.owned(labels)))
        places = torch.from_numpy(table.shard.places(labels))[rows]
        for name, value in table.per_row().items():
            if f"{prefix}{name}" in part:  # averages may have begun later
                values = part[f"{prefix}{name}"][rows]
                value.index_copy_(0, places.to(value.device), values.to(value.device))
        table.filled |= bool((part[f"{prefix}steps"] == 0).any())  # rows that were filled before the first step
        table.changed_L.zero_()
    per_row = {f"{p}{name}": value for p, table in task.tables().items() for name, value in table.per_row().items()}
    task.load(per_row | tensors)
