"""What assets need from outside: the project, DVC, MLflow.

Takes: nothing but configuration.                    Gives: resource classes; pipelines gives them values.
May import: dagster, xc_core (light rooms).          Never: mlflow or torch at module level.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from ruamel.yaml import YAML

from xc_core.errors import CorruptError, UnavailableError
from xc_core.stages.registry import STAGES
from xc_core.stages.workspace import Workspace


class Project(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The project folder."""

    root: str

    @property
    def workspace(self) -> Workspace:
        """The workspace at ``root``."""
        return Workspace(Path(self.root))


def dvc_address(stage: str, dataset: str, recipe: str | None) -> str:
    """Return the name of a stage and partition in dvc.yaml."""
    scoped = STAGES[stage].scope == "experiment"
    return f"{stage}@{dataset}_{recipe}" if scoped else f"{stage}@{dataset}"


class Dvc(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Records what was made: Dagster decides when, DVC only writes down what."""

    root: str
    enabled: bool = True

    def record(self, stage: str, dataset: str, recipe: str | None) -> str | None:
        """Commit one stage to dvc.lock and the cache; return the hash of its output, None where nothing is recorded.

        Raises UnavailableError where dvc fails. The global flag --wait-for-lock stands before the subcommand: without
        it a commit fails after 3 seconds while another one hashes.
        """
        if not self.enabled or not STAGES[stage].versioned:
            return None
        address = dvc_address(stage, dataset, recipe)
        self._dvc("commit", "--force", address)
        return self.recorded(address)

    def track_source(self, raw: Path) -> None:
        """Put a dataset's raw folder under DVC, unless git holds it (as it does the bundled sample)."""
        if not self.enabled:
            return
        command = ["git", "ls-files", "--", str(raw)]
        if not subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False).stdout.strip():
            self._dvc("add", str(raw.relative_to(self.root)))

    def _dvc(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-400:]
            raise UnavailableError(
                f"dvc {' '.join(arguments)} failing: {said}",
                expected="dvc.yaml and .dvc of the project, and room in the cache",
                do=f"run `dvc {' '.join(arguments)}` by hand and mend what it says; the artefact itself is whole",
            )

    def recorded(self, address: str) -> str | None:
        """Return the hash of a stage's first output in dvc.lock, None where it was never recorded."""
        path = Path(self.root) / "dvc.lock"
        if not path.is_file():
            return None
        content = YAML(typ="safe").load(path.read_text("utf-8"))
        if not isinstance(content, dict):
            raise CorruptError(f"an unreadable {path}", expected="YAML written by dvc", do="git checkout dvc.lock")
        outs = content.get("stages", {}).get(address, {}).get("outs") or [{}]
        md5: str | None = outs[0].get("md5")
        return md5


class Tracking(dg.ConfigurableResource):  # type: ignore[type-arg]
    """MLflow: one parent run a materialisation and partition, one child a stage."""

    uri: str
    artifacts: str
    """Where the files of runs go (a URI or folder)."""
    lock: str
    """A file whose lock guards the first contact with a new database."""

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield an MlflowClient, the database made first where it is new.

        Raises UnavailableError where the server or database does not answer.
        """
        from assets.tracking import answering, connect

        with answering(self.uri):
            yield connect(self.uri, Path(self.lock))
