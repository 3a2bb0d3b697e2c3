"""Resources of the assets: the project, DVC, MLflow."""

import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import dagster as dg
from ruamel.yaml import YAML

from assets import forked
from assets.processes import HOST_TAG
from xc_core.causes import storage_error, storage_reason
from xc_core.chain.names import SETTINGS
from xc_core.chain.registry import STAGES
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError, UnavailableError, XCError, bare, first_line
from xc_core.git import tracked, trouble
from xc_core.lifecycle import dvc_lock
from xc_core.root import check_there


class Project(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The project folder."""

    root: str

    @property
    def workspace(self) -> Workspace:
        """The workspace at ``root``."""
        return Workspace(Path(self.root))

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Note the machine of a run that no launcher has started, as that of ``dg launch``, before it waits for a pool.

        The launcher's health check (``pipelines.launcher``) needs the tag to find a run whose process was killed.
        """
        if context.run is not None and context.instance is not None and HOST_TAG not in context.run.tags:
            context.instance.add_run_tags(context.run.run_id, {HOST_TAG: socket.gethostname()})


def dvc_address(stage: str, dataset: str, recipe: str | None) -> str:
    """Return the name of a stage and partition in dvc.yaml."""
    scoped = STAGES[stage].scope == "experiment"
    return f"{stage}@{dataset}_{recipe}" if scoped else f"{stage}@{dataset}"


def settings_address(stage: str, dataset: str, recipe: str | None) -> str:
    """Return the name in dvc.yaml of the DVC stage that writes the settings file of ``stage``."""
    scoped = STAGES[stage].scope == "experiment"
    return f"settings@{dataset}_{recipe}" if scoped else f"dataset-settings@{dataset}"


class Dvc(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Records artefacts in DVC: in dvc.lock and in its cache."""

    root: str
    enabled: bool = True

    @classmethod
    def of(cls, root: Path) -> Self:
        """Return the DVC of a project; it records nothing if the project does not use DVC."""
        return cls(root=str(root), enabled=(root / ".dvc").is_dir())

    def record(self, stage: str, dataset: str, recipe: str | None) -> str | None:
        """Commit one stage and its settings to dvc.lock and the cache; return the hash of its output.

        Returns None if nothing is recorded. Raises UnavailableError if dvc fails, StorageError if the disk refuses it.
        """
        if not self.enabled or not STAGES[stage].versioned:
            return None
        self.commit([stage], dataset, recipe)
        return self.recorded(dvc_address(stage, dataset, recipe))

    def commit(self, stages: list[str], dataset: str, recipe: str | None) -> None:
        """Commit several stages of a partition and their settings, in one call.

        Raises UnavailableError if dvc fails, StorageError if the disk refuses it.
        """
        versioned = [stage for stage in stages if STAGES[stage].versioned]
        if self.enabled and versioned:
            addresses = [dvc_address(stage, dataset, recipe) for stage in versioned]
            settings = dict.fromkeys(settings_address(stage, dataset, recipe) for stage in versioned)
            self._dvc("commit", "--force", *settings, *addresses)

    def check_git(self, dataset: str, recipe: str | None, stages: Iterable[str] = STAGES) -> None:
        """Raise ConfigError if git tracks what DVC would record of these stages; dvc refuses it after the work is done.

        The raw folder may be in git, as that of the bundled dataset is.
        """
        workspace = Workspace(Path(self.root))
        folders = {workspace.folder(stage, dataset, recipe) for stage in stages if STAGES[stage].versioned}
        folders |= {folder.parent / SETTINGS for folder in folders}
        found = tracked(workspace.root, folders) if self.enabled else []
        if found:
            names = sorted(folder.relative_to(workspace.root).as_posix() for folder in folders)
            listed = " ".join(bare(name) for name in names if any(f"{path}/".startswith(f"{name}/") for path in found))
            raise ConfigError(
                f"artefacts that git tracks: {bare(found[0])}" + (f" and {len(found) - 1:,} more" if found[1:] else ""),
                expected="artefacts that git ignores, because DVC records them; nothing was written",
                do=f"git rm -r --cached --quiet {listed} (files stay), take over the lines "
                "on data/ of the .gitignore of this repository, commit, and run the same command again",
            )

    def track_source(self, raw: Path) -> None:
        """Add a dataset's raw folder to DVC, unless it is in git (as the bundled dataset is).

        Raises UnavailableError if dvc fails, as it does on files of git if git is not installed.
        """
        if self.enabled and not tracked(Path(self.root), [raw]):
            self._dvc("add", str(raw.relative_to(self.root)))

    def overlooked(self) -> list[Path]:
        """Return the files of DVC beside the data that it does not find, because its reading of .gitignore hides them.

        ``dvc checkout`` and ``dvc pull`` delete the folders that these files record, ``dvc gc`` their copies. Raises
        UnavailableError if dvc fails.
        """
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        present = sorted(Workspace(Path(self.root)).data.glob("*/*.dvc"))
        try:
            with Repo(self.root) as repo:
                known = {Path(stage.path) for stage in repo.index.stages} if present else set()
        except DvcException as error:  # as of a project that was copied without its repository of git
            raise self._error(("status",), first_line(error)) from error
        return [path for path in present if path.resolve() not in known]

    def _dvc(self, *arguments: str) -> None:
        check_there(Path(self.root))  # a step hashes files for minutes; the folder may be moved then
        # without --wait-for-lock (a global flag) a command fails after 3 seconds while another one hashes files
        with dvc_lock.restored_if_cut(Path(self.root)):
            ended = forked.dvc(["--wait-for-lock", *arguments], self.root)
            if ended.returncode:
                raise self._error(arguments, (ended.stderr or ended.stdout).strip()[-400:])

    def _error(self, arguments: tuple[str, ...], reason: str) -> XCError:
        folder = Path(self.root) / ".dvc"
        if disk_reason := storage_reason(RuntimeError(reason), folder):
            return storage_error(disk_reason, folder)
        git_reason = trouble(Path(self.root))
        return UnavailableError(
            f"dvc {' '.join(arguments)} failing: {reason}" + (f" ({git_reason})" if git_reason else ""),
            expected="dvc.yaml and .dvc in the project, git installed and the project in a repository of it (or "
            "core.no_scm set in DVC), and enough space for the cache",
            do=f"run `dvc {' '.join(arguments)}` by hand and fix what it reports; artefacts are complete",
        )

    def recorded(self, address: str) -> str | None:
        """Return the hash of a stage's first output in dvc.lock, None if it was never recorded; raise CorruptError."""
        path = Path(self.root) / dvc_lock.FILE
        if not path.is_file():
            return None
        stages = dvc_lock.read(YAML(typ="safe"), path.read_bytes()).get("stages") or {}
        outs = stages.get(address, {}).get("outs") or [{}]
        md5: str | None = outs[0].get("md5")
        return md5


class Tracking(dg.ConfigurableResource):  # type: ignore[type-arg]
    """MLflow: one parent run per Dagster run and partition, one child run per stage."""

    root: str
    uri: str
    artifacts: str
    """Where the files of runs are stored (a URI or folder)."""
    lock: str
    """Lock file that is held during the first connection, which may create the database."""

    def client(self) -> AbstractContextManager[Any]:
        """Return a context with an MlflowClient; a new database is created first.

        The context raises UnavailableError if the server or database does not answer. The resource is made when a step
        starts; raises MissingError if the project was moved or deleted since, as lock and database would be made at
        the old place. After this check nothing makes the project's folder again: a lock that was waited for is looked
        for once more (``locked``), a new database is renamed into a folder that must be there, and sqlite makes none.
        """
        from assets.tracking import connected

        check_there(Path(self.root))
        return connected(self.uri, Path(self.lock))
