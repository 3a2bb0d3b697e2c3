"""Settings as boundaries, ``--set`` and params.yaml: what is accepted is in its range, and is read again as it was."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from ruamel.yaml import YAML

from tests.contracts.ranges import SETTINGS, in_range, numbers, parts
from tests.fuzz import mutate
from tests.fuzz.targets import Target, in_file
from xc_core.chain import Workspace
from xc_core.cli.train import changes_of
from xc_core.outside import yaml_of
from xc_core.params import changed, in_use, plain
from xc_core.pretrained import FROM_CORPUS
from xc_core.recipes import Recipe, find_recipe

PARAMS = {
    "datasets": {"toy": {"source": "a", "corpus": {"validation_fraction": 0.2, "allow": ["empty-text"]},
                         "tokens": {"tokenizers": ["minilm"], "max_tokens": 64}, "release": {"max_bin_drop": 3.0},
                         "update": {"allow_loss": 0.2}, "drift": {"query_auc": 0.8, "sample": 100}}},
    "experiments": {"toy_ngame": {"dataset": "toy", "recipe": "ngame", "base": "ngame", "tokens": "minilm",
                                  "stages": {"encoder": {"epochs": 2, "loss": {"kind": "triplet", "margin": 0.2}},
                                             "model": {"min_P_at_1": 60.0, "min_index_recall": 0.8}}}},
}  # fmt: skip
GIVEN = (
    b"encoder.epochs=3\nencoder.loss=supcon\nencoder.loss.temperature=0.1",
    b"encoder.order={kind: random, batch_size: 32}\nfusion.rule.depth=3\nscores.lexical={}",
    b"classifier.epochs=2\nscores.classifier.index=hnsw\nencoder.encoder.name=bag",
    b"model.min_P_at_1=60\nmodel.min_index_recall=0.95\nmodel.max_drop=2\nfusion.tail_cost=1\naudit.radius=0.5",
    b"fusion.rule.tail=0.5\nscores.neighbours.temperature=0.1\nscores.lexical.depth=2\nclassifier.average=0.2",
)
_NUMBER = re.compile(rb"-?\d[\d.]*")


def number_changed(data: bytes, random: Random) -> bytes:
    """Put another number in the place of one; once in three times change bytes."""
    found = list(_NUMBER.finditer(data))
    if not found or random.random() < 1 / 3:
        return mutate.bytes_changed(data, random)
    number = random.choice(found)
    size = 10.0 ** random.randint(-9, 10)
    new = random.choice((f"{random.uniform(-size, size):.6g}", f"{int(random.uniform(-size, size))}", ".nan", "-1"))
    return data[: number.start()] + new.encode() + data[number.end() :]


def params_changed(data: bytes, random: Random) -> bytes:
    """Put another number in the place of one, or change any value."""
    return random.choice((number_changed, mutate.document_changed))(data, random)


def check_settings(settings: Any) -> None:
    """Raise AssertionError if a number of a config, or of a part of it, cannot be right."""
    for part in parts(settings):
        if type(part) in SETTINGS:
            for name in numbers(part):
                assert in_range(part, name, getattr(part, name)), f"{type(part).__name__}.{name}"


def read_again(content: Any) -> Any:
    """Return what a YAML file with this content gives."""
    text = io.StringIO()
    YAML().dump(content, text)
    return yaml_of(text.getvalue())


def check_recipe(recipe: Recipe, base: Recipe) -> None:
    """Check a recipe that was made from ``base``: its numbers, and its settings after a file."""
    stages = {stage: plain(getattr(recipe, stage)) for stage in Recipe.stages()}
    dropped = dict.fromkeys(base.scores.keys() - recipe.scores.keys())
    for stage in stages:
        check_settings(getattr(recipe, stage)) if stage != "scores" else None
        json.dumps(in_use(getattr(recipe, stage)), allow_nan=False)
    for score in recipe.scores.values():
        check_settings(score)
    again = base.changed(read_again({**stages, "scores": {**stages["scores"], **dropped}}))
    assert again == recipe and [*again.scores] == [*recipe.scores], "other settings after a file"


def _set(data: bytes) -> None:
    base = find_recipe("ngame")
    check_recipe(base.changed(changes_of(data.decode("utf-8", "replace").split("\n"))), base)


def _params(root: Path) -> Callable[[], object]:
    params = Workspace(root).params

    def read() -> None:
        for name in params.datasets():
            dataset = params.dataset(name)
            for part in (dataset.corpus, dataset.tokens, dataset.release, dataset.update, dataset.drift):
                check_settings(part)
                again = changed(type(part)(), read_again(plain(part)), name)
                assert again == part, "other settings after a file"
        for name, recipe in params.experiments():
            experiment, declared = params.experiment(name, recipe), params.declared(name, recipe)
            assert declared is not None
            base, changes = declared
            check_recipe(experiment.recipe, find_recipe(base).changed({}))
            known = (FROM_CORPUS, *experiment.dataset.tokens.tokenizers)
            if experiment.tokenizer in known:  # another one is loaded first
                assert params.declare_experiment(name, recipe, base, changes).recipe == experiment.recipe
        params.declare_tokenizers("toy", [])

    return read


def targets(root: Path) -> list[Target]:
    """Return the boundaries of settings, with their files under ``root``."""
    root.mkdir()
    read = in_file(root, "params.yaml", _params(root))
    return [
        Target("params.yaml", "YAML", (json.dumps(PARAMS).encode(),), params_changed, read),
        Target("--set", "numbers", GIVEN, number_changed, _set),
    ]
