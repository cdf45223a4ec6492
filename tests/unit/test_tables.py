"""The tables: schemas, checks before writing, bytes, and the three readers that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from findings import tables
from findings.tables import HOSTS, TABLES, VERDICTS, TableError, TableSchema, TableWriter

EXAMPLES: dict[str, Any] = {
    str(pa.string()): "x",
    str(pa.int64()): 3,
    str(pa.float64()): 1.5,
    str(pa.bool_()): True,
}


def row_of(table: TableSchema, **changes: Any) -> dict[str, Any]:
    """A row that fits `table`: the first allowed word, else an example of the column's type."""
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.allowed:
            row[column.name] = str(column.allowed[-1])
        else:
            row[column.name] = EXAMPLES.get(str(column.type), ["gate"])
    return {**row, **changes}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_round_trip_keeps_rows_types_and_descriptions(table: TableSchema, tmp_path: Path) -> None:
    path = tmp_path / table.filename
    tables.write_table(path, [row_of(table)], table)
    data = tables.read_table(path, table)
    assert data.to_pylist() == [row_of(table)]
    for column in table.columns:
        field = pq.read_schema(path).field(column.name)
        assert field.metadata[b"description"].decode() == column.description
        assert field.type == column.type
        assert field.nullable == column.nullable


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_column_is_described_and_every_key_is_a_column(table: TableSchema) -> None:
    assert all(column.description for column in table.columns)
    assert set(table.key) <= set(table.names)
    assert len(set(table.names)) == len(table.names)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_units_stand_in_the_names(table: TableSchema) -> None:
    endings = {"ms": "_ms", "s": "_s", "tokens/s": "_tokens_per_s", "bytes": "_bytes", "%": "_percent"}
    for column in table.columns:
        if column.unit in endings:
            ending = endings[column.unit]
            assert column.name.endswith(ending) or column.name == "seconds", column.name


def test_same_rows_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [row_of(HOSTS, host=name, record=f"r-{name}") for name in ("c", "a", "b")]
    tables.write_table(tmp_path / "one.parquet", rows, HOSTS)
    tables.write_table(tmp_path / "two.parquet", rows[::-1], HOSTS)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert tables.read_table(tmp_path / "one.parquet").column("host").to_pylist() == ["a", "b", "c"]


def test_nullable_columns_may_be_left_out_and_others_may_not(tmp_path: Path) -> None:
    row = row_of(VERDICTS)
    del row["p_value"]
    tables.write_table(tmp_path / "v.parquet", [row], VERDICTS)
    assert tables.read_table(tmp_path / "v.parquet", VERDICTS).column("p_value").to_pylist() == [None]
    del row["finding"]
    with pytest.raises(TableError, match=r"verdicts\.finding: 1 values are missing"):
        tables.write_table(tmp_path / "v.parquet", [row], VERDICTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "perhaps"}, r"verdicts\.verdict: 'perhaps' is not one of holds"),
        ({"blocks": "many"}, r"verdicts\.blocks"),
        ({"speed": 1.0}, "unknown column 'speed'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_the_old_file_stays(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "v.parquet"
    tables.write_table(path, [row_of(VERDICTS)], VERDICTS)
    before = path.read_bytes()
    with pytest.raises(TableError, match=message):
        tables.write_table(path, [row_of(VERDICTS, **change)], VERDICTS)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["v.parquet"]


def test_a_writer_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    good = tables.to_table([row_of(HOSTS)], HOSTS)
    with pytest.raises(RuntimeError), TableWriter(tmp_path / "h.parquet", HOSTS) as writer:
        writer.write(good)
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_empty_tables_are_written_and_read(tmp_path: Path) -> None:
    assert tables.write_table(tmp_path / "h.parquet", [], HOSTS) == 0
    assert tables.read_table(tmp_path / "h.parquet", HOSTS).num_rows == 0
    assert tables.concat([], HOSTS).schema == HOSTS.schema


def test_concat_orders_by_the_key() -> None:
    parts = [tables.to_table([row_of(HOSTS, host=name)], HOSTS) for name in ("b", "a")]
    assert tables.concat(parts, HOSTS).column("host").to_pylist() == ["a", "b"]


def test_reading_something_else_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no table")
    with pytest.raises(TableError, match=r"x\.parquet: not a readable table"):
        tables.read_table(tmp_path / "x.parquet")
    tables.write_table(tmp_path / "h.parquet", [row_of(HOSTS)], HOSTS)
    with pytest.raises(TableError, match="verdicts: columns missing"):
        tables.read_table(tmp_path / "h.parquet", VERDICTS)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_pandas_duckdb_and_polars_read_the_files(table: TableSchema, tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    path = tmp_path / table.filename
    tables.write_table(path, [row_of(table)], table)
    names = list(table.names)
    assert list(pd.read_parquet(path).columns) == names
    assert pl.read_parquet(path).columns == names
    found = duckdb.sql(f"select * from '{path}'")
    assert found.columns == names
    assert found.fetchall()[0][0] == row_of(table)[names[0]]


def test_the_document_is_what_the_schemas_say() -> None:
    text = Path("docs/tables.md").read_text(encoding="utf-8")
    assert tables.document_in(text) == text, "run: python scripts/evidence.py --document docs/tables.md"


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(TableError, match="needs the lines"):
        tables.document_in("# no markers")
