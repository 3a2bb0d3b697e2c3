"""New files become a corpus version: read in a scratch workspace, compared with what there is, moved in together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from xc_core.artifacts import read_made
from xc_core.causes import storage_error, storage_reason
from xc_core.chain import changelog, incoming
from xc_core.chain.changelog import Kind
from xc_core.chain.runner import run_stage
from xc_core.chain.status import SOURCE, State, Status, states
from xc_core.chain.workspace import Workspace, at_rest
from xc_core.data.corpus import Corpus
from xc_core.data.difference import Difference
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, CorruptError, DataError, MissingError, StorageError
from xc_core.leftovers import claimed, drop, temporary_folder
from xc_core.linked import link
from xc_core.params import plain
from xc_core.progress import report
from xc_core.visible import listed


@dataclass(frozen=True)
class Arrival:
    """A corpus in the workspace ``staging`` that is to replace the one in ``workspace``."""

    workspace: Workspace
    staging: Workspace
    """The one that ``scratch`` yields: until the block ends, no other command changes the dataset."""
    dataset: str
    config: IngestConfig
    command: str
    """Identifies the command and its source files."""
    kind: Kind
    forgotten: frozenset[str] = frozenset()
    """Uids that must not stay anywhere: the earlier files are not kept, and the changelog does not name them."""

    def install(self, allow_loss: float | None) -> Difference | None:
        """Compare with what there is, write the changelog, keep the old files, then move everything in.

        ``allow_loss`` is the share of documents, labels, pairs or test documents that may be gone, by default that of
        the dataset. Returns what came and went, None for a new dataset. Raises RefusedError if too much would be gone.
        """
        exists = self.workspace.raw(self.dataset).exists() and self.dataset in self.workspace.params.datasets()
        difference = self._record_difference(allow_loss) if exists else None
        record = incoming.new(self.staging, self.dataset, self.config, self.command)
        if exists and "raw" in record.inodes and not self.forgotten:  # also files that cannot be read any more
            changelog.keep(self.workspace, self.dataset, changelog.next_number(self.workspace, self.dataset))
        record.save(self.workspace)
        record.finish(self.workspace)
        if not self.forgotten:  # otherwise the caller does so, when it knows all that it reports
            incoming.forget(self.workspace, self.dataset)
        if exists:
            keep = self.workspace.params.dataset(self.dataset).update.keep
            changelog.prune(self.workspace, self.dataset, keep)
        if exists and not self.forgotten:  # otherwise the caller has made sure that nothing runs
            _report_readers(self.workspace, self.dataset)
        return difference

    def _record_difference(self, allow_loss: float | None) -> Difference | None:
        """Return the difference to the present corpus after writing it to the changelog; None if there is none."""
        before = _replaced_corpus(self.workspace, self.dataset, self.staging)
        if before is None:
            return None
        after = self.staging.open(Corpus, self.dataset)
        settings = self.workspace.params.dataset(self.dataset)
        difference = Difference.of(before, after)
        allowed = settings.update.allow_loss if allow_loss is None else allow_loss
        old = settings.corpus
        same_split = (old.test_fraction, old.split) == (self.config.test_fraction, self.config.split)
        changelog.check_loss(difference, allowed, self.dataset, self.kind, split=same_split)
        if before.digest != after.digest:
            configs = plain(old), plain(self.config)
            number = changelog.next_number(self.workspace, self.dataset)
            entry = changelog.entry(number, self.kind, (before, after), configs, difference)
            entry = changelog.redacted(entry, self.forgotten)
            changelog.write(self.staging, self.dataset, entry)
        return difference


def present_corpus(workspace: Workspace, dataset: str, staging: Workspace) -> Corpus:
    """Return the corpus of a dataset, made again if out of date; only that and a gap in the changelog are reported.

    Then files or settings were changed by hand, and the changelog gets an entry. ``staging`` is from ``scratch``.
    """
    dataset_settings, folder = workspace.params.dataset(dataset), workspace.folder("corpus", dataset)
    state = states(workspace, dataset_settings)["corpus"]
    if state.status is Status.FRESH:
        if note := changelog.gap(folder):
            report(f"note: {dataset}: {note}")
        return workspace.open(Corpus, dataset)
    made, before = read_made(folder), None
    with suppress(CorruptError):  # then nothing is compared
        before = Corpus.open(staging.root / "present") if link(folder, staging.root / "present") else None
    after = Corpus.open(run_stage(workspace, "corpus", dataset).folder)
    if before is not None and before.digest != after.digest:
        kind = _kind(state)
        number, settings = changelog.next_number(workspace, dataset), (made.settings, plain(dataset_settings.corpus))
        difference = Difference.of(before, after)
        changelog.write(workspace, dataset, changelog.entry(number, kind, (before, after), settings, difference))
    return after


def changed_by_hand(workspace: Workspace, dataset: str) -> Kind:
    """Return the kind of change of a dataset whose own files are ingested again: of them, or only of settings."""
    if dataset not in workspace.params.datasets():
        return Kind.REPLACE
    return _kind(states(workspace, workspace.params.dataset(dataset))["corpus"])


def _kind(corpus: State) -> Kind:
    return Kind.REPLACE if SOURCE in corpus.why else Kind.SETTINGS


def _report_readers(workspace: Workspace, dataset: str) -> None:
    """Report if another process still reads the version that was replaced."""
    try:
        with at_rest(workspace, dataset):
            pass
    except BusyError as error:
        report(
            f"note: {error.found}, on the version before this change. A training will end with 76 and keep no model: "
            "stop it now, then train again"
        )


def _replaced_corpus(workspace: Workspace, dataset: str, staging: Workspace) -> Corpus | None:
    """Return the corpus that is to be replaced; read again from its raw files if it is missing or damaged.

    Returns None if these cannot be read either.
    """
    try:
        return workspace.open(Corpus, dataset)
    except (MissingError, CorruptError):
        temporary = Workspace(staging.root / "before")
    try:
        temporary.home(dataset).mkdir(parents=True)
        shutil.copyfile(workspace.params.path, temporary.params.path)
        temporary.raw(dataset).symlink_to(workspace.raw(dataset).resolve())
        report(f"ingest: reading the present files of {dataset} first, to compare")
        return Corpus.open(run_stage(temporary, "corpus", dataset).folder)
    except (MissingError, DataError) as error:
        report(f"ingest: the present files of {dataset} cannot be read, so nothing is compared ({error.found})")
        return None


@contextmanager
def scratch(workspace: Workspace, dataset: str) -> Iterator[Workspace]:
    """Yield a workspace inside the state folder, with the same params.yaml; it is deleted afterwards.

    Until then no other command changes the dataset, so what is read of it inside the block is what a new version
    replaces. If the block raises after it began to replace the dataset, the folder stays for the next command, which
    does the rest. Raises BusyError if another one is changing the dataset, StorageError if the disk cannot be written.
    """
    try:
        with incoming.change_lock(workspace, dataset):
            incoming.finish(workspace, dataset)
            folder = Path(tempfile.mkdtemp(prefix=f"{incoming.PREFIX}-{os.getpid()}-", dir=workspace.state))
            try:
                with claimed(folder):
                    staging = Workspace(folder)
                    shutil.copyfile(workspace.root / "params.yaml", staging.root / "params.yaml")
                    yield staging
            finally:
                if incoming.begun(workspace, dataset, folder):
                    report(f"the change of {dataset} has begun; the next command of xc finishes it")
                else:
                    drop(folder)
    except OSError as error:
        if reason := storage_reason(error, workspace.state):
            raise storage_error(reason, workspace.state, error) from error
        raise


@contextmanager
def scratch_to_show(workspace: Workspace, dataset: str) -> Iterator[Workspace]:
    """Yield a workspace as ``scratch`` does, for a command that changes nothing.

    If the project cannot be written it is among the temporary files, and another command may change the dataset.
    """
    with ExitStack() as stack:
        try:
            staging = stack.enter_context(scratch(workspace, dataset))
        except StorageError:
            staging = Workspace(stack.enter_context(temporary_folder()))
            shutil.copyfile(workspace.params.path, staging.params.path)
        yield staging


def papers(folder: Path) -> list[Path]:
    """Return the licence and the readme of a folder, which go with its data."""
    return [path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(("LICENSE", "README"))]


def report_unread(folder: Path, files: Iterable[Path]) -> None:
    """Report the files of a folder that are not read: one with another name than its layout expects is missed."""
    expected = {*files, *papers(folder)}
    unread = (path.name for path in folder.iterdir() if path.is_file() and path not in expected)
    if names := sorted(name for name in unread if not name.startswith(".")):
        report(f"files that are not read: {listed(list(map(repr, names)))}")
