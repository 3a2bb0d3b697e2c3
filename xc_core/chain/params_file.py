"""params.yaml: the datasets and the experiments of a project, read and edited; comments are kept."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xc_core import artifacts
from xc_core.chain.dataset import Dataset, Partition, TokensConfig
from xc_core.chain.names import DATA, checked_name
from xc_core.chain.params_text import without, written
from xc_core.data.ingest import IngestConfig
from xc_core.data.tokens import store_name
from xc_core.errors import ConfigError, MissingError, bare, nearest, shown
from xc_core.locks import locked
from xc_core.outside import text_of, yaml_of
from xc_core.params import changed, dotted, option_text, plain, put
from xc_core.plugins import importing
from xc_core.root import FILE, check_there

if TYPE_CHECKING:
    from xc_core.chain.experiment import Experiment
    from xc_core.recipes import Recipe

PARTS: Final = tuple(field.name for field in fields(Dataset) if field.name != "name")
"""The settings of a dataset, each a mapping: corpus, tokens and so on."""
_KNOWN: Final[dict[str, dict[str, type]]] = {
    "datasets": {"source": str, **dict.fromkeys(PARTS, dict)},
    "experiments": {"dataset": str, "recipe": str, "base": str, "source": str, "tokens": str, "stages": dict},
}
"""The two mappings of the file, and the fields of their entries with their types."""
_EDIT_SECONDS: Final = 30.0
"""How long an edit waits for another one to end."""
_PINS: Final = "constraints.txt"
"""The file that DVC compares for code outside the project, because it pins its version."""


@dataclass(frozen=True)
class ParamsFile:
    """The file params.yaml of the project at ``root``; ``lock`` guards edits."""

    root: Path
    lock: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / FILE

    def read(self) -> dict[str, Any]:
        """Return the content: both mappings, empty if the file lacks them.

        Raises MissingError if there is no file, ConfigError if it is not YAML or not of the right shape.
        """
        try:
            content = yaml_of(text_of(self.path), FILE)
        except FileNotFoundError as error:
            check_there(self.root)
            raise MissingError(
                f"no {self.path}", expected=f"the project's {FILE}", do="change into the project, or set XC_ROOT to it"
            ) from error
        content = {} if content is None else content
        _check_shape(content)
        return {part: content.get(part) or {} for part in _KNOWN}

    def datasets(self) -> list[str]:
        """Return the names of all datasets."""
        return sorted(self.read()["datasets"])

    def experiments(self) -> list[tuple[str, str]]:
        """Return (dataset, recipe) of all experiments."""
        return sorted((entry["dataset"], entry["recipe"]) for entry in self.read()["experiments"].values())

    def recipes(self, dataset: str) -> list[str]:
        """Return the recipes of the experiments of a dataset."""
        return [recipe for name, recipe in self.experiments() if name == dataset]

    def dataset(self, name: str) -> Dataset:
        """Return a dataset with its settings.

        Raises MissingError if there is none, ConfigError for a wrong parameter.
        """
        entry = _dataset_entry(self.read(), checked_name("dataset", name))
        default = Dataset(name)
        changes = {part: entry.get(part) or {} for part in PARTS}
        settings = {part: changed(getattr(default, part), changes[part], f"datasets.{name}.{part}") for part in PARTS}
        return Dataset(name, **settings)

    def experiment(self, dataset: str, recipe: str) -> Experiment:
        """Return an experiment: a dataset and a recipe with the changes of the file.

        Raises MissingError if there is none, ConfigError for a wrong parameter.
        """
        dataset_settings, key = self.dataset(dataset), f"{dataset}_{checked_name('recipe', recipe)}"
        with importing():  # torch, which the settings of parts need
            from xc_core.chain.experiment import Experiment, resolve
            from xc_core.recipes import RECIPES, find_recipe

        variant = "" if recipe in RECIPES else ", with --base KNOWN for a variant"
        make = f"xc train --dataset {dataset} --recipe {recipe}{variant}"
        if (self.root / DATA / dataset / recipe).is_dir():  # of one that the file has lost
            make += f"; data/{dataset}/{recipe} is there: xc status --dataset {dataset} shows how to get it back"
        entries = {k: e for k, e in self.read()["experiments"].items() if e["dataset"] == dataset}
        entry = _entry(entries, key, "experiment", make)
        base = entry.get("base") or recipe
        try:
            find_recipe(base)
        except ConfigError as error:
            if not error.found.startswith("recipe "):  # of a plug-in that cannot be imported
                raise
            where, do = f"{FILE}, experiments.{key}.base", f"fix the entry: {error.do}"
            raise ConfigError(error.found, expected=error.expected, do=do, where=where) from error
        try:
            return Experiment(dataset_settings, resolve(recipe, base, entry.get("stages") or {}))
        except ConfigError as error:  # other datasets may have the recipe too
            where = ": ".join(filter(None, (f"{FILE}, experiments.{key}", error.where)))
            raise ConfigError(error.found, expected=error.expected, do=error.do, where=where) from error

    def partition(self, dataset: str, recipe: str | None) -> Partition:
        """Return a dataset, or, if a recipe is named, an experiment."""
        return self.dataset(dataset) if recipe is None else self.experiment(dataset, recipe)

    def declared(self, dataset: str, recipe: str) -> tuple[str, dict[str, Any]] | None:
        """Return the base of an experiment and its changes as the file has them; None if it has none."""
        entry = self.read()["experiments"].get(f"{dataset}_{recipe}")
        if entry is None:
            return None
        changes = {stage: values for stage, values in (entry.get("stages") or {}).items() if values}
        return entry.get("base") or recipe, changes

    def train_command(self, dataset: str, recipe: str) -> str:
        """Return the command that trains an experiment again as the file has it.

        ``xc train`` takes a variant as the file has it. It starts from a registered recipe itself, with a default
        budget, so the command repeats base and changes, and has no budget.
        """
        from xc_core.recipes import RECIPES

        declared = self.declared(dataset, recipe)
        if declared is None or recipe not in RECIPES:
            return shlex.join(["xc", "train", "--dataset", dataset, "--recipe", recipe])
        return declaring_command(dataset, recipe, *declared)

    def declare_dataset(self, dataset: str, corpus: IngestConfig) -> None:
        """Add a dataset, with those settings that differ from the defaults."""
        checked_name("dataset", dataset)

        def edit(params: Any) -> None:
            entry = _submapping(_submapping(params, "datasets"), dataset)
            entry["source"] = source_of("dataset", self.root)
            entry["corpus"] = differences(corpus, IngestConfig())
            entry.setdefault("tokens", {})

        self._edit(edit)

    def declare_tokenizers(self, dataset: str, names: list[str]) -> None:
        """Add tokenizers to those that a dataset is tokenised with; raise the error of one that cannot be loaded."""
        self._check_tokenizers(dataset, names)

        def edit(params: Any) -> None:
            tokens = _dataset_entry(params, dataset).get("tokens") or {}
            present = list(tokens.get("tokenizers") or TokensConfig().tokenizers)
            if missing := [name for name in names if name not in present]:
                _submapping(_submapping(params["datasets"], dataset), "tokens")["tokenizers"] = [*present, *missing]

        self._edit(edit)

    def declare_experiment(self, dataset: str, recipe: str, base: str, changes: dict[str, Any]) -> Experiment:
        """Add an experiment, or replace its changes, and return it."""
        from xc_core.chain.experiment import resolve

        resolved = resolve(checked_name("recipe", recipe), base, changes)
        tokenizer = resolved.encoder.encoder.tokenizer
        self._check_tokenizers(dataset, [tokenizer])

        def edit(params: Any) -> None:
            _dataset_entry(params, dataset)  # raises the error of one that there is not
            experiments, key = _submapping(params, "experiments"), f"{dataset}_{recipe}"
            tokens = _submapping(_submapping(params["datasets"], dataset), "tokens")
            present = list(tokens.get("tokenizers") or TokensConfig().tokenizers)
            tokenizers = [name for name in present if name == tokenizer or not _only_used_by(name, experiments, key)]
            tokenizers += [] if tokenizer in tokenizers else [tokenizer]
            if tokenizers != present:
                tokens["tokenizers"] = tokenizers
            entry = {
                "dataset": dataset, "recipe": recipe, "base": base, "source": _source(resolved, base, self.root),
                "tokens": store_name(tokenizer), "stages": {stage: part for stage, part in changes.items() if part},
            }  # fmt: skip
            if experiments.get(key) != entry:
                experiments[key] = entry

        self._edit(edit)
        return self.experiment(dataset, recipe)

    def remove(self, dataset: str, recipes: Sequence[str], *, whole: bool) -> None:
        """Remove the entries of some experiments, and that of the dataset if it goes as a ``whole``.

        Comments above an entry stay, as do those below it, which are about the next one.
        """

        def edit(text: str) -> str:
            for recipe in recipes:
                text = without(text, "experiments", f"{dataset}_{recipe}")
            return without(text, "datasets", dataset) if whole else text

        self._rewrite(edit)

    def _check_tokenizers(self, dataset: str, names: list[str]) -> None:
        """Load tokenizers that are new to a dataset: one that is mistyped would fail the tokens of all recipes."""
        from xc_core.data.tokenizer import load
        from xc_core.pretrained import FROM_CORPUS

        for name in names:
            if name != FROM_CORPUS and name not in self.dataset(dataset).tokens.tokenizers:
                load(name)

    def _edit(self, edit: Callable[[Any], None]) -> None:
        """Change the file under a lock; it is not written if nothing changes."""

        def edited(text: str) -> str:
            params = yaml_of(text, FILE, round_trip=True) or {}
            edit(params)
            return written(params)

        self._rewrite(edited)

    def _rewrite(self, edit: Callable[[str], str]) -> None:
        self.read()  # raises the error of a file that cannot be edited
        if edit(present := text_of(self.path)) == present:  # which needs no permission to write
            return
        with locked(self.lock, f"an edit of {FILE}", patience=_EDIT_SECONDS):
            before = text_of(self.path)
            after = edit(before)
            if after != before:
                artifacts.write_file(self.path.resolve(), after)  # a link stays one


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under dotted names as nested changes of a recipe."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        put(changes, name, value)
    return changes


def declaring_command(dataset: str, recipe: str, base: str, changes: dict[str, Any]) -> str:
    """Return the command that declares an experiment with this base and these changes, and trains it."""
    parts = ["xc", "train", "--dataset", dataset, "--recipe", recipe]
    parts += ["--base", base] if base != recipe else []
    for name, value in dotted(changes).items():
        parts += ["--set", f"{name}={option_text(value)}"]
    return shlex.join([*parts, "--budget", "none"])


def _source(recipe: Recipe, base: str, root: Path) -> str:
    """Return the file that DVC compares for a recipe: its resolved settings, or the pins for another package."""
    in_package = recipe.module.startswith("xc_core.recipes.")
    return source_of(base, root) if in_package else _PINS


def source_of(name: str, root: Path) -> str:
    """Return the file of resolved default settings of a recipe (or "dataset"), relative to ``root``.

    If the library is installed outside the project, its path differs between machines. Then return the file that pins
    its version.
    """
    spec = importlib.util.find_spec("xc_core.recipes")
    home = Path(spec.origin).resolve().parent if spec and spec.origin else None
    if home is None or not home.is_relative_to(root.resolve()) or home.is_relative_to(Path(sys.prefix).resolve()):
        return _PINS
    return (home.relative_to(root.resolve()) / "resolved" / f"{name}.yaml").as_posix()


def differences(config: Any, default: Any) -> dict[str, Any]:
    """Return the fields of ``config`` that differ from ``default``, in plain form."""
    ours, theirs = plain(config), plain(default)
    return {name: value for name, value in ours.items() if value != theirs[name]}


def _only_used_by(tokenizer: str, experiments: Any, key: str) -> bool:
    """Return True if only the experiment ``key``, which is being replaced, has this tokenizer (a mistyped name)."""
    store, dataset = store_name(tokenizer), (experiments.get(key) or {}).get("dataset")
    users = {name for name, e in experiments.items() if (e.get("dataset"), e.get("tokens")) == (dataset, store)}
    return users == {key} and tokenizer not in TokensConfig().tokenizers


def _dataset_entry(params: Any, name: str) -> Any:
    return _entry(params.get("datasets") or {}, name, "dataset", f"xc ingest PATH --dataset {name}")


def _entry(entries: dict[str, Any], name: str, kind: str, make: str) -> Any:
    if name not in entries:
        raise MissingError(
            f"no {kind} {name!r} in {FILE}{nearest(name, entries)}",
            expected=f"one of {', '.join(sorted(entries))}" if entries else f"a known {kind}; there is none yet",
            do=f"{'fix the name, or ' if entries else ''}create it: {make}",
        )
    return entries[name] or {}


def _submapping(mapping: Any, name: str) -> Any:
    """Return the inner mapping ``name``; an empty one is replaced, so that it is written over several lines."""
    if not mapping.get(name):
        mapping[name] = {}
    return mapping[name]


def _check_shape(content: Any) -> None:
    """Raise ConfigError unless the content is mappings of named entries with known fields."""
    if not isinstance(content, dict):
        raise _shape_error(f"a {type(content).__name__}", "the mappings datasets and experiments")
    for part in content:
        if part not in _KNOWN:
            raise _shape_error(f"{bare(part)}{nearest(part, _KNOWN)}", f"{' and '.join(_KNOWN)}")
    for part in _KNOWN:
        entries = {} if content.get(part) is None else content[part]
        if not isinstance(entries, dict):
            raise _shape_error(f"{part} = {shown(entries)}", "a mapping from names to settings")
        for name, entry in entries.items():
            _check_entry(part, name, {} if entry is None else entry)


def _check_entry(part: str, name: object, entry: Any) -> None:
    where, fields = f"{part}.{bare(name)}", _KNOWN[part]
    if not isinstance(name, str) or not isinstance(entry, dict):
        raise _shape_error(f"{where} = {shown(entry)}", "a name (in quotes if it looks like a number): settings")
    for key in entry:
        if key not in fields:
            raise _shape_error(f"{where}.{bare(key)}{nearest(key, fields)}", f"one of {', '.join(fields)}")
        if entry[key] is not None and not isinstance(entry[key], fields[key]):
            kind = "text" if fields[key] is str else "a mapping"
            raise _shape_error(f"{where}.{key} = {shown(entry[key])}", kind)
    dataset, recipe = entry.get("dataset"), entry.get("recipe")
    if part == "experiments" and not (dataset and recipe and name == f"{dataset}_{recipe}"):
        found = f"{where} with dataset {shown(dataset)} and recipe {shown(recipe)}"
        raise _shape_error(found, "dataset, recipe, and a name made of both: DATASET_RECIPE")


def _shape_error(found: str, expected: str) -> ConfigError:
    return ConfigError(found, expected=expected, do="fix the file", where=FILE)
