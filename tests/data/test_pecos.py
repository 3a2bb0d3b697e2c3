"""A matrix means the same in every format and type of number that is read; its rows have their place in messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from tests.data.spoil import put
from tests.data.worlds import contents, label_csr, read_world, small_world, write_world
from xc_core.data.formats import ReadOptions, npz
from xc_core.data.formats.base import open_source
from xc_core.data.formats.npz import read_csr
from xc_core.data.ingest import IngestConfig
from xc_core.errors import DataError


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool", "int8", "uint64", "longdouble"])
def test_a_matrix_means_the_same_in_every_format_and_type(tmp_path: Path, kind: str, dtype: str) -> None:
    expected = contents(read_world(write_world(tmp_path / "plain", "pecos")))
    folder = write_world(tmp_path / "other", "pecos")
    for name, rows in (("Y.trn.npz", small_world().train), ("Y.tst.npz", small_world().test)):
        matrix = label_csr(rows, 10).asformat(kind)
        matrix.data = np.ones(len(matrix.data), dtype)
        scipy.sparse.save_npz(folder / name, matrix)
    assert contents(read_world(folder)) == expected


def stored_as(path: Path, name: str, matrix: scipy.sparse.csr_matrix) -> Path:
    """Save a matrix with the name of its format as text, as SciPy before 1.0 did, and not as bytes."""
    np.savez(path, format=name, shape=matrix.shape, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr)
    return path


def test_the_name_of_a_format_may_be_text_or_bytes(tmp_path: Path) -> None:
    matrix = label_csr(small_world().train, 10)
    assert scipy.sparse.load_npz(stored_as(tmp_path / "m.npz", "csr", matrix)).shape == matrix.shape
    assert (read_csr(tmp_path / "m.npz", most_rows=60, most_columns=10) != matrix).nnz == 0


@pytest.mark.parametrize("name", ["lil", "dok", "bsr", "CSR", "", "csr\x00x"])
def test_another_format_is_named(tmp_path: Path, name: str) -> None:
    matrix = label_csr(small_world().train, 10)
    with pytest.raises(DataError, match=r"found the format .*\n  expected: one of csr, csc, coo"):
        read_csr(stored_as(tmp_path / "m.npz", name, matrix), most_rows=60, most_columns=10)


def test_random_matrices_are_read_as_scipy_reads_them(tmp_path: Path) -> None:
    for seed, kind in enumerate(["csr", "csc", "coo"] * 5):
        matrix = scipy.sparse.random(17, 9, 0.3, kind, random_state=seed)
        scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
        found = read_csr(tmp_path / "m.npz", most_rows=17, most_columns=9)
        assert (found != scipy.sparse.load_npz(tmp_path / "m.npz").tocsr()).nnz == 0


def test_repeated_entries_of_a_coo_matrix_are_kept_so_that_the_ingest_sees_them(tmp_path: Path) -> None:
    matrix = scipy.sparse.coo_matrix((np.ones(3), ([0, 0, 1], [2, 2, 1])), (2, 3))
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
    assert read_csr(tmp_path / "m.npz", most_rows=2, most_columns=3).indices.tolist() == [2, 2, 1]


@pytest.mark.parametrize(("kind", "shape"), [("csr", [4, 2]), ("csc", [2, 4])])
def test_positions_whose_differences_overflow_are_refused_before_scipy_follows_them(
    tmp_path: Path, kind: str, shape: list[int]
) -> None:
    indptr = np.array([0, 2**63 - 1, -(2**63) + 1, 0, 5])  # each step is above 0 modulo 2**64
    arrays = {"data": np.ones(5), "indices": np.array([0, 1, 0, 1, 0]), "indptr": indptr, "shape": np.array(shape)}
    np.savez(tmp_path / "m.npz", format=np.array(kind.encode()), **arrays)
    with pytest.raises(DataError, match="positions outside of the matrix"):
        read_csr(tmp_path / "m.npz", most_rows=4, most_columns=4)


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (2, 2)])
def test_a_matrix_larger_than_its_texts_is_refused(tmp_path: Path, rows: int, columns: int) -> None:
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.csr_matrix((2, 3)))
    with pytest.raises(DataError, match="by the size of the text file"):
        read_csr(tmp_path / "m.npz", most_rows=rows, most_columns=columns)


def test_a_matrix_larger_than_the_memory_of_this_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.identity(4, format="csr"))
    monkeypatch.setattr(npz, "free_bytes", lambda: 300)
    with pytest.raises(DataError, match=r"a matrix that takes \d+ bytes") as error:
        read_csr(tmp_path / "m.npz", most_rows=4, most_columns=4)
    assert error.value.expected == "at most the 300 bytes of free memory"


def test_the_labels_bound_the_columns_and_the_documents_the_rows(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world", "pecos")
    labels, texts = ((folder / name).stat().st_size for name in ("output-items.txt", "X.trn.txt"))
    assert labels < texts
    for shape, found in (((60, labels + 2), f"{labels + 2:,} columns"), ((texts + 2, 10), f"{texts + 2:,} rows")):
        scipy.sparse.save_npz(folder / "Y.trn.npz", scipy.sparse.csr_matrix(shape))
        with pytest.raises(DataError, match=f"found {found}"):
            next(open_source(folder, "pecos", ReadOptions())[1].documents("train"))


def test_a_row_of_a_later_block_is_named_by_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IngestConfig, "read_options", lambda self: ReadOptions(block_bytes=257))
    put(write_world(tmp_path / "lines", "xc-text") / "trn_X_Y.txt", 50, b"3:1 3:1")
    with pytest.raises(DataError, match=r"^trn_X_Y\.txt, line 50: found the label 3 twice"):
        read_world(tmp_path / "lines")
    matrix = label_csr(small_world().train, 10)
    matrix.data[matrix.indptr[48]] = 0
    scipy.sparse.save_npz(write_world(tmp_path / "rows", "pecos") / "Y.trn.npz", matrix)
    with pytest.raises(DataError, match=r"^Y\.trn\.npz, row 49: found the relevance 0"):
        read_world(tmp_path / "rows")
