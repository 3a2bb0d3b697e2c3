"""Random changes of an input: of its bytes, and of the values of its JSON, YAML, arrays or columns."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Mutate = Callable[[bytes, Random], bytes]
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(10**20), 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), "", " ", "a", "\u200b", "\x00", "\x9b2J", "\u202e", "\ud800", "é" * 40, "../x", "/etc/passwd", "1",
    "null", "2001-99-99", "!!int foo", "&a [*a]", [], {}, [[]], [None], ["a", 1], {"kind": "triplet"}, {"": 1},
    [[[[]]]],
)  # fmt: skip
TOKENS = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t", b"{", b"}", b"[", b"]", b'"', b"'", b":", b",",
    b";", b"-", b"- ", b"!", b"!!python/object:os.system ", b"&a ", b"*a", b"<<: ", b"? ", b"| ", b"%YAML 1.1\n",
    b"---\n", b"...", b"~", b"1e999", b"-1", b"99999999999999999999", b"0x" + b"f" * 40, b"9" * 5000, b"[" * 200,
    b"NaN", b"{a: " * 60, b"2001-99-99", b"\xc2\x9b", b"\xe2\x80\xae", b"\xe2\x80\x8b", b"\xed\xa0\x80", b"PK\x03\x04",
    b"PAR1", b"\x93NUMPY\x01\x00", b"kind", b"true", b"null", b"60 10", b":1.0", b".", b"..", b"=",
)  # fmt: skip


def bytes_changed(data: bytes, random: Random) -> bytes:
    """Change 1 to 4 places of ``data``."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
        end = min(end, at + random.choice((1, 4, 64, len(data))))
        piece = random.choice((
            b"", random.randbytes(random.choice((1, 4, 20))), random.choice(TOKENS), data[at:end] * 2,
            data[random.randint(0, len(data)) :][:40],
        ))  # fmt: skip
        data = data[:at] + piece + data[random.choice((at, end, end)) :]
    return data


def json_changed(data: bytes, random: Random) -> bytes:
    """Change a value of one line of JSON, or bytes."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    try:
        content = json.loads(lines[at])
    except ValueError:
        return bytes_changed(data, random)
    lines[at] = json.dumps(value_changed(content, random), default=str).encode("utf-8", "surrogatepass")
    return b"\n".join(lines) if random.random() < 0.7 else bytes_changed(data, random)


def document_changed(data: bytes, random: Random) -> bytes:
    """Change a value of a whole JSON document, or bytes; JSON is YAML too."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return bytes_changed(data, random)
    if random.random() < 0.4:
        return bytes_changed(data, random)
    return json.dumps(value_changed(content, random), default=str).encode("utf-8", "surrogatepass")


def value_changed(value: Any, random: Random) -> Any:
    """Return ``value`` with one inner value replaced, added or deleted."""
    if not value or not isinstance(value, dict | list) or random.random() < 0.15:
        return random.choice(NASTY)
    if isinstance(value, list):
        at = random.randrange(len(value))
        return [*value[:at], value_changed(value[at], random), *value[at + random.choice((0, 1, 1)) :]]
    name = random.choice(list(value))
    rest = {key: inner for key, inner in value.items() if key != name or random.random() < 0.5}
    key = name if random.random() < 0.8 else str(random.choice(NASTY))
    return rest if random.random() < 0.1 else {**rest, key: value_changed(value[name], random)}


def arrays_changed(data: bytes, random: Random) -> bytes:
    """Change an array of a saved matrix, or bytes."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = dict(found)
    except Exception:
        return bytes_changed(data, random)
    if not arrays or random.random() < 0.3:
        return bytes_changed(data, random)
    name = random.choice(list(arrays))
    old = arrays[name]
    with np.errstate(all="ignore"):
        half = old.astype("f2") if old.dtype.kind in "biuf" else old
    choices: list[Any] = [
        half, np.array([]), np.array(7), old[..., None],
        np.array([random.choice((-1, 0, 2**31, 2**62))] * 2), np.array(random.choice((b"csc", b"coo", b"lil", b"dia"))),
        old.astype(complex) if old.dtype.kind in "biuf" else np.array("csr"), np.array(["a", "b"]), np.array([np.nan]),
        old[:-1] if old.ndim else old, np.array([{}], object), old.repeat(2), -old if old.dtype.kind in "if" else old,
        np.zeros(3, [("a", "f8")]), old.astype("M8[s]") if old.dtype.kind in "iu" else old,
    ]  # fmt: skip
    new = choices[random.randrange(len(choices))]
    if random.random() < 0.1:
        arrays.pop(name)
    else:
        arrays[random.choice((name, name, name, "row", "col"))] = np.asarray(new)
    target = io.BytesIO()
    np.savez(target, **arrays)
    return target.getvalue()


TYPES: tuple[Any, ...] = (
    pa.string(), pa.large_string(), pa.binary(), pa.int8(), pa.uint64(), pa.int64(), pa.float16(), pa.float64(),
    pa.bool_(), pa.timestamp("ns"), pa.timestamp("s"), pa.date64(), pa.time64("us"), pa.duration("s"), pa.null(),
    pa.list_(pa.string()), pa.list_(pa.int64()), pa.list_(pa.uint64()), pa.list_(pa.list_(pa.int8())),
    pa.decimal128(38, 2), pa.large_list(pa.int32()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()),
    pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.timestamp("s")), pa.list_(pa.int64(), 2),
)  # fmt: skip


def columns_changed(data: bytes, random: Random) -> bytes:
    """Replace a column of a Parquet table by one of another type, or change bytes."""
    if random.random() < 0.5:
        return bytes_changed(data, random)
    try:
        table = pq.read_table(io.BytesIO(data))
    except Exception:
        return bytes_changed(data, random)
    kind, size = random.choice(TYPES), table.num_rows
    name = random.choice([*table.column_names, "uid", "group", "labels", "text"])
    width = getattr(kind, "bit_width", 0) if pa.types.is_primitive(kind) else 0
    raw = random.choice((b"\xff", b"\x00", b"\x7f", random.randbytes(1))) * max(16 * size, 16)
    try:
        column = (
            pa.Array.from_buffers(kind, size, [None, pa.py_buffer(raw)])
            if width
            else pa.array([random.choice(NASTY) for _ in range(size)], kind)
        )
    except Exception:
        column = pa.nulls(size, kind)
    if name in table.column_names:
        table = table.drop_columns([name])
    target = io.BytesIO()
    try:
        pq.write_table(table.append_column(name, column), target)
    except Exception:
        return bytes_changed(data, random)
    return target.getvalue()


SIZES = (0, 1, 2, 3, 8, 16, 17, 64, 10**6, 2**31 - 1, 10**9, 10**12, 2**62, 2**64)
"""Sizes of tensors: some that fit, some that would take all memory."""


def settings_changed(data: bytes, random: Random) -> bytes:
    """Set a setting of a model to a size or to something else, add a setting of other models, or change bytes."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return bytes_changed(data, random)
    if not isinstance(content, dict) or random.random() < 0.3:
        return document_changed(data, random)
    name = random.choice((*map(str, content), "pruned_heads", "id2label", "dtype", "auto_map", "quantization_config",
                          "num_labels", "architectures", "position_embedding_type", "is_decoder"))  # fmt: skip
    value = random.choice((*SIZES, *NASTY, "bert", "gpt2", "vit", "t5", "roberta", "silu", "relative_key", "bfloat16"))
    return json.dumps({**content, name: value}, default=str).encode("utf-8", "surrogatepass")


def tensors_changed(data: bytes, random: Random) -> bytes:
    """Change the header of safetensors (8 bytes of its length, JSON), its length or its end, a number, or bytes."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size]) if size < len(data) else None
    except (ValueError, RecursionError):
        header = None
    kind = random.random()
    if not isinstance(header, dict) or not header or kind < 0.2:
        return bytes_changed(data, random)
    rest = data[8 + size :]
    if kind < 0.3:
        return data[: random.randrange(len(data))]
    if kind < 0.35:
        return random.choice(SIZES).to_bytes(9, "little")[:8] + data[8:]
    if kind < 0.45:
        at = 4 * random.randrange(max(len(rest) // 4, 1))
        number = random.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x00" * 4))
        return data[: 8 + size] + rest[:at] + number + rest[at + 4 :]
    name = random.choice(list(header))
    entry = header[name]
    if kind < 0.8 and isinstance(entry, dict) and isinstance(entry.get("shape"), list):
        key, values = random.choice((
            ("shape", [random.choice(SIZES) for _ in range(random.randrange(4))]), ("shape", entry["shape"][::-1]),
            ("data_offsets", [random.choice(SIZES), random.choice(SIZES)]), ("shape", random.choice(NASTY)),
            ("dtype", random.choice(("F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "X", 1, None))),
        ))  # fmt: skip
        header[name] = {**entry, key: values}
    elif kind < 0.9:
        header[random.choice((f"{name}.x", "bert." + name, "pooler.dense.weight", ""))] = header.pop(name)
    else:
        header = value_changed(header, random)
    text = json.dumps(header, default=str).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + rest


def forged(data: bytes, random: Random) -> bytes:
    """Give an array of a saved matrix a header with a size that its bytes do not fill, or change an array."""
    if random.random() < 0.7:
        return arrays_changed(data, random)
    source, target = io.BytesIO(data), io.BytesIO()
    try:
        with (
            zipfile.ZipFile(source) as old,
            zipfile.ZipFile(target, "w", random.choice((0, zipfile.ZIP_DEFLATED))) as new,
        ):
            chosen = random.choice(old.namelist())
            for name in old.namelist():
                content = old.read(name)
                if name == chosen:
                    kind = random.choice(("<i8", "<i4", "<f8", "|b1", "|S1000000000", "|O", "<U5"))
                    shape = tuple(random.choice(SIZES) for _ in range(random.choice((1, 1, 2))))
                    made = io.BytesIO()
                    np.lib.format.write_array_header_1_0(made, {"descr": kind, "fortran_order": False, "shape": shape})
                    content = made.getvalue() + content[-64:]
                new.writestr(name, content)
    except Exception:
        return bytes_changed(data, random)
    return target.getvalue()
