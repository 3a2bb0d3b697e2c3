"""Where things lie: the project's root, params.yaml, artefact folders, resume and lock files; and valid names.

Takes: a root folder, names of datasets and recipes.   Gives: Workspace, Experiment.
May import: errors, artifacts, params, data configs; recipes only when one is asked for.
Never: lets a name become a path outside the data folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML, YAMLError

from xc_core import artifacts
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, MissingError, UsageError, nearest
from xc_core.params import changed, plain
from xc_core.stages.registry import STAGES, Stage
from xc_core.stages.tokens_config import TokensConfig

if TYPE_CHECKING:
    from xc_core.recipes import Recipe

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}[a-z0-9]|[a-z0-9]")
_RESERVED: Final = frozenset({*STAGES, "raw", "inbox"})
_KNOWN: Final = {
    "datasets": ("corpus", "tokens"),
    "experiments": ("dataset", "recipe", "base", "source", "tokens", "stages"),
}
"""The two mappings of params.yaml and the fields of their entries."""
_EDIT_SECONDS: Final = 30.0
"""How long an edit of params.yaml waits for another one to end."""


def checked_name(kind: str, name: str) -> str:
    """Return ``name`` where it may name a dataset or recipe; raise UsageError elsewhere."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        why = "a name the chain uses itself" if name in _RESERVED else "lower-case letters, digits and '-'"
        expected = (
            f"another name than {name!r}" if name in _RESERVED else f"{why}, at most 64, a letter or digit at both ends"
        )
        raise UsageError(f"the {kind} name {name!r}", expected=expected, do="choose another name")
    return name


@dataclass(frozen=True)
class Experiment:
    """One dataset with one recipe, its changes applied: what every stage of a chain reads its config from."""

    dataset: str
    recipe: Recipe | None
    """None where only stages of the dataset are meant."""
    corpus: IngestConfig
    tokens: TokensConfig

    @property
    def key(self) -> str:
        """The name in params.yaml and behind the @ of a DVC stage."""
        return f"{self.dataset}_{self.recipe.name}" if self.recipe else self.dataset

    def config(self, stage: str) -> Any:
        """Return the config of ``stage``; None for one that has none (leaderboard)."""
        if stage in ("corpus", "tokens"):
            return getattr(self, stage)
        return getattr(self.recipe, stage, None)


@dataclass(frozen=True)
class Workspace:
    """A project folder. Artefacts: data/<dataset>/<stage> and data/<dataset>/<recipe>/<stage>; state: .xc/."""

    root: Path
    data: Path = field(init=False)
    state: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.root / "data")
        object.__setattr__(self, "state", self.root / ".xc")

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """Return the workspace of XC_ROOT, or the nearest folder above ``start`` (the present one) with params.yaml."""
        if root := os.environ.get("XC_ROOT"):
            return cls(Path(root).resolve())
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / "params.yaml").is_file():
                return cls(folder)
        raise MissingError(
            f"no params.yaml in {here} or above it",
            expected="to be started inside the project",
            do="change into the project's folder, or set XC_ROOT to it",
        )

    def folder(self, stage: str, dataset: str, recipe: str | None = None) -> Path:
        """Return the folder of an artefact."""
        checked_name("dataset", dataset)
        if STAGES[stage].scope == "dataset":
            return self.data / dataset / stage
        if recipe is None:
            raise UsageError(f"no recipe for {stage}", expected="--recipe NAME", do="name the recipe")
        return self.data / dataset / checked_name("recipe", recipe) / stage

    def raw(self, dataset: str) -> Path:
        """Return the folder of a dataset's source files."""
        return self.data / checked_name("dataset", dataset) / "raw"

    def scratch(self, kind: str, stage: Stage, dataset: str, recipe: str | None) -> Path:
        """Return the place of untracked files of a stage: kind is run (resume), lock or cost."""
        name = dataset if stage.scope == "dataset" or recipe is None else f"{dataset}_{recipe}"
        return self.state / kind / f"{stage.name}@{name}"

    # params.yaml

    def params(self) -> dict[str, Any]:
        """Return the content of params.yaml."""
        path = self.root / "params.yaml"
        try:
            content = YAML(typ="safe").load(path.read_text("utf-8")) or {}
        except FileNotFoundError as error:
            raise MissingError(
                f"no {path}", expected="the project's params.yaml", do="change into the project, or set XC_ROOT to it"
            ) from error
        except (YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"no YAML ({' '.join(str(error).split())})", expected="YAML", do="mend the file", where="params.yaml"
            ) from error
        _check_shape(content)
        return content

    def datasets(self) -> list[str]:
        """Return the names of all datasets in params.yaml."""
        return sorted(self.params().get("datasets") or {})

    def corpus_digest(self, dataset: str) -> str:
        """Return the digest of the dataset's corpus as it is now; raise MissingError where there is none."""
        return artifacts.read_manifest(self.folder("corpus", dataset), "corpus").digest()

    def experiments(self, dataset: str | None = None) -> list[tuple[str, str]]:
        """Return (dataset, recipe) of all active experiments, of one dataset where named."""
        entries = (self.params().get("experiments") or {}).values()
        pairs = sorted((entry["dataset"], entry["recipe"]) for entry in entries)
        return [pair for pair in pairs if dataset in (None, pair[0])]

    def experiment(self, dataset: str, recipe: str | None) -> Experiment:
        """Return the experiment of params.yaml, or the recipe's defaults for a stage that needs no recipe.

        Raises MissingError where there is no such dataset or experiment, ConfigError for a wrong parameter.
        """
        params = self.params()
        entry = _entry(
            params.get("datasets") or {},
            checked_name("dataset", dataset),
            "dataset",
            f"xc ingest PATH --dataset {dataset}",
        )
        corpus = changed(IngestConfig(), entry.get("corpus") or {}, f"datasets.{dataset}.corpus")
        tokens = changed(TokensConfig(), entry.get("tokens") or {}, f"datasets.{dataset}.tokens")
        if recipe is None:
            return Experiment(dataset, None, corpus, tokens)
        from xc_core.recipes import RECIPES

        key = f"{dataset}_{checked_name('recipe', recipe)}"
        variant = "" if recipe in RECIPES else ", with --base KNOWN for a variant"
        make = f"xc train --dataset {dataset} --recipe {recipe}{variant}"
        own = {k: e for k, e in (params.get("experiments") or {}).items() if e["dataset"] == dataset}
        chosen = _entry(own, key, "experiment", make)
        return Experiment(
            dataset, resolve(recipe, chosen.get("base") or recipe, chosen.get("stages") or {}), corpus, tokens
        )

    def declared(self, dataset: str, recipe: str) -> tuple[str, dict[str, Any]] | None:
        """Return the base of an experiment and its changes as params.yaml has them; None where it has none."""
        chosen = (self.params().get("experiments") or {}).get(f"{dataset}_{recipe}")
        if chosen is None:
            return None
        stages = chosen.get("stages") or {}
        return chosen.get("base") or recipe, {stage: own for stage, own in stages.items() if own}

    def declare_dataset(self, dataset: str, corpus: IngestConfig) -> None:
        """Put a dataset into params.yaml, with those settings that differ from the defaults."""
        checked_name("dataset", dataset)

        def edit(params: Any) -> None:
            entry = _filled(_filled(params, "datasets"), dataset)
            entry["corpus"] = differences(corpus, IngestConfig())
            entry.setdefault("tokens", {})

        self._edit_params(edit)

    def declare_experiment(self, dataset: str, recipe: str, base: str, changes: dict[str, Any]) -> Experiment:
        """Put an experiment into params.yaml (or replace its changes) and return it, resolved."""
        from xc_core.recipes import Recipe

        resolved = resolve(checked_name("recipe", recipe), base, changes)
        tokenizer = resolved.encoder.encoder.tokenizer

        def edit(params: Any) -> None:
            _entry(params.get("datasets") or {}, dataset, "dataset", f"xc ingest PATH --dataset {dataset}")
            experiments, key = _filled(params, "experiments"), f"{dataset}_{recipe}"
            tokens = _filled(_filled(params["datasets"], dataset), "tokens")
            have = list(tokens.get("tokenizers") or TokensConfig().tokenizers)
            wanted = [name for name in have if not _given_up(name, experiments, key)]
            wanted += [] if tokenizer in wanted else [tokenizer]
            if wanted != have:
                tokens["tokenizers"] = wanted
            stages = {stage: changes.get(stage) or {} for stage in Recipe.stages()}
            source = source_of(resolved, self.root)
            fresh = {
                "dataset": dataset, "recipe": recipe, "base": base, "source": source,
                "tokens": store_name(tokenizer), "stages": stages,
            }  # fmt: skip
            if experiments.get(key) != fresh:
                experiments[key] = fresh

        self._edit_params(edit)
        return self.experiment(dataset, recipe)

    def _edit_params(self, edit: Any) -> None:
        """Change params.yaml under a lock, comments kept; the file is left alone where nothing changes."""
        self.params()  # says what is wrong with a file that cannot be edited
        with artifacts.locked(self.state / "lock" / "params", "an edit of params.yaml", patience=_EDIT_SECONDS):
            yaml = YAML()
            yaml.width = 120
            path = self.root / "params.yaml"
            before = path.read_text("utf-8")
            params = yaml.load(before) or {}
            edit(params)
            after = io.StringIO()
            yaml.dump(params, after)
            if after.getvalue() != before:
                artifacts.write_file(path, after.getvalue())


def resolve(recipe: str, base: str, changes: dict[str, Any]) -> Recipe:
    """Return recipe ``base`` under the name ``recipe`` with ``changes`` (stage -> field -> value)."""
    from xc_core.recipes import find_recipe

    return replace(find_recipe(base).changed(changes), name=recipe)


def store_name(tokenizer: str) -> str:
    """Return the folder name of a tokenizer's store: the name itself, or for a path or hub name a safe form of it."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in tokenizer)
    safe = safe.strip("-.")
    return safe if safe == tokenizer else f"{safe}-{hashlib.sha256(tokenizer.encode()).hexdigest()[:8]}".lstrip("-")


def source_of(recipe: Recipe, root: Path) -> str:
    """Return the file that defines a recipe, relative to ``root``: DVC compares it.

    For a recipe of an installed package, whose file is elsewhere on every machine (or in an environment inside the
    project), the file that pins the versions.
    """
    try:
        spec = importlib.util.find_spec(recipe.module)
    except (ImportError, ValueError):  # a module that was run, not imported
        spec = None
    path = Path(spec.origin).resolve() if spec and spec.origin else None
    environment = Path(sys.prefix).resolve()
    inside = path is not None and path.is_relative_to(root.resolve()) and not path.is_relative_to(environment)
    return path.relative_to(root.resolve()).as_posix() if path is not None and inside else "constraints.txt"


def differences(config: Any, default: Any) -> dict[str, Any]:
    """Return the fields of ``config`` that differ from ``default``, in plain form."""
    ours, theirs = plain(config), plain(default)
    return {name: value for name, value in ours.items() if value != theirs[name]}


def _given_up(tokenizer: str, experiments: Any, key: str) -> bool:
    """Return whether ``key``, about to be replaced, is the one experiment with this tokenizer: a name mistyped, say."""
    store, dataset = store_name(tokenizer), (experiments.get(key) or {}).get("dataset")
    users = {name for name, own in experiments.items() if (own.get("dataset"), own.get("tokens")) == (dataset, store)}
    return users == {key} and tokenizer not in TokensConfig().tokenizers


def _entry(entries: dict[str, Any], name: str, kind: str, make: str) -> Any:
    if name not in entries:
        raise MissingError(
            f"no {kind} {name!r} in params.yaml{nearest(name, entries)}",
            expected=f"one of {', '.join(sorted(entries)) or 'none yet'}",
            do=f"make it: {make}",
        )
    return entries[name] or {}


def _filled(mapping: Any, name: str) -> Any:
    """Return the inner mapping ``name`` of ``mapping``; an empty one is made anew, to be written over several lines."""
    if not mapping.get(name):
        mapping[name] = {}
    return mapping[name]


def _check_shape(content: Any) -> None:
    """Raise ConfigError where params.yaml does not hold mappings of named entries with the fields they should have."""
    if not isinstance(content, dict):
        raise _shape_error(f"a {type(content).__name__}", "the mappings datasets and experiments")
    for part in _KNOWN:
        entries = content.get(part) or {}
        if not isinstance(entries, dict):
            raise _shape_error(f"{part} = {entries!r}", "a mapping from names to settings")
        for name, entry in entries.items():
            _check_entry(part, name, entry or {})


def _check_entry(part: str, name: object, entry: Any) -> None:
    place, fields = f"{part}.{name}", _KNOWN[part]
    if not isinstance(name, str) or not isinstance(entry, dict):
        raise _shape_error(f"{place} = {entry!r}", "a name (in quotes where it looks like a number): settings")
    for key in entry:
        if key not in fields:
            raise _shape_error(f"{place}.{key}{nearest(key, fields)}", f"one of {', '.join(fields)}")
    if part == "experiments" and name != f"{entry.get('dataset')}_{entry.get('recipe')}":
        found = f"{place} with dataset {entry.get('dataset')!r} and recipe {entry.get('recipe')!r}"
        raise _shape_error(found, "both, and a name made of them: DATASET_RECIPE")


def _shape_error(found: str, expected: str) -> ConfigError:
    return ConfigError(found, expected=expected, do="mend the file", where="params.yaml")
