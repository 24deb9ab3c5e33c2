"""Columns encoded apart and joined: the file must be what Arrow itself would have written."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsysim_sweep.splice import MAGIC, Splicer, _written_struct, read_footer


def encoded(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        if table.num_rows:
            writer.write_table(table, max(1, table.num_rows))
    return sink.getvalue()


def spliced(table: pa.Table, rows: int, metadata: dict[str, str], **options: object) -> bytes:
    sink = io.BytesIO()
    splicer = Splicer(sink)
    for start in range(0, table.num_rows, rows):
        group = table.slice(start, rows)
        splicer.add([encoded(group.select([name]), **options) for name in table.column_names])
    splicer.close(encoded(table.schema.with_metadata(metadata).empty_table(), **options))
    assert splicer.rows == table.num_rows
    return sink.getvalue()


def sample(rows: int) -> pa.Table:
    random = np.random.default_rng(rows)
    return pa.table(
        {
            "name": pa.array(random.choice(["é", "名前", "x"], rows)).dictionary_encode(),
            "whole": pa.array(random.integers(-(2**60), 2**60, rows)),
            "small": pa.array(random.integers(0, 9, rows), pa.int32()),
            "real": pa.array(random.normal(size=rows)),
            "sometimes": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.3),
        }
    )


@pytest.mark.parametrize("options", [{}, {"write_page_index": True, "write_page_checksum": True}])
@pytest.mark.parametrize(
    ("rows", "group"), [(0, 1), (1, 1), (1000, 1000), (1000, 333), (70000, 20000)]
)
def test_every_reader_agrees(
    tmp_path: Path, rows: int, group: int, options: dict[str, bool]
) -> None:
    table = sample(rows)
    path = tmp_path / "spliced.parquet"
    path.write_bytes(spliced(table, group, {"about": "größe"}, compression="zstd", **options))
    checked = pq.read_table(path, page_checksum_verification="write_page_checksum" in options)
    assert checked.equals(table)
    assert checked.schema.metadata[b"about"].decode() == "größe"
    assert polars.read_parquet(path).to_arrow()["real"].to_pylist() == table["real"].to_pylist()
    found = duckdb.sql(f"select name, whole, small, real from '{path}'").fetchall()
    assert found == [tuple(r.values())[:4] for r in table.to_pylist()]
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == -(-rows // group)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        min(group, rows - start) for start in range(0, rows, group)
    ]


def test_statistics_still_skip_row_groups(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(np.arange(4000.0))})
    path = tmp_path / "spliced.parquet"
    path.write_bytes(spliced(table, 1000, {}))
    group = pq.read_metadata(path).row_group(2)
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (2000.0, 2999.0)
    assert pq.read_table(path, filters=[("x", ">", 3500.0)]).num_rows == 499


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 300),
    st.integers(1, 40),
    st.dictionaries(st.text(max_size=9), st.text(max_size=400)),
)
def test_footers_are_read_and_written_unchanged(
    rows: int, columns: int, metadata: dict[str, str]
) -> None:
    names = {f"c{i}": pa.array(np.arange(rows) * i) for i in range(columns)}
    table = pa.table(names).replace_schema_metadata(metadata)
    data = encoded(table, write_page_index=True)
    footer, end = read_footer(data)
    assert b"".join(_written_struct(footer)) == data[end:-8]
    assert data.startswith(MAGIC)
