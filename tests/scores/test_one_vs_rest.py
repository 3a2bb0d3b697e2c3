"""Linear models of label trees: those of the naive twin, and after many passes the optimum that liblinear finds."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import caching
from scipy.sparse import csr_matrix, random_array
from sklearn.svm import LinearSVC

from tests.naive import growing as naive
from xc_core.scores.trees import coordinate_descent
from xc_core.scores.trees.one_vs_rest import Pairs, Weights, train
from xc_core.scores.trees.sparse_rows import SparseRows
from xc_core.seeds import derive

DOCS, TERMS, CLASSES = 70, 40, 6


def documents() -> csr_matrix:
    """Random documents with a bias; the last has nothing else."""
    rng = np.random.default_rng(0)
    dense = random_array((DOCS, TERMS), density=0.15, rng=rng).toarray().astype(np.float32)
    dense[:, -1], dense[-1, :-1] = 1, 0
    return csr_matrix(dense)


def signs() -> np.ndarray[Any, Any]:
    """Random signs; the first class has one positive document, the last leaves many out."""
    rng = np.random.default_rng(1)
    signs_NC = np.where(rng.random((DOCS, CLASSES)) < 0.2, 1, -1)
    signs_NC[:, 0] = -1
    signs_NC[3, 0] = 1
    signs_NC[::3, -1] = 0
    return signs_NC


def pairs(value: int) -> Pairs:
    docs_P, class_P = np.nonzero(signs() == value)
    return Pairs.of(docs_P, class_P, CLASSES)


def trained(passes: int, threshold: float = 0.0, classes: range = range(CLASSES)) -> Weights:
    rows, seed_of = SparseRows.of(documents()), partial(derive, 7, "test")
    return train(rows, pairs(1), pairs(0), classes, passes=passes, threshold=threshold, seed_of=seed_of)


def dense(weights: Weights) -> np.ndarray[Any, Any]:
    table = np.zeros((TERMS, CLASSES))
    table[weights.terms_W, weights.classes_W] = weights.values_W
    return table


@pytest.mark.parametrize("passes", [1, 2, 5, 12])
def test_weights_are_those_of_loops(passes: int) -> None:
    rows = [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in documents()]
    found = dense(trained(passes))
    for own in range(CLASSES):
        seed = derive(7, "test", own)
        expected = naive.support_vector_machine(rows, signs()[:, own].tolist(), passes, seed)
        assert dict(enumerate(found[:, own])) == pytest.approx(dict.fromkeys(range(TERMS), 0.0) | expected, abs=2e-5)


def test_many_passes_end_near_the_optimum() -> None:
    """Within what liblinear calls converged: projected gradients that differ by 0.1 at most."""
    found, rows = dense(trained(10_000)), documents()
    for own in range(CLASSES):
        kept = np.flatnonzero(signs()[:, own])
        exact = LinearSVC(C=1, fit_intercept=False, tol=1e-8, max_iter=100_000).fit(rows[kept], signs()[kept, own])
        assert found[:, own] == pytest.approx(exact.coef_[0], abs=0.05)
        assert np.abs(found[:, own]).max() > 0.2


def test_a_class_that_has_converged_stays_as_it_is() -> None:
    np.testing.assert_array_equal(trained(3_000).values_W, trained(6_000).values_W)


def test_weights_of_a_class_do_not_depend_on_which_others_are_trained() -> None:
    every, some = trained(5), trained(5, classes=range(2, 4))
    assert set(some.classes_W.tolist()) == {2, 3}
    here = (every.classes_W == 2) | (every.classes_W == 3)
    for name in ("terms_W", "classes_W", "values_W"):
        np.testing.assert_array_equal(getattr(every, name)[here], getattr(some, name))


def test_weights_up_to_the_threshold_are_dropped() -> None:
    every = trained(5)
    bound = float(np.sort(np.abs(every.values_W))[len(every.values_W) // 2])
    kept = trained(5, threshold=bound)
    expected = np.abs(every.values_W) > np.float32(bound)
    np.testing.assert_array_equal(kept.values_W, every.values_W[expected])
    np.testing.assert_array_equal(kept.terms_W, every.terms_W[expected])
    assert 0 < len(kept.values_W) < len(every.values_W)


def double(number: int) -> int:
    return 2 * number


def test_loops_are_compiled_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba raises an error then, at the import."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(double)
    assert coordinate_descent.compiled(double)(4) == 8


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which numba keeps code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.mark.parametrize("content", [b"", b"no pickle"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_code_in_a_damaged_file_is_compiled_and_kept_again(kept: Path, suffix: str, content: bytes) -> None:
    """A file that was empty after a power failure ended every fit, as a fault of xc."""
    assert coordinate_descent.compiled(double)(4) == 8
    (file,) = kept.rglob(f"*.{suffix}")
    file.write_bytes(content)
    assert coordinate_descent.compiled(double)(4) == 8
    assert file.read_bytes() != content
    again: Any = coordinate_descent.compiled(double)
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


def test_code_that_a_full_disk_refuses_is_used_and_not_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", full)
    assert coordinate_descent.compiled(double)(4) == 8
    assert not list(kept.rglob("*.nbc"))
