"""The artefact of the audit: its figures come back as they were written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from xc_core import artifacts, manifests
from xc_core.errors import CorruptError, MissingError
from xc_core.sampling.audit import Audit


def test_what_is_written_is_read_and_what_is_not_a_number_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with pytest.raises(MissingError):
        Audit.open(folder)
    with artifacts.building(folder, kind=Audit.kind) as build:
        Audit({"held_by_batches": math.nan, "documents": 5, "theorem1": {"missed": 0.25}}).write(build)
    assert Audit.open(folder).figures == {"held_by_batches": None, "documents": 5, "theorem1": {"missed": 0.25}}
    assert artifacts.read_made(folder).facts["documents"] == 5
    (file,) = (path for path in folder.iterdir() if path.name not in (manifests.MANIFEST, artifacts.MADE))
    file.write_text("{}", "utf-8")
    with pytest.raises(CorruptError):
        Audit.open(folder)
