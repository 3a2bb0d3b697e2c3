"""Where the champion's packed model is, so that ``xc predict`` finds it without importing MLflow.

A pointer is only used if the registry still gives the alias to the version it names, and if that version and the folder
still hold the model it names. So a champion that is moved in MLflow's interface is noticed, and so is another database
in the place of the old one, whose versions have the same numbers. Otherwise MLflow is asked. If its registry is a
server, MLflow is always asked for the version, and the pointer saves copying its files again. If it does not answer,
the model of the pointer is the last known champion.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from assets.mlflow_internals import Alias
from assets.release.copies import hold
from xc_core.artifacts import write_file
from xc_core.errors import StorageError, XCError
from xc_core.manifests import read_manifest


@dataclass(frozen=True)
class Pointer:
    """The packed model that a version of a registered model names."""

    uri: str
    """Tracking URI of the registry, without its login."""
    version: int
    folder: str
    digest: str
    """Digest of the packed model."""

    @classmethod
    def read(cls, path: Path) -> Pointer | None:
        """Return the pointer in a file, None if there is none or it cannot be read."""
        try:
            content = json.loads(path.read_text("utf-8"))
            return cls(str(content["uri"]), int(content["version"]), str(content["folder"]), str(content["digest"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Write the pointer; readers see the old file or the new one. A file that cannot be written is left out."""
        with contextlib.suppress(StorageError):
            write_file(path, json.dumps(asdict(self), indent=1) + "\n")

    def names(self, uri: str, alias: Alias | None) -> bool:
        """Return True if the pointer was written for the version that an alias of the registry ``uri`` points at."""
        if alias is None or (self.uri, self.version) != (uri, alias.version):
            return False
        return alias.digest in (None, self.digest)

    def holds(self) -> bool:
        """Return True if the folder holds the packed model that the pointer names; file contents are not read.

        If it is a copy of this project, no other process deletes it until this one ends.
        """
        hold(Path(self.folder))
        try:
            return read_manifest(Path(self.folder)).digest() == self.digest
        except (XCError, OSError):
            return False
