"""The tables of the project: explicit Arrow schemas, and one way to write and to read them.

A `TableSchema` names its columns once; the Arrow schema, the checks before writing and docs/tables.md all come from it.
Parquet written here is byte-stable: the same rows give the same bytes (rows sorted by the table's key, no dates, no
names of the writing machine; the only version in a file is that of the locked pyarrow).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from findings.config import ArmKind
from findings.inference import Verdict
from findings.marked import with_marked
from findings.records import Engagement, Kind, Outcome
from findings.writing import whole_file

TABLE_VERSION = 1
ROW_GROUP_ROWS = 65_536
MARKER_BEGIN = "<!-- tables:begin (made by scripts/evidence.py --document; edit scripts/findings/tables.py) -->"
MARKER_END = "<!-- tables:end -->"


class TableError(ValueError):
    """Rows that do not fit a table, or a file that is not one of our tables; the message says which and why."""


class Evidence(StrEnum):
    """Where a row comes from. Never mixed in one figure without saying which is which."""

    IMPORTED = "imported"
    MEASURED = "measured"
    PUBLISHED = "published"


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, what it means, unit (empty where it has none), whether it may be null, allowed words."""

    name: str
    type: Any
    description: str
    unit: str = ""
    nullable: bool = True
    allowed: tuple[str, ...] = ()

    def field(self) -> Any:
        """The Arrow field, with description and unit as its metadata."""
        metadata = {"description": self.description}
        if self.unit:
            metadata["unit"] = self.unit
        if self.allowed:
            metadata["allowed"] = "|".join(self.allowed)
        return pa.field(self.name, self.type, nullable=self.nullable, metadata=metadata)


@dataclass(frozen=True)
class TableSchema:
    """One table: its columns, the key that orders its rows, and the Arrow schema made of both."""

    name: str
    description: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def schema(self) -> Any:
        """The Arrow schema; the metadata carries the table's name and the version of its columns."""
        return pa.schema(
            [column.field() for column in self.columns],
            metadata={"table": self.name, "version": str(TABLE_VERSION), "description": self.description},
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def filename(self) -> str:
        """File name under results/tables."""
        return f"{self.name}.parquet"


_TEXT = pa.string()
_INT = pa.int64()
_REAL = pa.float64()
_BOOL = pa.bool_()


def _text(name: str, description: str, *, allowed: Iterable[str] = ()) -> Column:
    """A column of text that is never null: empty means `not stated`."""
    return Column(name, _TEXT, description, nullable=False, allowed=tuple(allowed))


def _optional(name: str, description: str, *, allowed: Iterable[str] = ()) -> Column:
    """A column of text that is null where there is nothing to say."""
    return Column(name, _TEXT, description, allowed=tuple(allowed))


def _int(name: str, description: str, unit: str = "", *, nullable: bool = True) -> Column:
    return Column(name, _INT, description, unit, nullable)


def _real(name: str, description: str, unit: str = "") -> Column:
    return Column(name, _REAL, description, unit)


def _flag(name: str, description: str, *, nullable: bool = True) -> Column:
    return Column(name, _BOOL, description, nullable=nullable)


_EVIDENCE = _text("evidence", "Where the row comes from.", allowed=Evidence)
_STUDY = _text("study", "Id of the study's configuration (mini, pascal); `published` for the study's own figures.")
_HOST = _text("host", "Generic label of the machine, never its name.")
_ATTEMPT = _text("attempt", "Id of the attempt; empty where the row belongs to none.")
_ENGINE = _text("engine", "Id of the engine; empty where the source does not state it.")
_BUILD = _int("build", "llama.cpp build number of the engine; null where it is not known.")
_BACKEND = _text("backend", "cpu, cuda, vulkan, metal ...; empty where it is not stated.")
_SESSION = _text("session", "Id of the run that measured the row.")
_ARM = _text("arm", "Id of the arm within the attempt; empty where the row has none.")
_ARM_KIND = _text("arm_kind", "What the arm is for.", allowed=ArmKind)
_SPECULATION = _text("speculation", "Type of speculation in the project's words; `none` for a baseline.")
_PROMPT_CLASS = "Class of the prompt (prose, code, structured, list, or the source's own word)"
_OUTCOME = _text("outcome", "How it ended.", allowed=Outcome)
_ENGAGEMENT_WORDS = ("", *Engagement)
_RECORD = _text("record", "File that the row comes from, relative to the project's root (or inside its bundle).")
_SOURCE = _text("source", "For imported and published rows: where the figures stand. Empty for measured rows.")
_LICENCE = _text("licence", "Licence of imported figures. Empty for measured rows.")
_STARTED = _text("started", "Start in UTC, ISO 8601 with a trailing Z; empty where it is not known.")

MEASUREMENTS = TableSchema(
    "measurements",
    "One row per request to an engine (or per published or imported figure).",
    (
        _EVIDENCE,
        _STUDY,
        _HOST,
        _ATTEMPT,
        _ENGINE,
        _BUILD,
        _BACKEND,
        _SESSION,
        _int("block", "Number of the block within the run, from 1; null where there were no blocks."),
        _int("position", "Place of the arm in the order of its block, from 1."),
        _ARM,
        _ARM_KIND,
        _SPECULATION,
        _text("prompt_class", f"{_PROMPT_CLASS}; empty where it is not stated."),
        _text("prompt_id", "Id of the prompt; empty where it is not stated."),
        _int(
            "repetition", "Number of the request within its engine process, from 1, warm-up included.", nullable=False
        ),
        _flag("counted", "False for a warm-up request, which no verdict uses.", nullable=False),
        _OUTCOME,
        _text(
            "engagement",
            "What speculation did in this request. `engaged_without_drafts` is not the speed of speculation.",
            allowed=_ENGAGEMENT_WORDS,
        ),
        _int("prompt_tokens", "Prompt tokens that were evaluated."),
        _real("prompt_ms", "Time to evaluate the prompt.", "ms"),
        _int("predicted_tokens", "Tokens that were generated."),
        _real("predicted_ms", "Time to generate them.", "ms"),
        _real("tg_tokens_per_s", "Generation speed: predicted_tokens / predicted_ms * 1000.", "tokens/s"),
        _real("pp_tokens_per_s", "Prompt speed: prompt_tokens / prompt_ms * 1000.", "tokens/s"),
        _int("draft_tokens", "Tokens that the drafter proposed; null where the engine reports none."),
        _int("accepted_tokens", "Proposed tokens that the target accepted; null where the engine reports none."),
        _real("acceptance", "accepted_tokens / draft_tokens; null without drafted tokens.", "fraction"),
        _int(
            "first_difference_token",
            "Index of the first token that differs from the baseline's; null: equal or unknown.",
        ),
        _flag("degenerate", "True where the text repeats itself without end; null: not checked."),
        _optional("text_sha256", "sha256 of the generated text (or the source's own digest of it)."),
        _real("engine_cpu_s", "CPU time that the engine's process took in this arm and block.", "s"),
        _real("engine_wall_s", "Wall time of the requests of this arm and block.", "s"),
        _real("other_cpu_share", "CPU time of everything else on the machine / (wall time * cores).", "fraction"),
        _int("rss_bytes", "Largest resident memory of the engine's process.", "bytes"),
        _text("model", "Model that generated, by id or the source's name."),
        _text("quantization", "Its quantization; empty where it is not stated."),
        _STARTED,
        _RECORD,
        _SOURCE,
        _LICENCE,
    ),
    ("evidence", "record", "block", "position", "repetition"),
)

OUTCOMES = TableSchema(
    "outcomes",
    "One row per executed thing: a download, a conversion, a probe, a load, a session, an arm of a block.",
    (
        _EVIDENCE,
        _STUDY,
        _HOST,
        _ATTEMPT,
        _text("kind", "What was executed; `block` rows are one arm of one block.", allowed=(*Kind, "figure")),
        _text("subject", "What it was about (id of a model, an engine, attempt/engine/arm ...)."),
        _ENGINE,
        _BUILD,
        _text("converter", "Id of the converter; empty where there was none."),
        _ARM,
        _SESSION,
        _int("block", "Number of the block, for rows of kind block."),
        _OUTCOME,
        _text("reason", "Why it ended so, in the words of the tool where there are any."),
        _text(
            "engagement", "What speculation did; empty where the question does not arise.", allowed=_ENGAGEMENT_WORDS
        ),
        _int("exit_code", "Exit code of the command; negative for a signal; null where there was no command."),
        _real("seconds", "Wall time.", "s"),
        _text("command", "The command, quoted for a POSIX shell; empty where there was none."),
        _text("log_tail", "Last lines of the log."),
        _text("log_sha256", "sha256 of the whole log; empty where there was none."),
        _STARTED,
        _RECORD,
        _optional("prediction", "The pre-check's prediction for a load or an arm, made before it was tried."),
        _text("detail_json", "What the record holds beside this, as JSON with sorted keys."),
    ),
    ("evidence", "record", "block", "arm", "subject"),
)

EFFECTS = TableSchema(
    "effects",
    "One row per block x arm x class of prompts (and `all`): the arm against the baseline of the same block.",
    (
        _EVIDENCE,
        _STUDY,
        _HOST,
        _ATTEMPT,
        _ENGINE,
        _BUILD,
        _BACKEND,
        _SESSION,
        _int(
            "block",
            "Number of the block; null where the source had no blocks (then there is no between-block variance).",
        ),
        _ARM,
        _ARM_KIND,
        _SPECULATION,
        _text("prompt_class", f"{_PROMPT_CLASS}; `all` for every class of the arm together."),
        _text("engagement", "What speculation did in these requests.", allowed=_ENGAGEMENT_WORDS),
        _real(
            "ln_ratio",
            "ln(speed of the arm / speed of the baseline), prompts compared one by one. Null where nothing was drafted "
            "by an arm that should have, or where a side is missing; `reason` says which.",
        ),
        _real(
            "arm_tg_tokens_per_s",
            "Speed of the arm: all tokens of these requests divided by all their time.",
            "tokens/s",
        ),
        _real("baseline_tg_tokens_per_s", "The same of the baseline.", "tokens/s"),
        _int("prompts", "Number of prompts compared.", nullable=False),
        _int("draft_tokens", "Drafted tokens of the arm in these requests; null where the engine reports none."),
        _int("accepted_tokens", "Accepted tokens of the arm in these requests."),
        _real("acceptance", "accepted_tokens / draft_tokens.", "fraction"),
        _text("reason", "Why ln_ratio is null; empty where it is not."),
        _RECORD,
        _SOURCE,
    ),
    ("evidence", "record", "study", "host", "attempt", "engine", "backend", "session", "block", "arm", "prompt_class"),
)

VERDICTS = TableSchema(
    "verdicts",
    "One row per finding x scope x host x engine.",
    (
        _text("finding", "Id of the finding; of the attempt that is the control in scope `control`."),
        _ATTEMPT,
        _text(
            "scope",
            "What the verdict speaks about; `control`: no finding, but whether a gain can be shown here at all.",
            allowed=("as_published", "mechanism", "control"),
        ),
        _STUDY,
        _HOST,
        _ENGINE,
        _BUILD,
        _EVIDENCE,
        _text("verdict", "What the data say.", allowed=Verdict),
        _text("reason", "Why, in one sentence."),
        _ARM,
        _text("prompt_class", f"{_PROMPT_CLASS} that was judged, or `all`; empty where nothing was measured."),
        _real("ln_ratio", "Mean over blocks of ln(speed of the arm / speed of the baseline)."),
        _real("ln_ratio_low", "Lower end of its interval."),
        _real("ln_ratio_high", "Upper end of its interval."),
        _real("change_percent", "(exp(ln_ratio) - 1) * 100.", "%"),
        _real("change_low_percent", "Lower end of its interval.", "%"),
        _real("change_high_percent", "Upper end of its interval.", "%"),
        _int("blocks", "Blocks that the verdict rests on."),
        _int("blocks_needed", "Blocks that would settle it, where it is inconclusive."),
        Column(
            "failed_gates",
            pa.list_(pa.field("item", pa.string(), nullable=False)),
            "Gates that failed.",
            nullable=False,
        ),
        _real("p_value", "p value of the claim tested."),
        _int("holds_until_build", "Last build for which the finding was seen to hold."),
        _int("fails_since_build", "First build for which it was seen not to hold."),
        _text("would_make_testable", "What is missing here; empty where it was tested."),
        _real("published_percent", "The published change.", "%"),
        _text("advice", "What to do about it."),
        _text("command", "How to run it again."),
    ),
    ("finding", "scope", "study", "host", "build", "engine", "evidence"),
)

HOSTS = TableSchema(
    "hosts",
    "One row per machine.",
    (
        _EVIDENCE,
        _HOST,
        _text("os", "Operating system; empty where it is not stated."),
        _text("python", "Version of Python that ran the pipeline; empty for others' machines."),
        _text("cpu", "Processor; empty where it is not stated."),
        _int("cores", "Cores that the pipeline could use."),
        _int("memory_bytes", "Main memory.", "bytes"),
        _text("gpu", "Graphics processor, several joined by ` + `; empty where there is none or it is not stated."),
        _int("gpu_memory_bytes", "Memory of the first graphics processor.", "bytes"),
        _text("compute_capability", "CUDA compute capability of the first one, such as 6.1; empty where not known."),
        _text("driver", "Version of its driver; empty where not known."),
        _text("versions_json", "Versions of the tools, as JSON with sorted keys."),
        _RECORD,
        _SOURCE,
        _LICENCE,
    ),
    ("host", "evidence", "record"),
)

PRECHECK_SCORES = TableSchema(
    "precheck_scores",
    "One row per question x pair x engine: what the pre-check said before the load, and what the engine then did.",
    (
        _STUDY,
        _HOST,
        _ATTEMPT,
        _ENGINE,
        _BUILD,
        _ARM,
        _text("question", "What was predicted.", allowed=("loads", "engages", "fits", "pays")),
        _optional("predicted", "yes, no, or null where the pre-check did not say.", allowed=("yes", "no")),
        _optional("observed", "yes, no, or null where the engine's answer does not tell.", allowed=("yes", "no")),
        _flag("right", "True where both are known and equal; null where one is unknown."),
        _text("reason", "The pre-check's reason."),
        _text("observed_reason", "The engine's reason."),
        _text("record", "Record of the prediction."),
        _text("observed_record", "Record of the load."),
    ),
    ("study", "host", "attempt", "engine", "arm", "question"),
)

TABLES: Mapping[str, TableSchema] = {
    table.name: table for table in (MEASUREMENTS, OUTCOMES, EFFECTS, VERDICTS, HOSTS, PRECHECK_SCORES)
}


def to_table(rows: Iterable[Mapping[str, Any]], table: TableSchema) -> Any:
    """Rows as an Arrow table of `table`'s schema; a nullable column that a row lacks becomes null.

    Raises TableError for an unknown column, a missing one, a value of another type, or a word that is not allowed.
    """
    listed = list(rows)
    known = set(table.names)
    for number, row in enumerate(listed):
        if not known.issuperset(row):
            unknown = sorted(set(row) - known)
            raise TableError(f"{table.name}: row {number} has unknown column {unknown[0]!r}")
    arrays = [_array(column, _values(listed, column.name), table.name) for column in table.columns]
    return check(pa.Table.from_arrays(arrays, schema=table.schema), table)


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """One column's values; None where a row lacks it (rows of a million requests have every column, so try that)."""
    try:
        return [row[name] for row in rows]
    except KeyError:
        return [row.get(name) for row in rows]


def _array(column: Column, values: Sequence[Any], table: str) -> Any:
    """One column as an Arrow array; TableError names the column and the first value that does not fit."""
    try:
        return pa.array(values, type=column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise TableError(f"{table}.{column.name}: {error}") from error


def check(data: Any, table: TableSchema) -> Any:
    """`data` (pyarrow.Table) cast to the schema of `table`, once nulls and words were checked (TableError)."""
    if tuple(data.column_names) != table.names:
        missing = [name for name in table.names if name not in data.column_names]
        extra = [name for name in data.column_names if name not in table.names]
        if missing or extra:
            raise TableError(f"{table.name}: columns missing: {missing}, columns too many: {extra}")
        data = data.select(list(table.names))
    for column in table.columns:
        values = data.column(column.name)
        if not column.nullable and values.null_count:
            raise TableError(f"{table.name}.{column.name}: {values.null_count} values are missing")
        if column.allowed:
            strange = sorted({v for v in pc.unique(values).to_pylist() if v is not None} - set(column.allowed))
            if strange:
                words = ", ".join(column.allowed)
                raise TableError(f"{table.name}.{column.name}: {strange[0]!r} is not one of {words}")
    try:
        return data.cast(table.schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(f"{table.name}: {error}") from error


class TableWriter:
    """Writes a table batch by batch in constant memory; the caller gives the batches in the order of the key.

    The file appears under its name when the block ends without an error, and not at all otherwise.
    """

    def __init__(self, path: Path, table: TableSchema) -> None:
        self.path, self.table, self.rows = path, table, 0

    def write(self, data: Any) -> None:
        """Append one pyarrow.Table, checked against the schema (TableError)."""
        if data.num_rows:
            self._writer.write_table(check(data, self.table), row_group_size=ROW_GROUP_ROWS)
            self.rows += data.num_rows

    def __enter__(self) -> Self:
        schema = self.table.schema
        with contextlib.ExitStack() as stack:
            part = stack.enter_context(whole_file(self.path))
            self._writer = stack.enter_context(
                pq.ParquetWriter(
                    part, schema, compression="zstd", version="2.6", write_statistics=True, store_schema=True
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def write_table(path: Path, rows: Iterable[Mapping[str, Any]] | Any, table: TableSchema) -> int:
    """Write rows (mappings, or a pyarrow.Table) sorted by the table's key; returns their number.

    Nulls sort first; rows that the key does not tell apart keep their order. Raises TableError (see `to_table`) and
    OSError; the file is then as it was.
    """
    data = check(rows, table) if isinstance(rows, pa.Table) else to_table(rows, table)
    data = sort_rows(data, table)
    with TableWriter(path, table) as writer:
        writer.write(data)
    return writer.rows


def sort_rows(data: Any, table: TableSchema) -> Any:
    """`data` in the order of the table's key, nulls first; stable, so equal keys keep their order."""
    numbered = data.append_column("__order", pa.array(range(data.num_rows), pa.int64()))
    keys = [(name, "ascending", "at_start") for name in (*table.key, "__order")]
    return data.take(pc.sort_indices(numbered, sort_keys=keys))


def read_table(path: Path, table: TableSchema | None = None) -> Any:
    """Read one of our tables as a pyarrow.Table; with `table`, its columns are checked.

    Raises TableError for a file that is missing, no Parquet, or holds another table.
    """
    try:
        data = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise TableError(f"{path}: not a readable table ({error}); run the target `tables` again") from error
    return check(data, table) if table is not None else data


def concat(parts: Sequence[Any], table: TableSchema) -> Any:
    """Tables of the same kind as one, in the order of the key; an empty table where there are none."""
    checked = [check(part, table) for part in parts]
    return sort_rows(pa.concat_tables(checked), table) if checked else table.schema.empty_table()


def document() -> str:
    """The Markdown between the markers of docs/tables.md: every column of every table."""
    lines: list[str] = []
    for table in TABLES.values():
        lines += [f"### {table.filename}", "", table.description, f"Rows are ordered by {', '.join(table.key)}.", ""]
        lines += ["| column | type | unit | null | meaning |", "|---|---|---|---|---|"]
        for column in table.columns:
            words = ", ".join(f"`{word}`" if word else "empty" for word in column.allowed)
            meaning = f"{column.description} One of {words}." if words else column.description
            null = "yes" if column.nullable else "no"
            lines.append(f"| {column.name} | {column.type} | {column.unit} | {null} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def document_in(text: str) -> str:
    """`text` with what stands between the markers made anew. Raises TableError where a marker is missing."""
    changed = with_marked(text, MARKER_BEGIN, MARKER_END, f"\n\n{document()}")
    if changed is None:
        raise TableError(f"docs/tables.md needs the lines {MARKER_BEGIN!r} and {MARKER_END!r}")
    return changed
