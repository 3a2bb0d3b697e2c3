"""DVC's settings of a project, from all of its files: those of the machine, the user, the project and its checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LINE: Final = re.compile(r"^([^=\s]+)=(.+)$", re.MULTILINE)
_REMOTE: Final = re.compile(r"remote\.(.+)\.url")


@dataclass(frozen=True)
class DvcSettings:
    """The settings that ``dvc config --list`` prints: it makes relative paths absolute, and the last files win."""

    root: Path
    values: dict[str, str]

    @classmethod
    def of(cls, root: Path) -> DvcSettings:
        """Ask dvc, which takes a second; a project that does not use it, or whose dvc fails, has no settings."""
        if not (root / ".dvc").is_dir():
            return cls(root, {})
        command = [sys.executable, "-m", "dvc", "config", "--list"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        return cls(root, dict(_LINE.findall(done.stdout)))

    @property
    def remotes(self) -> dict[str, str]:
        """The address of each remote by its name."""
        return {found[1]: value for name, value in self.values.items() if (found := _REMOTE.fullmatch(name))}

    @property
    def cache(self) -> Path:
        """The folder of the cache, which ``cache.dir`` may put elsewhere."""
        return Path(self.root, ".dvc", self.values.get("cache.dir", "cache"))

    @property
    def folders(self) -> list[Path]:
        """The cache, and each folder that a setting names, as that of a remote."""
        return [self.cache, *(Path(value) for value in self.values.values() if value.startswith("/"))]
