"""Each risky thing is done in one module alone: randomness, deleting, starting processes, writing files, and so on.

The rules read the syntax tree. ALLOWED names each exception with its reason; an entry that is not needed is an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.source import MODULES, nodes


@cache
def names(module: str) -> dict[str, str]:
    """Return what each imported name of a module stands for: {"np": "numpy", "sweep": "xc_core.leftovers.sweep"}."""
    found: dict[str, str] = {}
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def full_name(module: str, node: ast.expr) -> str:
    """Return the dotted name of an expression with imports resolved: np.random.rand is numpy.random.rand."""
    if isinstance(node, ast.Attribute):
        return f"{full_name(module, node.value)}.{node.attr}"
    return names(module).get(node.id, node.id) if isinstance(node, ast.Name) else ""


@cache
def calls(module: str) -> tuple[tuple[str, ast.Call], ...]:
    """Return (full name of what is called, the call)."""
    return tuple((full_name(module, node.func), node) for node in nodes(module) if isinstance(node, ast.Call))


@cache
def imports(module: str) -> frozenset[str]:
    """Return every module that is imported, anywhere in the file, with what is taken from it."""
    found = [node for node in nodes(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    whole = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    parts = {f"{n.module}.{alias.name}" for n in found if isinstance(n, ast.ImportFrom) for alias in n.names}
    return frozenset(whole | parts)


def is_under(name: str, *roots: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def makes_randomness(module: str) -> set[str]:
    """A generator made, a global one seeded, or a draw from a global one; not a draw from one that was handed in."""
    makers = ("numpy.random", "torch.manual_seed", "torch.seed", "torch.Generator", "torch.random", "os.urandom")
    draws = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal")}
    made = {name for name, _ in calls(module) if is_under(name, *makers)}
    free = {name for name, call in calls(module) if name in draws and "generator" not in {k.arg for k in call.keywords}}
    return made | free | {name for name in imports(module) if is_under(name, "random", "secrets")}


def writes_folders(module: str) -> set[str]:
    """A folder made, or something renamed, moved, linked or deleted."""
    methods = ("mkdir", "rmdir", "unlink", "symlink_to", "hardlink_to", "touch")
    in_os = ("mkdir", "makedirs", "rename", "replace", "renames", "remove", "unlink", "rmdir", "link", "symlink")
    in_shutil = ("rmtree", "move", "copytree", "copy", "copy2", "copyfile")
    return {
        kind
        for name, call in calls(module)
        for kind in [name.split(".")[-1]]
        if (is_under(name, *(f"os.{one}" for one in in_os), *(f"shutil.{one}" for one in in_shutil), "tempfile"))
        or (isinstance(call.func, ast.Attribute) and (call.func.attr in methods or renames_path(name, call)))
    }


def renames_path(name: str, call: ast.Call) -> bool:
    """True for ``path.rename(x)`` and ``path.replace(x)``; text.replace takes two, a table's rename a mapping."""
    last = name.split(".")[-1] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    one = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Dict)
    return last in ("rename", "replace") and one and not is_under(name, "dataclasses", "datetime")


def maps_files_to_write(module: str) -> set[str]:
    """A file mapped into memory to write to it: on a full disk that kills the process, unless its space is reserved."""
    found = {name for name, _ in calls(module) if name in ("numpy.lib.format.open_memmap", "mmap.mmap")}
    for name, call in calls(module):
        if name in ("numpy.memmap", "numpy.load"):
            texts = {n.value for n in (*call.args, *(k.value for k in call.keywords)) if isinstance(n, ast.Constant)}
            found |= {name} if texts & {"r+", "w+"} or (name == "numpy.memmap" and not texts & {"r", "c"}) else set()
    return found


def unpickles(module: str) -> set[str]:
    """Anything that runs code when it reads a file."""
    libraries = ("pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml")
    found = {name for name in imports(module) if is_under(name, *libraries)}
    found |= {name for name, _ in calls(module) if name in ("torch.load", "torch.save", "eval", "exec")}
    for _, call in calls(module):
        allowed = [k for k in call.keywords if k.arg == "allow_pickle"]
        found |= {"allow_pickle" for k in allowed if not (isinstance(k.value, ast.Constant) and k.value.value is False)}
    return found


def reads_arrays(module: str) -> set[str]:
    """A file of arrays read; other errors than CorruptError come of a damaged one."""
    return (imports(module) | {name for name, _ in calls(module)}) & {"safetensors.numpy.load_file"}


def touches_process_groups(module: str) -> set[str]:
    """An import or use of torch.distributed, or a look at the environment of torchrun."""
    used = {full_name(module, node) for node in nodes(module) if isinstance(node, ast.Attribute)}
    found = {name for name in used | imports(module) if is_under(name, "torch.distributed")}
    texts = {str(node.value) for node in nodes(module) if isinstance(node, ast.Constant)}
    return found | (texts & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"})


def asks_for_a_card(module: str) -> set[str]:
    """A question to torch.cuda, or a device named by hand."""
    used = {full_name(module, node) for node in nodes(module) if isinstance(node, ast.Attribute)}
    found = {name for name in used | imports(module) if is_under(name, "torch.cuda")}
    places = [call.args[:1] for _, call in calls(module) if getattr(call.func, "attr", "") in ("to", "device")]
    places += [[k.value] for _, call in calls(module) for k in call.keywords if k.arg == "device"]
    texts = {node.value for (node,) in filter(None, places) if isinstance(node, ast.Constant)}
    return found | {str(text) for text in texts} | {n for n in ("cuda",) if moves_to_cuda(module)}


def moves_to_cuda(module: str) -> bool:
    """``x.cuda()``."""
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" for _, call in calls(module))


def reaches_a_shell(module: str) -> set[str]:
    """A command given as text to a shell."""
    found = {name for name, _ in calls(module) if name in ("os.system", "os.popen", "subprocess.getoutput")}
    return found | {"shell" for _, call in calls(module) if "shell" in {k.arg for k in call.keywords}}


def joins_file_names(module: str) -> set[str]:
    """The name of a file inside an artefact, joined by hand: ``folder / "rows.npy"``."""
    if not is_above_artefacts(module):
        return set()
    ends = re.compile(r"\.(npy|npz|json|parquet|safetensors|svg|png|md|txt)$")
    joined = [n.right for n in nodes(module) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    return {str(n.value) for n in joined if isinstance(n, ast.Constant) and ends.search(str(n.value))}


def asks_for_files(module: str) -> set[str]:
    """Control flow that depends on whether a file is there."""
    methods = ("is_file", "is_dir", "exists")
    called = [call.func for _, call in calls(module) if isinstance(call.func, ast.Attribute)]
    return {func.attr for func in called if func.attr in methods} if is_above_artefacts(module) else set()


def prints_json(module: str) -> set[str]:
    """JSON that a command writes without xc_core.canonical, which has null for a number that is not finite."""
    return {name for name, _ in calls(module) if name == "json.dumps"} if is_under_cli(module) else set()


def knows_dagster(module: str) -> set[str]:
    """What Dagster does not document: its tags and own jobs, its storages, the error of its package for Postgres."""
    texts = {node.value for node in nodes(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = {text for text in texts if re.match(r"dagster/\w|__[A-Z]+_JOB", text)}
    found |= {name for name in attributes(module) if re.fullmatch(r"(event_log|run|schedule)_storage", name)}
    return found | {name for name in imports(module) if is_under(name, "dagster_postgres")}


def knows_mlflow(module: str) -> set[str]:
    """What MLflow does not document: its stores, its database; and its tags."""
    texts = {node.value for node in nodes(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = {text for text in texts if re.fullmatch(r"mlflow\.([a-z]+[A-Z]\w+|\w+\.\w+)", text)}
    inside = ("mlflow.store", "mlflow.tracking", "mlflow.utils", "mlflow.protos", "sqlite3")
    return found | {name for name in imports(module) if is_under(name, *inside)}


def knows_dvc(module: str) -> set[str]:
    """DVC's own modules: only its commands are documented."""
    return {name for name in imports(module) if is_under(name, "dvc")}


def uses_private_names(module: str) -> set[str]:
    """A module or a name of another library that begins with an underscore: no code here defines it."""
    foreign = {name for name in imports(module) if not is_under(name, "xc_core", "assets", "pipelines")}
    asked = [call.args[1] for name, call in calls(module) if name in ("getattr", "hasattr") and call.args[1:]]
    used = attributes(module) | {str(node.value) for node in asked if isinstance(node, ast.Constant)}
    found = {name for name in used if re.match("_[A-Za-z]", name)} - own_names()
    return found | {name for name in foreign if re.search(r"\._[A-Za-z]", name)}


@cache
def own_names() -> frozenset[str]:
    """Return every name that the code defines: of functions, classes, variables and attributes."""
    every = [node for module in MODULES for node in nodes(module)]
    names = {n.name for n in every if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(names | {n.attr for n in every if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)})


@cache
def attributes(module: str) -> frozenset[str]:
    return frozenset(node.attr for node in nodes(module) if isinstance(node, ast.Attribute))


def decides_by_words(module: str) -> set[str]:
    """A decision by the words of an error, event or warning of another library, or by the name of an error's class."""
    errors = {node.name for node in nodes(module) if isinstance(node, ast.ExceptHandler)}
    arguments = [node for node in nodes(module) if isinstance(node, ast.arg) and node.annotation is not None]
    errors |= {node.arg for node in arguments if re.search(r"Exception|Error\b", ast.unparse(node.annotation or node))}
    words = {f"str({name})" for name in errors}
    for node in nodes(module):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in words:
            words |= set(map(ast.unparse, node.targets))
    looks: list[ast.expr] = [node for node in nodes(module) if isinstance(node, ast.Compare)]
    methods = ("search", "match", "fullmatch", "findall", "startswith", "endswith", "get")
    looks += [call for _, call in calls(module) if getattr(call.func, "attr", "") in methods]
    return {name for name, _ in calls(module) if name == "warnings.filterwarnings"} | {
        ast.unparse(inner)
        for look in looks
        for inner in ast.walk(look)
        if isinstance(inner, ast.expr)
        and (ast.unparse(inner) in words or re.fullmatch(r".+\.message|type\(.+\)\.__name__", ast.unparse(inner)))
    }


def is_under_cli(module: str) -> bool:
    """True for commands, and for code that is tried on the rules."""
    return not module.startswith(("xc_core/", "assets/", "pipelines/")) or module.startswith("xc_core/cli/")


def is_above_artefacts(module: str) -> bool:
    """True for code that reads artefacts through their types: the stages, and all that is above xc_core."""
    return not module.startswith("xc_core/") or module.startswith("xc_core/stages/")


@dataclass(frozen=True)
class Rule:
    """Something that one module alone may do."""

    find: Callable[[str], set[str]]
    owner: str | None = None


RULES = {
    "randomness": Rule(makes_randomness, "xc_core/seeds.py"),
    "folders": Rule(writes_folders, "xc_core/artifacts.py"),
    "mapped files": Rule(maps_files_to_write, "xc_core/artifacts.py"),
    "files of arrays": Rule(reads_arrays, "xc_core/arrays.py"),
    "pickle": Rule(unpickles),
    "process groups": Rule(touches_process_groups, "xc_core/distributed.py"),
    "cards": Rule(asks_for_a_card, "xc_core/devices.py"),
    "shell": Rule(reaches_a_shell),
    "file names": Rule(joins_file_names),
    "files asked for": Rule(asks_for_files),
    "printed JSON": Rule(prints_json),
    "Dagster": Rule(knows_dagster, "assets/dagster_internals.py"),
    "MLflow": Rule(knows_mlflow, "assets/mlflow_internals.py"),
    "DVC": Rule(knows_dvc, "assets/resources.py"),
    "private names": Rule(uses_private_names),
    "words of errors": Rule(decides_by_words, "xc_core/causes.py"),
}
LAUNCHER = ("CheckRunHealthResult", "LaunchRunContext", "WorkerStatus")
BUILDING = "inside an artefact that xc_core.artifacts is building"
ALLOWED = {
    ("MLflow", "assets/tracking.py"): (
        {"mlflow.note.content", "mlflow.parentRunId", "mlflow.experimentKind", "mlflow.data.context"},
        "the tags of runs and experiments",
    ),
    ("printed JSON", "xc_core/cli/predict_files.py"): (
        {"json.dumps"},
        "a digest, and rows of a table whose scores are finite (infer.ranker)",
    ),
    ("private names", "assets/dagster_internals.py"): (
        {
            "dagster._core.events.RunFailureReason",
            "dagster._core.errors.DagsterUserCodeProcessError",
            "dagster._utils.error.SerializableErrorInfo",
        },
        "its owner",
    ),
    ("private names", "pipelines/launcher.py"): (
        {"_instance", *(f"dagster._core.launcher.{name}" for name in LAUNCHER)},
        "a launcher of one's own has no public base in Dagster",
    ),
    ("private names", "xc_core/devices.py"): ({"_is_avx512_bf16_supported"}, "torch before 2.13 has no public probe"),
    ("private names", "xc_core/encoders/packed.py"): (
        {"_reorder_linear_weight", "_linear_pointwise"},
        "oneDNN's products, which torch does not export",
    ),
    ("private names", "xc_core/scores/beam_search.py"): (
        {"scipy.sparse._sparsetools"},
        "a sparse product that reads its operands once; the public one counts the result first",
    ),
    ("private names", "xc_core/scores/trees/sparse_rows.py"): (
        {"scipy.sparse._sparsetools"},
        "products of a few rows, which the public ones check for longer than they compute",
    ),
    ("private names", "xc_core/encoders/transformer.py"): ({"_attn_implementation"}, "which attention a model has"),
    ("words of errors", "assets/dagster_internals.py"): ({"event.dagster_event.message"}, "of Dagster"),
    ("words of errors", "assets/mlflow_errors.py"): ({"str(error)", "text"}, "of MLflow, requests and the S3 client"),
    ("words of errors", "assets/partitions.py"): ({"warnings.filterwarnings"}, "a preview of Dagster"),
    ("words of errors", "assets/stages.py"): ({"warnings.filterwarnings"}, "a preview of Dagster"),
    ("words of errors", "xc_core/metrics/plots.py"): ({"warnings.filterwarnings"}, "a glyph that matplotlib lacks"),
    ("words of errors", "xc_core/data/formats/csv_rows.py"): ({"str(error)"}, "of Python's csv"),
    ("randomness", "xc_core/encoders/unallocated.py"): (
        {"torch.random.fork_rng"},
        "weights of a model of which only the shapes are read; the process's own numbers stay as they are",
    ),
    ("randomness", "xc_core/leftovers.py"): ({"os.urandom"}, "a temporary name that no other writer has"),
    ("cards", "xc_core/encoders/packed.py"): ({"meta"}, "heads without memory until their weights are loaded"),
    ("cards", "xc_core/encoders/unallocated.py"): ({"meta"}, "a model without memory, to read its shapes"),
    ("folders", "xc_core/classifiers/storage.py"): (
        {"TemporaryFile", "gettempdir"},
        "an unnamed file, which disappears with the process",
    ),
    ("folders", "xc_core/causes.py"): ({"TemporaryFile"}, "an unnamed file, to learn why a disk refuses one"),
    ("folders", "xc_core/sqlite.py"): ({"TemporaryFile"}, "an unnamed file, to learn whether its disk gives locks"),
    ("mapped files", "xc_core/classifiers/storage.py"): ({"mmap.mmap"}, "an unnamed file; it reserves its space"),
    ("folders", "xc_core/cli/doctor.py"): ({"gettempdir"}, "only asks how much space its disk has"),
    ("folders", "xc_core/classifiers/tables.py"): ({"mkdir"}, BUILDING),
    ("folders", "xc_core/data/cut.py"): ({"replace"}, f"the table of documents, written again {BUILDING}"),
    ("folders", "xc_core/data/families.py"): ({"mkdir", "rmtree"}, f"signatures spilled {BUILDING}"),
    ("folders", "xc_core/data/nearness.py"): ({"TemporaryFile"}, "an unnamed file, which disappears with the process"),
    ("folders", "xc_core/data/splits.py"): ({"mkdir", "rmtree"}, f"digests spilled {BUILDING}"),
    ("folders", "xc_core/lifecycle/dvc_lock.py"): ({"unlink"}, "a first dvc.lock that dvc did not finish"),
    ("folders", "xc_core/data/tokens.py"): ({"unlink"}, f"its own flat file {BUILDING}"),
    ("folders", "xc_core/metrics/validation.py"): ({"copyfile"}, BUILDING),
    ("folders", "xc_core/scores/store.py"): ({"mkdir", "copytree"}, BUILDING),
    ("folders", "xc_core/scores/vectors.py"): ({"mkdir"}, BUILDING),
    ("folders", "xc_core/stages/embeddings.py"): ({"TemporaryDirectory"}, f"scratch {BUILDING}"),
    ("folders", "xc_core/scores/lexical.py"): (
        {"mkdir"},
        BUILDING,
    ),
    ("folders", "xc_core/leftovers.py"): (
        {"gettempdir", "mkdir", "rename", "rmtree", "unlink"},
        "a folder that the next command deletes if its writer is killed; deletes these; undoes an exchange; a folder "
        "of temporary files, whose errors name it",
    ),
    ("folders", "xc_core/locks.py"): ({"mkdir"}, "the folder of a lock file"),
    ("folders", "xc_core/linked.py"): (
        {"mkdir", "copytree", "copyfile", "link"},
        "a folder beside the artefact, which artifacts.install puts in its place",
    ),
    ("folders", "xc_core/cli/ingest.py"): (
        {"mkdir", "copyfile", "symlink_to"},
        "a scratch workspace under .xc; artifacts.install puts the corpus in its place",
    ),
    ("folders", "xc_core/lifecycle/arrival.py"): (
        {"mkdir", "copyfile", "symlink_to", "mkdtemp"},
        "a scratch workspace under .xc; artifacts.install puts the corpus in its place",
    ),
    ("folders", "xc_core/lifecycle/update.py"): ({"copyfile"}, "raw files in a scratch workspace"),
    ("folders", "xc_core/lifecycle/add_labels.py"): ({"mkdir", "copytree"}, "raw files in a scratch workspace"),
    ("folders", "xc_core/data/merge.py"): (
        {"mkdir", "replace"},
        "raw files in a scratch workspace; values of a column",
    ),
    ("folders", "xc_core/chain/changelog.py"): (
        {"mkdir", "copytree", "rename"},
        "the raw files before a change, linked; an entry of the changelog in a scratch workspace",
    ),
    ("folders", "xc_core/planning/pilots.py"): ({"mkdir"}, "scratch workspaces of pilots, under .xc"),
    ("folders", "assets/inbox.py"): ({"mkdir", "rename"}, "moves a user's files aside; they are no artefact"),
    ("folders", "assets/database.py"): ({"rename"}, "a new database of MLflow, which is no artefact"),
    ("folders", "assets/release/rebuilding.py"): (
        {"mkdir", "copyfile", "rename"},
        "a new clone of the project, in a folder that the user names, and artefacts of one that it is made from",
    ),
    ("folders", "assets/release/page.py"): ({"mkdir"}, "the files of an origin, until MLflow has copied them"),
    ("folders", "assets/release/copies.py"): (
        {"mkdir", "mkdtemp", "TemporaryDirectory"},
        "copies of registered models, of which the oldest are deleted",
    ),
    ("files asked for", "assets/database.py"): ({"exists"}, "whether MLflow's own database is there"),
    ("files asked for", "assets/mlflow_errors.py"): ({"is_dir"}, "whether an address names a folder, which is advice"),
    ("files asked for", "assets/mlflow_internals.py"): ({"is_file"}, "whether MLflow's own database is a file here"),
    ("files asked for", "assets/release/deleting.py"): ({"exists"}, "files of another project, which may be gone"),
    ("files asked for", "assets/release/judge.py"): ({"is_dir"}, "a project may be without DVC or acceptance set"),
    ("files asked for", "assets/release/ancestry.py"): ({"is_file"}, "what MLflow keeps of an origin; folders too"),
    ("files asked for", "assets/release/lineage.py"): ({"exists"}, "a folder that must be new"),
    ("files asked for", "assets/release/rebuilding.py"): (
        {"is_dir", "exists", "is_file"},
        "a clone, of which git and DVC decide what it holds",
    ),
    ("files asked for", "assets/release/moved.py"): ({"is_dir"}, "files of MLflow that a moved project may be without"),
    ("files asked for", "assets/release/repair.py"): ({"is_file"}, "what MLflow keeps of a run; folders too"),
    ("files asked for", "assets/release/origin.py"): ({"is_file"}, "files that a project may be without"),
    ("files asked for", "assets/release/accepting.py"): ({"is_dir"}, "an acceptance set may not be drawn yet"),
    ("files asked for", "assets/release/champions.py"): ({"is_dir"}, "a project may be without packed models"),
    ("files asked for", "assets/release/promotion.py"): ({"is_dir"}, "an experiment may be without some artefacts"),
    ("files asked for", "assets/release/versions.py"): (
        {"is_file"},
        "what MLflow wrote around a packed model; folders too",
    ),
    ("files asked for", "assets/places.py"): (
        {"is_dir", "is_file"},
        "folders of Dagster, MLflow and DVC, which a project may be without",
    ),
    ("files asked for", "assets/inbox.py"): ({"is_file", "is_dir"}, "a user's files, which may not have come yet"),
    ("files asked for", "assets/resources.py"): (
        {"is_dir", "is_file"},
        "a project may be without DVC, and DVC writes dvc.lock at its first commit",
    ),
    ("files asked for", "assets/settings.py"): (
        {"is_file"},
        "the .gitignore of local state, written once, kept if edited",
    ),
    ("files asked for", "assets/staleness.py"): ({"is_file"}, "folders are no change"),
    ("files asked for", "xc_core/stages/tokens.py"): ({"is_file"}, "a kept store without its record is made again"),
    ("files asked for", "pipelines/schedules.py"): ({"exists"}, "the folder of a dataset that was deleted"),
    ("files asked for", "pipelines/servers.py"): ({"exists"}, "a command of this environment, or one on PATH"),
}


@pytest.mark.parametrize("rule", RULES)
def test_one_module_alone_does_it_and_exceptions_are_named(rule: str) -> None:
    found = {module: RULES[rule].find(module) for module in MODULES if module != RULES[rule].owner}
    allowed = {module: kinds for (name, module), (kinds, _) in ALLOWED.items() if name == rule}
    assert {module: kinds for module, kinds in found.items() if kinds} == allowed


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.owner])
def test_the_owner_itself_does_what_it_owns(rule: str) -> None:
    """Otherwise the search above would find nothing anywhere."""
    owner = RULES[rule].owner
    assert owner is not None
    assert RULES[rule].find(owner)


SINS = {
    "randomness": ["import numpy as np\nnp.random.default_rng(0)", "import random", "from random import shuffle",
                   "from numpy.random import default_rng\ndefault_rng(1)", "import torch\ntorch.manual_seed(1)",
                   "import torch\ntorch.rand(3)"],
    "folders": ["from pathlib import Path\nPath('a').mkdir()", "p.with_name('b').rename(q)", "p.replace(q)",
                "import os\nos.makedirs('a')", "from shutil import rmtree\nrmtree(a)"],
    "mapped files": ["from numpy.lib.format import open_memmap\nopen_memmap(p, mode='w+')",
                     "import numpy as np\nnp.memmap(p, np.uint32)", "import numpy as np\nnp.load(p, mmap_mode='r+')",
                     "import mmap\nmmap.mmap(-1, 3)"],
    "files of arrays": ["from safetensors.numpy import load_file",
                        "import safetensors.numpy\nsafetensors.numpy.load_file(p)"],
    "pickle": ["import pickle", "from joblib import load", "import torch\ntorch.load(p)", "eval('1')",
               "import numpy as np\nnp.load(p, allow_pickle=True)"],
    "process groups": ["import torch.distributed as dist", "from torch import distributed", "os.environ['RANK']",
                       "import torch\ntorch.distributed.barrier()"],
    "cards": ["import torch\ntorch.cuda.is_available()", "from torch import cuda", "model.to('cuda')", "model.cuda()",
              "import torch\ntorch.zeros(3, device='cuda:0')"],
    "shell": ["import os\nos.system('ls')", "import subprocess\nsubprocess.run(text, shell=True)"],
    "file names": ["folder / 'rows.npy'", "(root / name) / 'facts.json'"],
    "files asked for": ["if (folder / name).is_file():\n    pass", "path.exists()"],
    "printed JSON": ["import json\nclick.echo(json.dumps(found))", "from json import dumps\ndumps(found)"],
    "Dagster": ["run.tags['dagster/partition']", "job == '__ASSET_JOB'", "instance.event_log_storage.wipe()",
                "from dagster_postgres.utils import DagsterPostgresException"],
    "MLflow": ["import sqlite3", "from mlflow.store.db import utils", "import mlflow.utils",
               "tags['mlflow.parentRunId']",
               "client.set_tag(run, 'mlflow.note.content', text)"],
    "DVC": ["from dvc.repo import Repo", "import dvc.api"],
    "private names": ["from dagster._core.events import RunFailureReason", "import torch._dynamo", "config._attn_kind",
                      "getattr(torch.cpu, '_is_amx_supported', None)", "from torch import _C"],
    "words of errors": ["try:\n    f()\nexcept OSError as error:\n    if 'full' in str(error):\n        pass",
                        "def f(error: Exception):\n    return any(word in str(error) for word in WORDS)",
                        "def f(error: SQLAlchemyError):\n    text = str(error)\n    return FULL.search(text)",
                        "if event.message == 'Failed':\n    pass", "if type(error).__name__ == 'Panic':\n    pass",
                        "def f(error: BaseException):\n    return str(error).startswith('a')",
                        "import warnings\nwarnings.filterwarnings('ignore', 'Glyph')"],
}  # fmt: skip
INNOCENT = {
    "randomness": "def f(random, g):\n    random.choice(3)\n    torch.rand(3, generator=g)\nx: np.random.Generator",
    "folders": "text.replace('a', 'b')\ntable.rename({'a': 'b'})\nimport dataclasses\ndataclasses.replace(c, size=3)",
    "mapped files": "import numpy as np\nnp.memmap(p, np.uint32, 'r')\nnp.load(p, mmap_mode='c', allow_pickle=False)",
    "files of arrays": "from safetensors.numpy import save_file\nfrom safetensors.torch import load_file\nload_file(p)",
    "pickle": "import numpy as np\nnp.load(p, allow_pickle=False)\nencoder.eval()",
    "process groups": "from xc_core.distributed import check_one_process",
    "cards": "model.to(encoder.device)\nzeros(3, device=rows.device)\ntext = 'cuda'",
    "shell": "import subprocess\nsubprocess.run(['ls'], check=True)",
    "file names": "folder / name\nroot / 'raw'\ntotal / 2",
    "files asked for": "exists = store.has(name)",
    "printed JSON": "from xc_core import canonical\ncanonical.line(found)",
    "Dagster": "import dagster as dg\ninstance.get_run_by_id(tags['xc/host'])\n'the folder dagster/logs'",
    "MLflow": "import mlflow\nfrom mlflow.exceptions import MlflowException\nfolder / 'mlflow.db'",
    "DVC": "import subprocess\nsubprocess.run(['dvc', 'add'])",
    "private names": "self._timer\nfrom xc_core.git import _run\nfrom __future__ import annotations\nobject.__name__",
    "words of errors": "try:\n    f()\nexcept OSError as error:\n    report(str(error), error.errno == 2)"
    "\nwarnings.simplefilter('ignore')",
}


@pytest.mark.parametrize(("rule", "code"), [(rule, code) for rule, codes in SINS.items() for code in codes])
def test_a_sin_is_found(rule: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "sin.py").write_text(code)
    assert RULES[rule].find(str(tmp_path / "sin.py"))


@pytest.mark.parametrize("rule", INNOCENT)
def test_what_looks_alike_is_not_taken_for_a_sin(rule: str, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(INNOCENT[rule])
    assert not RULES[rule].find(str(tmp_path / "fine.py"))
