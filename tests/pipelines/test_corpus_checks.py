"""The checks of a corpus pass on a good one and fail for each thing that can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.judging import Judge, rewritten, run_check
from tests.pipelines.judging import instance as instance
from tests.pipelines.judging import judge as judge
from tests.pipelines.judging import own as own
from xc_core.chain import Workspace

pytestmark = pytest.mark.filterwarnings("ignore")

Frame = pl.DataFrame
TABLES = ["documents", "labels", "pairs", "filters"]


def change(workspace: Workspace, table: str, edit: Callable[[Frame], Frame], allow: tuple[str, ...] = ()) -> None:
    """Edit one table of the corpus of toy, and set what its ingest allowed."""
    with rewritten(workspace.folder("corpus", "toy")) as build:
        path = build.path / f"{table}.parquet"
        schema = pq.read_schema(path)
        pq.write_table(edit(pl.read_parquet(path, glob=False)).to_arrow().cast(schema), path)
        build.facts["allow"] = list(allow)


@pytest.mark.parametrize("name", ["schema", "empty_labels", "leakage"])
def test_a_good_corpus_passes(trained: Workspace, judge: Judge, name: str) -> None:
    found = judge(trained, name)
    assert (found.passed, found.went_on) == (True, True)


# schema


def retyped(schema: pa.Schema) -> pa.Schema:
    return schema.set(0, pa.field(schema.names[0], pa.large_string() if "uid" in schema.names else pa.int32()))


def renamed(schema: pa.Schema) -> pa.Schema:
    return schema.set(1, schema.field(1).with_name("other"))


def reordered(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(schema)[::-1])


def longer(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("more", pa.string()))


def shorter(schema: pa.Schema) -> pa.Schema:
    return schema.remove(len(schema) - 1)


@pytest.mark.parametrize(
    ("table", "edit"),
    [("documents", e) for e in (retyped, renamed, reordered, longer, shorter)]
    + [("labels", retyped), ("pairs", retyped), ("filters", renamed)],
)
def test_a_table_with_another_schema_fails_and_is_named(
    own: Workspace, judge: Judge, table: str, edit: Callable[[pa.Schema], pa.Schema]
) -> None:
    with rewritten(own.folder("corpus", "toy")) as build:
        path = build.path / f"{table}.parquet"
        pq.write_table(edit(pq.read_schema(path)).empty_table(), path)
    found = judge(own, "schema")
    assert (found.passed, found.went_on) == (False, False)
    assert found.facts == {"wrong": table}


def test_every_table_with_another_schema_is_named(own: Workspace, judge: Judge) -> None:
    with rewritten(own.folder("corpus", "toy")) as build:
        for table in TABLES:
            pq.write_table(pa.table({"a": [1]}), build.path / f"{table}.parquet")
    assert judge(own, "schema").facts == {"wrong": ", ".join(TABLES)}


@pytest.mark.parametrize("name", ["schema", "empty_labels", "leakage"])
def test_a_corpus_that_differs_from_its_manifest_stops_the_run(
    own: Workspace, judge: Judge, instance: dg.DagsterInstance, name: str
) -> None:
    path = own.folder("corpus", "toy") / "documents.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    result = run_check(own, instance, name)
    assert not result.success
    assert not [event for event in result.get_asset_materialization_events() if event.asset_key.path == ["next"]]


# empty_labels


def bare(pairs: Frame) -> Frame:
    """Remove all labels of one train document."""
    return pairs.filter(pl.col("doc") != 0)


def unseen(pairs: Frame) -> Frame:
    """Remove label 9 from all documents except those of test; each keeps a label."""
    known, label = pl.col("doc") < 240, pl.col("label") == 9
    moved = pairs.with_columns(label=pl.when(known & label).then(8).otherwise(pl.col("label")).cast(pl.Int32))
    return moved.unique().sort("doc", "label")


def bare_and_unseen(pairs: Frame) -> Frame:
    return bare(unseen(pairs))


@pytest.mark.parametrize(
    ("edit", "allow", "passes"),
    [
        (bare, (), False),
        (bare, ("unseen-labels",), False),
        (bare, ("empty-labels",), True),
        (unseen, (), False),
        (unseen, ("empty-labels",), False),
        (unseen, ("unseen-labels",), True),
        (bare_and_unseen, (), False),
        (bare_and_unseen, ("empty-labels",), False),
        (bare_and_unseen, ("unseen-labels",), False),
        (bare_and_unseen, ("empty-labels", "unseen-labels"), True),
    ],
)
def test_bare_documents_and_unseen_labels_fail_unless_each_is_allowed(
    own: Workspace, judge: Judge, edit: Callable[[Frame], Frame], allow: tuple[str, ...], passes: bool
) -> None:
    change(own, "pairs", edit, allow)
    found = judge(own, "empty_labels")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {
        "documents_without_labels": int(edit in (bare, bare_and_unseen)),
        "labels_without_train_documents": int(edit in (unseen, bare_and_unseen)),
    }


@pytest.mark.parametrize(("known", "passes"), [(0, False), (1, True)])
def test_labels_that_our_own_split_left_in_test_pass(own: Workspace, judge: Judge, known: int, passes: bool) -> None:
    change(own, "pairs", unseen)
    with rewritten(own.folder("corpus", "toy")) as build:
        build.facts["split"] = {**build.facts["split"], "labels_in_test_only": known}
    assert judge(own, "empty_labels").passed is passes


def test_a_test_document_without_labels_is_bare_too(own: Workspace, judge: Judge) -> None:
    change(own, "pairs", lambda pairs: pairs.filter(pl.col("doc") < 279))
    found = judge(own, "empty_labels")
    assert (found.passed, found.facts["documents_without_labels"]) == (False, 1)


def test_a_label_of_a_validation_document_is_seen(own: Workspace, judge: Judge) -> None:
    documents = pl.read_parquet(own.folder("corpus", "toy") / "documents.parquet", glob=False)
    validation = documents.with_row_index("doc").filter(pl.col("split") == "validation")["doc"].to_list()

    def kept(pairs: Frame) -> Frame:
        """Keep label 9 on validation documents only."""
        other = pairs.filter(pl.col("label") != 9)
        return pl.concat([other, pairs.filter((pl.col("label") == 9) & pl.col("doc").is_in(validation))])

    change(own, "pairs", kept, allow=("empty-labels",))
    found = judge(own, "empty_labels")
    assert (found.passed, found.facts["labels_without_train_documents"]) == (True, 0)


# leakage


def copied(documents: Frame, columns: list[str], rows: int, source: str = "train") -> Frame:
    """Copy columns of the first documents of a split to the last ones, of test, which has 100 documents.

    A title that is not copied becomes one that no other document has, because titles of the toy world repeat.
    """
    split = pl.when(pl.int_range(pl.len()) >= len(documents) - 100).then(pl.lit("test")).otherwise(pl.col("split"))
    documents = documents.with_columns(split=split)
    from_rows = documents.filter(pl.col("split") == source).head(rows)
    last = documents.tail(rows).with_columns(title=pl.lit("another"))
    last = last.with_columns(from_rows[column] for column in columns)
    return pl.concat([documents.head(len(documents) - rows), last])


@pytest.mark.parametrize(
    ("columns", "rows", "allow", "passes"),
    [
        (["title", "content"], 0, (), True),
        (["title", "content"], 1, (), True),
        (["title", "content"], 2, (), False),
        (["title", "content"], 2, ("empty-labels",), False),
        (["title", "content"], 2, ("shared-texts",), True),
        (["title"], 50, (), True),
        (["content"], 50, (), True),
        (["uid"], 1, (), False),
        (["uid"], 1, ("shared-texts",), False),
        (["uid", "title", "content"], 50, ("shared-texts",), False),
    ],
)
def test_no_uid_and_at_most_one_text_in_a_hundred_may_be_shared(
    own: Workspace, judge: Judge, columns: list[str], rows: int, allow: tuple[str, ...], passes: bool
) -> None:
    change(own, "documents", lambda documents: copied(documents, columns, rows), allow)
    found = judge(own, "leakage")
    assert (found.passed, found.went_on) == (passes, passes)
    texts = rows if {"title", "content"} <= set(columns) else 0
    uids = rows if "uid" in columns else 0
    assert found.facts == {"shared_uids": uids, "shared_texts": texts, "share_of_test": texts / 100}


@pytest.mark.parametrize("column", ["uid", "text"])
def test_validation_documents_may_not_be_shared_either(own: Workspace, judge: Judge, column: str) -> None:
    columns = ["uid"] if column == "uid" else ["title", "content"]
    change(own, "documents", lambda documents: copied(documents, columns, 2, "validation"))
    assert judge(own, "leakage").passed is False


def test_a_corpus_without_test_documents_shares_nothing(own: Workspace, judge: Judge) -> None:
    change(own, "documents", lambda documents: documents.with_columns(split=pl.lit("train")))
    found = judge(own, "leakage")
    assert (found.passed, found.facts["share_of_test"]) == (True, 0.0)
