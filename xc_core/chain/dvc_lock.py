"""The file dvc.lock, which names the content of every artefact that DVC keeps."""

from __future__ import annotations

from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from xc_core.artifacts import write_file
from xc_core.chain.workspace import Workspace
from xc_core.errors import CorruptError

FILE: Final = "dvc.lock"


def forget(workspace: Workspace, dataset: str) -> int:
    """Remove the stages of a dataset from dvc.lock, and return how many there were.

    Otherwise ``dvc gc`` would keep what they name, and ``dvc pull`` bring it back. Raises CorruptError, and changes
    nothing, if the file cannot be read.
    """
    path = workspace.root / FILE
    if not path.is_file():
        return 0
    yaml = YAML()
    content = _content(yaml, path.read_text("utf-8"))
    stages = content.get("stages") or {}
    own = [name for name in stages if _is_of(str(name), dataset)]
    if own:
        for name in own:
            del stages[name]
        text = StringIO()
        yaml.dump(content, text)
        write_file(path, text.getvalue())
    return len(own)


def _content(yaml: YAML, text: str) -> Any:
    wrong = CorruptError(f"an unreadable {FILE}", expected="YAML written by dvc", do=f"git checkout {FILE}")
    try:
        content = yaml.load(text)
    except YAMLError as error:
        raise wrong from error
    if not isinstance(content, dict) or not isinstance(content.get("stages") or {}, dict):
        raise wrong
    return content


def _is_of(stage: str, dataset: str) -> bool:
    """Return True for an address such as corpus@DATASET or encoder@DATASET_RECIPE: names of datasets have no ``_``."""
    _, _, partition = stage.partition("@")
    return partition.partition("_")[0] == dataset
