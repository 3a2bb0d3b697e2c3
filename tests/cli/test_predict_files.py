"""``xc predict --input --output``: the same answers as a plain prediction, also after a stop."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import NGAME, Xc
from tests.conftest import TOPICS, write_lines
from xc_core import artifacts, manifests
from xc_core.chain import Workspace
from xc_core.cli import predict_files
from xc_core.cli.predict import Asked, _answer_file
from xc_core.cli.predict_files import Job, Share
from xc_core.data.formats import texts as texts_of_a_file
from xc_core.data.label_file import check_type
from xc_core.errors import BusyError, DataError, MissingError, UsageError
from xc_core.infer.bundle import open_predictor
from xc_core.infer.champion import in_folder
from xc_core.infer.predictor import Prediction, Predictor

TEXTS = [f'{topic}0 {topic}1, "quoted"\nand {number}' for number in range(5) for topic in TOPICS]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_of_a_file, "ROWS", 8)


def write(path: Path, texts: list[str], column: str = "text") -> Path:
    frame = pl.DataFrame({"id": range(len(texts)), column: texts})
    getattr(frame, {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}[path.suffix])(path)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pl.read_parquet(path, glob=False).to_dicts()
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("source", ["x.parquet", "x.jsonl", "x.csv"])
@pytest.mark.parametrize("target", ["y.parquet", "y.jsonl"])
def test_a_file_gets_the_answers_of_its_texts(
    xc: Xc, ready: Workspace, tmp_path: Path, source: str, target: str
) -> None:
    ended = xc("predict", *NGAME, "-k", 3, "--input", write(tmp_path / source, TEXTS), "--output", tmp_path / target)
    assert (ended.code, ended.out) == (0, f"50 rows answered: {tmp_path / target}\n"), ended.err
    rows = read(tmp_path / target)
    expected = open_predictor(ready.folder("model", "toy", "ngame")).predict(TEXTS, 3)
    assert [row["row"] for row in rows] == list(range(50))
    for row, labels in zip(rows, expected, strict=True):
        assert [(one["uid"], one["title"]) for one in row["labels"]] == [(one.uid, one.title) for one in labels]
        for name in ("score", "probability"):
            found = [one[name] for one in row["labels"]]
            assert found == pytest.approx([getattr(one, name) for one in labels], abs=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, target])


@pytest.mark.parametrize("target", ["y.parquet", "y.jsonl"])
def test_a_model_without_a_dial_writes_no_probability(tmp_path: Path, target: str) -> None:
    job = Job(write(tmp_path / "x.csv", TEXTS[:2]), tmp_path / target, "text")
    job.run(lambda texts: [[Prediction(0, "u", "t", 1.0, None)] for _ in texts])
    label = {"uid": "u", "title": "t", "score": 1.0, "probability": None}
    assert read(tmp_path / target) == [{"row": row, "labels": [label]} for row in range(2)]


@pytest.mark.parametrize(
    ("options", "found"),
    [(("-k", "0"), "k 0"), (("--tail", "2"), "tail 2.0"), (("--min-probability", "50"), "min_probability 50.0")],
)
def test_what_cannot_be_asked_is_refused_before_the_file_is_read(
    xc: Xc, ready: Workspace, tmp_path: Path, options: tuple[str, ...], found: str
) -> None:
    """The file has no column of texts."""
    files = ("--input", write(tmp_path / "x.csv", TEXTS, "other"), "--output", tmp_path / "y.jsonl")
    xc("predict", *NGAME, *options, *files).refused(64, found)


def test_texts_without_words_are_counted(xc: Xc, ready: Workspace, tmp_path: Path) -> None:
    source = write(tmp_path / "x.csv", ["falcon", "", *TEXTS[:8], " "])
    ended = xc("predict", *NGAME, "--input", source, "--output", tmp_path / "y.jsonl")
    assert (ended.code, ended.err) == (0, "note: 2 texts without words, whose labels tell nothing\n")


def test_a_stopped_command_resumes(xc: Xc, ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("--input", write(tmp_path / "x.parquet", TEXTS), "--output", tmp_path / "y.parquet")
    real, asked, stop_after = Predictor.predict, [], 3

    def predict(self: Predictor, texts: list[str], *rest: Any) -> Any:
        if texts and len(asked) == stop_after:
            raise KeyboardInterrupt
        asked.extend([len(texts)] if texts else [])
        return real(self, texts, *rest)

    monkeypatch.setattr(Predictor, "predict", predict)
    assert xc("predict", *NGAME, *files).code == 130
    assert not (tmp_path / "y.parquet").exists()
    stop_after = 100
    ended = xc("predict", *NGAME, *files)
    assert (ended.code, asked) == (0, [8] * 6 + [2]), "no block is answered twice"
    assert "holds blocks of an earlier run" in ended.err
    whole = pl.read_parquet(tmp_path / "y.parquet", glob=False)
    asked.clear()
    assert xc("predict", *NGAME, *files).code == 0
    assert pl.read_parquet(tmp_path / "y.parquet", glob=False).equals(whole)


def test_texts_with_more_likely_labels_than_were_asked_for_are_counted(
    xc: Xc, ready: Workspace, tmp_path: Path
) -> None:
    files = ("--input", write(tmp_path / "x.parquet", TEXTS), "--output", tmp_path / "y.parquet")
    ended = xc("predict", *NGAME, "-k", "1", "--min-probability", "1e-6", *files)
    note = f"note: more than 1 label with a probability of 1e-06 or more for {len(TEXTS)} texts; a larger -k shows them"
    assert ended.code == 0, ended.err
    assert note in ended.err.splitlines()
    assert set(pl.read_parquet(tmp_path / "y.parquet", glob=False)["labels"].list.len()) == {1}
    assert "note" not in xc("predict", *NGAME, "-k", "1", *files).err


@pytest.mark.parametrize(
    ("options", "asked_for"),
    [
        (("-k", "2"), (2, None, 0.0)),
        (("--tail", "1"), (5, 1.0, 0.0)),
        (("--min-probability", "0.3"), (6, None, 0.3)),  # one more than k, to see that there are more
    ],
)
def test_blocks_of_another_question_are_not_used(
    xc: Xc, ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...], asked_for: tuple[int, float | None, float],
) -> None:  # fmt: skip
    files = ("--input", write(tmp_path / "x.parquet", TEXTS), "--output", tmp_path / "y.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(predict_files, "_join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert xc("predict", *NGAME, *files).code == 130
    real, asked = Predictor.predict, list[tuple[Any, ...]]()

    def predict(self: Predictor, texts: list[str], *rest: Any) -> Any:
        asked.extend((text, *rest) for text in texts)
        return real(self, texts, *rest)

    monkeypatch.setattr(Predictor, "predict", predict)
    assert xc("predict", *NGAME, *options, *files).code == 0
    assert asked == [(text, *asked_for) for text in TEXTS]


def test_answers_are_those_of_the_model_that_their_blocks_name(
    ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was packed again while the command started: blocks named the old one, and had answers of the new."""
    folder = Path(shutil.copytree(ready.folder("model", "toy", "ngame"), tmp_path / "model"))
    real, named = Job.__post_init__, list[str]()

    def packed_again(job: Job) -> None:
        real(job)
        if not (folder / "more").exists():
            with artifacts.building(folder, kind="model") as build:
                own = shutil.ignore_patterns(manifests.MANIFEST, artifacts.MADE)
                shutil.copytree(ready.folder("model", "toy", "ngame"), build.path, dirs_exist_ok=True, ignore=own)
                (build.path / "more").write_text("another model")

    def run(job: Job, _: object) -> int:
        named.append(job.question)
        return 0

    monkeypatch.setattr(Job, "run", run)
    with monkeypatch.context() as patched:
        patched.setattr(Job, "__post_init__", packed_again)
        files = {"input": write(tmp_path / "x.csv", TEXTS), "output": tmp_path / "y.jsonl"}
        _answer_file(in_folder(folder), Asked(5, None, 0.0), {**files, "part": None, "column": None})
    assert named == [f"model {manifests.read_manifest(folder).digest()}, k 5, tail None, min_probability 0.0"]


def test_parts_answer_a_file_together(
    xc: Xc, ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "x.parquet", TEXTS)
    assert xc("predict", *NGAME, "--input", source, "--output", tmp_path / "whole.parquet").code == 0
    real, asked = Predictor.predict, []
    monkeypatch.setattr(
        Predictor, "predict", lambda self, texts, *rest: asked.extend(texts) or real(self, texts, *rest)
    )
    command = ("predict", *NGAME, "--input", source, "--output", tmp_path / "y.parquet")
    rows = {1: 18, 3: 16}  # of 7 blocks the first, fourth and last (2 rows), and the third and sixth
    for part, expected in rows.items():
        ended = xc(*command, "--part", f"{part}/3")
        assert (ended.code, ended.err.count("holds blocks")) == (0, 0), ended.err
        assert ended.out.startswith(f"{expected} rows answered, part {part} of 3; when all parts have ended")
        assert not (tmp_path / "y.parquet").exists()
    assert len(asked) == sum(rows.values())
    assert xc(*command, "--part", "1/3").out.startswith("18 rows"), "a part that is given again"
    assert len(asked) == sum(rows.values()), "has nothing to do"
    assert xc(*command).code == 0, "part 2 was lost; the last command answers it"
    assert sorted(asked) == sorted(TEXTS)
    assert pl.read_parquet(tmp_path / "y.parquet", glob=False).equals(
        pl.read_parquet(tmp_path / "whole.parquet", glob=False)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.parquet", "x.parquet", "y.parquet"]


def test_two_processes_never_mix_their_answers_in_one_output(tmp_path: Path) -> None:
    """One asks the old champion, the other one the new champion: the second took the blocks of the first away."""
    source = write(tmp_path / "x.parquet", TEXTS)
    old, new = (Job(source, tmp_path / "y.jsonl", "text", question) for question in ("model 1", "model 2"))

    def during(texts: list[str]) -> list[list[Prediction]]:
        for others in (new.run, lambda ask: new.answer(ask, Share(1, 2))):
            with pytest.raises(BusyError, match=r"answers to y.jsonl, which process \d+ is running"):
                others(answer)
        return answer(texts)

    assert old.run(during) == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.parquet", "y.jsonl"]
    with pytest.raises(BusyError):
        new.answer(lambda _: pytest.fail(str(old.run(answer))), Share(0, 2))
    assert new.answer(lambda texts: answer(texts) if old.answer(answer, Share(1, 2)) else [], Share(0, 2)) == 26


def test_a_disk_without_locks_may_hold_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", _no_locks)
    assert Job(write(tmp_path / "x.parquet", TEXTS), tmp_path / "y.jsonl", "text", "q").run(answer) == 50


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_that_is_wrong_leaves_nothing_beside_the_output(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        Job(write(tmp_path / "x.parquet", TEXTS, "other"), tmp_path / "y.jsonl", "text", "q").run(answer)
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_the_texts_are_those_of_the_column_that_is_named(xc: Xc, ready: Workspace, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "falcon", "body": "castle"}\n')
    command = ("predict", *NGAME, "--input", tmp_path / "x.jsonl", "--output", tmp_path / "y.jsonl")
    for options, title in (((), "falcon"), (("--column", "body"), "castle")):
        assert xc(*command, *options).code == 0
        assert read(tmp_path / "y.jsonl")[0]["labels"][0]["title"] == title


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "-1/3", "1/3/5", "x", "1/99999999", "1 / 3"])
def test_a_part_is_one_of_its_number(xc: Xc, ready: Workspace, tmp_path: Path, part: str) -> None:
    source = write(tmp_path / "x.parquet", TEXTS)
    command = ("predict", *NGAME, "--input", source, "--output", tmp_path / "y.parquet", f"--part={part}")
    xc(*command).refused(64, f"part {part!r}")
    xc("predict", *NGAME, "--part", "1/3", "a text").refused(64, "--part without files")


@pytest.mark.parametrize(
    ("content", "name", "code", "found"),
    [
        (b'{"text": "a"}\n{"txt": "b"}\n', "x.jsonl", 65, "x.jsonl, line 2: found a line without a text"),
        (b'{"text": "a"}\n{"text": 3}\n', "x.jsonl", 65, "line 2: found a line without a text"),
        (
            b'{"text": "\xff"}\n',
            "x.jsonl",
            65,
            "line 1: found text that is not UTF-8 ('utf-8' codec can't decode byte 0xff",
        ),
        (b'{"text": "\\ud800"}\n', "x.jsonl", 65, "line 1: found half of a surrogate pair"),
        (b"txt\na\n", "x.csv", 65, "no column 'text' (nearest: 'txt')"),
        (b"text,text\na,b\n", "x.csv", 65, "2 columns 'text'"),
        (b"PAR1 no", "x.parquet", 65, "a file that cannot be read"),
        (b"", "x.parquet", 65, "a file that cannot be read"),
        (b"", "x.csv", 65, "x.csv: found no row"),
        (b"text,id\na,1\n\nb,2,3\n", "x.csv", 65, "x.csv, row 3: found 3 cells"),
        (b'id,text\n1,"a\n2,b\n3,c\n', "x.csv", 65, "x.csv, row 2: found a quote that is never closed"),
        (b"a", "x.txt", 64, "x.txt"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    xc: Xc, ready: Workspace, tmp_path: Path, content: bytes, name: str, code: int, found: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ended = xc("predict", *NGAME, "--input", tmp_path / name, "--output", tmp_path / "y.parquet")
    ended.refused(code, found)
    assert not (tmp_path / "y.parquet").exists()


def test_both_files_are_needed_and_no_text(xc: Xc, ready: Workspace, tmp_path: Path) -> None:
    source = write(tmp_path / "x.parquet", TEXTS)
    xc("predict", *NGAME, "--input", source).refused(64, "one of --input and --output")
    xc("predict", *NGAME, "--input", source, "--output", tmp_path / "y.jsonl", "a").refused(64, "texts beside them")
    xc("predict", *NGAME, "--input", source, "--output", tmp_path / "y.csv").refused(64, "y.csv")
    xc("predict", *NGAME, "--input", tmp_path / "no.csv", "--output", tmp_path / "y.jsonl").refused(66, "no file")
    xc("predict", *NGAME, "--input", source, "--output", tmp_path / "y.jsonl", "-k", 0).refused(64, "k 0")


def test_an_output_that_is_a_link_to_itself_is_refused_before_any_row_is_answered(
    xc: Xc, ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows were answered first, and then it was called a fault of xc."""
    (tmp_path / "y.jsonl").symlink_to(tmp_path / "y.jsonl")
    monkeypatch.setattr(predict_files, "_write", lambda *_: pytest.fail("a row was answered"))
    ended = xc("predict", *NGAME, "--input", write(tmp_path / "x.csv", TEXTS), "--output", tmp_path / "y.jsonl")
    ended.refused(73, "a symbolic link that leads to itself (", "the link")


def answer(texts: list[str]) -> list[list[Prediction]]:
    return [[Prediction(0, "u", text, 1.0, 0.5)] for text in texts]


def test_answers_that_are_deleted_meanwhile_are_called_missing(tmp_path: Path) -> None:
    """The message said that a block was found, and asked for free space."""
    job = Job(write(tmp_path / "x.csv", TEXTS), tmp_path / "y.jsonl", "text", "q")

    def during(texts: list[str]) -> list[list[Prediction]]:
        shutil.rmtree(job.folder / "00000000", ignore_errors=True)
        return answer(texts)

    with pytest.raises(MissingError, match=r"found no \S+/00000000, which was deleted while"):
        job.run(during)
    assert job.run(answer) == 50


@pytest.mark.parametrize("name", ["x.tsv", "x.ndjson", "x.json", "x.csv.gz", "x.tsv.gz", "x.jsonl.gz"])
def test_a_table_that_an_ingest_reads_is_answered(tmp_path: Path, name: str) -> None:
    """Only .parquet, .jsonl and .csv were taken."""
    separator = "\t" if ".tsv" in name else ","
    rows = [json.dumps({"uid": "a", "text": 'a "dog"'}), json.dumps({"uid": "b", "text": ""})]
    if "sv" in name:
        rows = [f"uid{separator}text", f'a{separator}"a ""dog"""', f"b{separator}"]
    write_lines(tmp_path / name, rows)
    assert Job(tmp_path / name, tmp_path / "y.jsonl", "text", "q").run(answer) == 2
    assert [row["labels"][0]["title"] for row in read(tmp_path / "y.jsonl")] == ['a "dog"', ""]


@pytest.mark.parametrize("name", ["x.csv.gz", "x.tsv.gz", "x.jsonl.gz"])
def test_a_compressed_table_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / name, ["text", "a"] if "sv" in name else ['{"text": "a"}'])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-12])
    with pytest.raises(DataError, match=r" in UTF-8, in a complete gzip file\n"):
        Job(tmp_path / name, tmp_path / "y.jsonl", "text", "q").run(answer)


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.gz"])
def test_a_compressed_table_with_damaged_bytes_is_refused(tmp_path: Path, name: str) -> None:
    start = bytes.fromhex("1f8b0800000000000003")
    (tmp_path / name).write_bytes(start + b"\xff" * 40)  # no block of deflate begins so: zlib.error
    with pytest.raises(DataError, match=r" in UTF-8, in a complete gzip file\n"):
        Job(tmp_path / name, tmp_path / "y.jsonl", "text", "q").run(answer)


def test_gzip_is_named_only_for_a_compressed_table(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"expected: Parquet in UTF-8\n"):
        Job(tmp_path / "x.parquet", tmp_path / "y.jsonl", "text", "q").run(answer)


def test_a_list_of_json_is_named_with_the_command_that_writes_lines(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"text": "a"}]')
    with pytest.raises(DataError, match=r"jq -c '\.\[\]' OLD > NEW"):
        Job(tmp_path / "x.json", tmp_path / "y.jsonl", "text", "q").run(answer)


@pytest.mark.parametrize("name", [".csv", ".jsonl.gz", ".parquet", "x.parquet.gz", "csv"])
def test_an_ending_alone_is_no_name_of_a_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text\na\n")
    with pytest.raises(UsageError, match=r"expected: a name that ends in \.parquet or "):
        Job(tmp_path / name, tmp_path / "y.jsonl", "text", "q")
    with pytest.raises(UsageError):
        check_type(tmp_path / name, "labels")


def test_other_columns_of_a_csv_may_hold_anything(tmp_path: Path) -> None:
    rows = [f"{number},{'long ' * 10_000}{number}" for number in range(30)]  # more than one block of the reader
    (tmp_path / "x.csv").write_text("\n".join(["id,text", *rows, "x30,", ""]), "utf-8")
    assert Job(tmp_path / "x.csv", tmp_path / "y.jsonl", "text", "q").run(answer) == 31
    assert [row["labels"][0]["title"][-3:] for row in read(tmp_path / "y.jsonl")[-2:]] == [" 29", ""]


def test_a_line_of_json_has_a_limit_and_is_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a" * 100}))
    monkeypatch.setattr(texts_of_a_file, "LONGEST", 50)
    with pytest.raises(DataError, match=r"x\.jsonl, line 1: found more than 50 bytes"):
        Job(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "text", "q").run(answer)
    monkeypatch.setattr(texts_of_a_file, "LONGEST", 112)
    assert Job(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "text", "q").run(answer) == 1


def test_blocks_of_json_lines_are_bounded_in_bytes(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{number} " + "long " * 600_000}) for number in range(5)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    sizes: list[int] = []

    def counted(texts: list[str]) -> list[list[Prediction]]:
        sizes.append(len(texts))
        return answer([text[:1] for text in texts])

    assert Job(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "text", "q").run(counted) == 5
    assert sizes == [2, 2, 1]
    assert [row["labels"][0]["title"] for row in read(tmp_path / "y.jsonl")] == list("01234")


def test_a_block_of_parquet_ends_after_four_mebibytes_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that repeats is stored once: the file is small, and its texts are not."""
    monkeypatch.setattr(texts_of_a_file, "ROWS", 1024)
    texts = ["é" * (1 << 19)] * 40
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    sizes: list[int] = []

    def counted(texts: list[str]) -> list[list[Prediction]]:
        sizes.append(len(texts))
        return answer([text[:1] for text in texts])

    assert Job(tmp_path / "x.parquet", tmp_path / "y.jsonl", "text", "q").run(counted) == 40
    assert sizes == [5] * 8


def test_rows_of_parquet_are_counted_across_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_of_a_file, "ROWS", 20)
    pq.write_table(pa.table({"text": [str(n) for n in range(50)]}), tmp_path / "x.parquet", row_group_size=7)
    with (tmp_path / "x.parquet").open("rb") as stream:
        blocks = texts_of_a_file.blocks_of(stream, tmp_path / "x.parquet", "text")
        assert [len(block) for block in blocks] == [20, 20, 10]
    assert Job(tmp_path / "x.parquet", tmp_path / "y.jsonl", "text", "q").run(answer) == 50
    assert [row["labels"][0]["title"] for row in read(tmp_path / "y.jsonl")] == [str(n) for n in range(50)]


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_a_cell_of_parquet_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(texts_of_a_file, "LONGEST", 8)
    pq.write_table(pa.table({"text": pa.array(["a", "é" * 4]).cast(kind)}), tmp_path / "x.parquet")
    job = Job(tmp_path / "x.parquet", tmp_path / "y.jsonl", "text", "q")
    assert job.run(answer) == 2
    pq.write_table(pa.table({"text": pa.array(["a"] * 20 + ["é" * 4 + "a"]).cast(kind)}), job.source)
    with pytest.raises(DataError, match=r"x\.parquet, row 21: found a cell of more than 8 bytes"):
        job.run(answer)


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_the_progress_ends_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    moved: list[int] = []
    meter = type("Meter", (), {"update": lambda self, size: moved.append(size)})()
    monkeypatch.setattr(predict_files, "Meter", lambda *_: nullcontext(meter))
    source = write(tmp_path / name, TEXTS)
    Job(source, tmp_path / "y.jsonl", "text", "q").run(answer)
    assert len(moved) == 7
    assert min(moved) >= 0 and sum(moved) == (50 if name == "x.parquet" else source.stat().st_size)
    assert name != "x.parquet" or moved == [8] * 6 + [2], "a column is read at once, long before its texts are answered"


def test_the_input_is_never_replaced_by_its_answers(tmp_path: Path) -> None:
    source = write(tmp_path / "x.parquet", TEXTS)
    (tmp_path / "y.parquet").symlink_to(source)
    for target in (source, tmp_path / "y.parquet"):
        with pytest.raises(UsageError, match="as input and output"):
            Job(source, target, "text", "q")


def test_an_output_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "y.jsonl").symlink_to(tmp_path / "disk" / "y.jsonl")
    Job(write(tmp_path / "x.parquet", TEXTS), tmp_path / "y.jsonl", "text", "q").run(answer)
    assert (tmp_path / "y.jsonl").is_symlink()
    assert len(read(tmp_path / "disk" / "y.jsonl")) == len(TEXTS)


def test_another_file_of_the_same_size_and_time_is_answered_itself(tmp_path: Path) -> None:
    """As files of an archive with one time for all: only the texts tell blocks of one from those of the other."""
    for name, text in (("a", "river"), ("b", "house")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text}))
        os.utime(tmp_path / f"{name}.jsonl", (1, 1))
    Job(tmp_path / "a.jsonl", tmp_path / "y.jsonl", "text", "q").answer(answer, Share(0, 2))
    Job(tmp_path / "b.jsonl", tmp_path / "y.jsonl", "text", "q").run(answer)
    assert read(tmp_path / "y.jsonl")[0]["labels"][0]["title"] == "house"


def test_a_missing_input_is_no_reason_to_repair_the_champion(ready: Workspace, tmp_path: Path) -> None:
    champion = replace(in_folder(ready.folder("model", "toy", "ngame")), repair="xc promote --repair")
    files = {"input": tmp_path / "no.csv", "output": tmp_path / "y.jsonl", "part": None, "column": None}
    with pytest.raises(MissingError, match="no file") as caught:
        _answer_file(champion, Asked(5, None, 0.0), files)
    assert caught.value.do == "fix the name"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_a_folder_a_pipe_or_a_device_as_output_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Before anything is answered; a pipe or a device would be replaced by a file."""
    make(tmp_path / "y.parquet")
    with pytest.raises(UsageError, match="which is a folder, a named pipe or a device"):
        Job(write(tmp_path / "x.parquet", TEXTS), tmp_path / "y.parquet", "text", "q")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_strings_of_any_kind_are_texts(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).cast(kind)}), tmp_path / "x.parquet")
    assert Job(tmp_path / "x.parquet", tmp_path / "y.jsonl", "text", "q").run(answer) == 3
    assert [row["labels"][0]["title"] for row in read(tmp_path / "y.jsonl")] == ["a", "b", "a"]


def test_a_damaged_block_of_an_earlier_run_is_answered_again(tmp_path: Path) -> None:
    job = Job(write(tmp_path / "x.parquet", TEXTS), tmp_path / "y.parquet", "text", "q")
    first = iter([True])  # the second block stops the run
    with pytest.raises(StopIteration):
        job.run(lambda texts: answer(texts) if next(first) else [])
    block = job.folder / "00000000" / "block.parquet"
    content = bytearray(block.read_bytes())
    content[10] ^= 255
    block.write_bytes(content)
    assert job.run(answer) == 50
    assert [row["labels"][0]["title"] for row in read(tmp_path / "y.parquet")] == TEXTS
