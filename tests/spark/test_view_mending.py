"""Views after disturbances: rogue writers, killed runs, two concurrent runs, inputs restored, errs, mistakes."""

from __future__ import annotations

import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchDescription
from persist_core.contents.stats import correction_notice
from persist_core.errors import ConfigError, OutdatedDescription, RunFailed, SchemaMismatch, TooManyUpdates
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.protocol.swap import swap
from persist_core.schema import DIFF, ERR_KIND, ERR_MESSAGE, TIME, CollectionSchema, Column
from persist_core.shard.state import Committed
from persist_spark.frame import user_fields
from persist_spark.view.difference import install_desired_into_persist
from persist_spark.view.refresh import run_without_output
from tests.oracle.consolidate import Err
from tests.oracle.view import ViewUpdate, identity, inherited, install_desired
from tests.plain_commit import ErrUpdate
from tests.spark.view_shards import BY_COLOUR, COLOURS, ITEMS, ViewShards, text, view

RED, BLUE = (1, "red", 5), (2, "blue", 7)


def row(**cells: Any) -> str:
    return text(cells)


@pytest.fixture
def shards(spark: SparkSession, tmp_path: Path) -> ViewShards:
    """`items` with a red and a blue one, up to 5."""
    made = ViewShards(spark, tmp_path)
    made.commit("items", ITEMS, 5, [(RED, 1, 1), (BLUE, 2, 1)])
    return made


def test_what_a_rogue_put_in_and_took_out_is_mended_and_counted(shards: ViewShards) -> None:
    shards.refresh(BY_COLOUR)
    right = shards.rows("by_colour")
    rogue = [(("pink", 1), 5, 3), (("red", 5), 5, -1), (("never", 9), 6, -2)]
    shards.commit("by_colour", COLOURS, 7, rogue, [("mine", b"k", b"p", 5, 1)])
    assert [finding.check for finding in fsck(shards.client, "by_colour").violations] == ["counts_not_negative"]
    shards.commit("items", ITEMS, 8, [((3, "red", 1), 7, 1)])
    stats = shards.refresh(BY_COLOUR).stats
    assert stats["corrections"] == 3 + 1 + 2 + 1
    assert (stats["inserted"], stats["retracted"], stats["errs_retracted"]) == (1 + 2, 3, 1)
    assert shards.rows("by_colour") == {row(colour="red", total=6): 1, row(colour="blue", total=7): 1}
    assert right == {row(colour="red", total=5): 1, row(colour="blue", total=7): 1}
    assert not shards.errs("by_colour")
    notice = correction_notice("by_colour", stats)
    assert notice is not None
    assert "7 rows were not as the last refresh left them" in notice
    shards.commit("items", ITEMS, 9, [((4, "red", 1), 8, 1)])
    again = shards.refresh(BY_COLOUR).stats
    assert (again["corrections"], again["updates"]) == (0, 2)
    assert correction_notice("by_colour", again) is None


def test_rows_before_the_first_refresh_are_corrections(shards: ViewShards) -> None:
    shards.commit("by_colour", COLOURS, 2, [(("pink", 1), 1, 2), (("red", 5), 1, 1)])
    stats = shards.refresh(BY_COLOUR).stats
    assert (stats["corrections"], stats["updates"]) == (3, 2)
    assert shards.rows("by_colour") == {row(colour="red", total=5): 1, row(colour="blue", total=7): 1}


def test_uncountable_corrections_are_at_least_the_difference(shards: ViewShards) -> None:
    description = shards.mint(BY_COLOUR)
    assert isinstance(description, BatchDescription)
    key = shards.write(BY_COLOUR, description)
    assert isinstance(stages.append(shards.client, description, key), Committed)
    shards.commit("by_colour", COLOURS, 6, [(("pink", 1), 5, 4)])
    assert description.input_key is not None
    shards.client.blob.delete(description.input_key)
    shards.commit("items", ITEMS, 8, [((3, "red", 1), 7, 1)])
    view_again = view("by_colour", BY_COLOUR.definition + " HAVING sum(n) > 0", ["items"])
    assert shards.refresh(view_again).stats["corrections"] == 4


@pytest.mark.parametrize("killed_after", ["mint", "write", "append"])
def test_a_run_killed_after_any_stage_is_made_good_by_the_next(shards: ViewShards, killed_after: str) -> None:
    description = shards.mint(BY_COLOUR, writer="killed")
    assert isinstance(description, BatchDescription)
    if killed_after != "mint":
        key = shards.write(BY_COLOUR, description)
        if killed_after == "append":
            stages.append(shards.client, description, key)
    shards.commit("items", ITEMS, 8, [((3, "red", 1), 7, 1)])
    stats = shards.refresh(BY_COLOUR).stats
    assert stats["corrections"] == 0
    assert shards.rows("by_colour") == {row(colour="red", total=6): 1, row(colour="blue", total=7): 1}
    assert len(shards.client.state("by_colour").commits) == (2 if killed_after == "append" else 1)
    assert fsck(shards.client, "by_colour").is_clean


def test_of_two_runs_at_once_one_commits_and_nothing_is_lost(shards: ViewShards) -> None:
    first, second = (shards.mint(BY_COLOUR, until, writer=str(until)) for until in (4, 5))
    assert isinstance(first, BatchDescription)
    assert isinstance(second, BatchDescription)
    keys = [shards.write(BY_COLOUR, description) for description in (first, second)]
    again = shards.write(BY_COLOUR, first)
    assert isinstance(stages.append(shards.client, first, keys[0]), Committed)
    assert isinstance(stages.append(shards.client, second, keys[1]), stages.Conflict)
    repeated = stages.append(shards.client, first, again)
    assert isinstance(repeated, Committed)
    assert not repeated.is_new
    with pytest.raises(OutdatedDescription):
        shards.write(BY_COLOUR, second)
    stats = shards.refresh(BY_COLOUR).stats
    assert (stats["updates"], stats["corrections"], shards.client.state("by_colour").upper.time) == (0, 0, 5)
    assert shards.rows("by_colour") == {row(colour="red", total=5): 1, row(colour="blue", total=7): 1}


def test_an_input_restored_to_older_contents_takes_the_view_back(shards: ViewShards) -> None:
    shards.refresh(BY_COLOUR)
    before = shards.rows("by_colour")
    (whole,) = publish_missing(shards.client, shards.client.state("items"))[-1:]
    shards.commit("items", ITEMS, 8, [(BLUE, 6, -1), ((2, "green", 7), 6, 1)])
    shards.refresh(BY_COLOUR)
    assert shards.rows("by_colour") != before
    plan = plan_restore(shards.client, "items", whole)
    assert isinstance(plan, RestorePlan)
    assert isinstance(restore(shards.client, plan, writer="test"), Committed)
    stats = shards.refresh(BY_COLOUR).stats
    assert (shards.rows("by_colour"), stats["corrections"], stats["updates"]) == (before, 0, 2)


def test_errs_go_through_three_levels_and_away_again(shards: ViewShards) -> None:
    top = view("top", "SELECT max(total) AS most FROM by_colour JOIN items USING (colour)", ["by_colour", "items"])
    shards.commit("items", ITEMS, 8, errs=[("value", b'{"id":9}', b"raw", 6, 1)])
    assert shards.refresh(BY_COLOUR).stats["errs"] == 1
    assert shards.refresh(top).stats["errs"] == 2
    of_colours = inherited(Err("value", b'{"id":9}', b"raw"), "items")
    assert shards.errs("by_colour") == {identity(of_colours)[1:]: 1}
    assert shards.errs("top") == {identity(of_colours)[1:]: 1, identity(inherited(of_colours, "by_colour"))[1:]: 1}
    messages = shards.client.open_reader("top").errors()[ERR_MESSAGE].to_pylist()
    assert messages == ["run `persist errors items`, which shows the record"] * 2
    shards.commit("items", ITEMS, 9, [((9, "red", 1), 8, 1)], [("value", b'{"id":9}', b"raw", 8, -1)])
    for each in (BY_COLOUR, top):
        assert shards.refresh(each).stats["errs_retracted"] > 0
        assert not shards.errs(each.name)
    assert shards.rows("top") == {row(most=7): 1}
    assert fsck(shards.client, "top").is_clean


MARKER = "ada@example.com"


def test_no_stored_byte_of_a_view_holds_a_record_of_its_inputs(shards: ViewShards) -> None:
    """Chains, refreshes that retract and heal, dry runs: every object below the views, as text and as parts' values."""
    top = view("top", "SELECT max(total) AS most FROM by_colour", ["by_colour"])
    bad: list[ErrUpdate] = [
        ("value", b'{"id":9}', f'{{"id":9,"mail":"{MARKER}"}}'.encode(), 6, 1),
        ("key", MARKER.encode(), MARKER.encode(), 6, 1),
        ("key", None, MARKER.encode(), 6, 2),
    ]
    shards.commit("items", ITEMS, 8, errs=bad)
    for refreshed_at in (7, 8):
        if refreshed_at == 8:
            shards.commit("items", ITEMS, 9, errs=[("value", b'{"id":9}', bad[0][2], 8, -1)])
            shards.dry_run(BY_COLOUR, refreshed_at)
        for each in (BY_COLOUR, top):
            shards.refresh(each)
    wanted = Counter({identity(inherited(Err(kind, key, raw), "items"))[1:]: n for kind, key, raw, _, n in bad[1:]})
    assert shards.errs("by_colour") == wanted
    blob = shards.client.blob
    searched = [entry.key for entry in blob.list_keys_and_metadata("") if not entry.key.startswith("items/")]
    assert sum(key.endswith(".parquet") for key in searched) >= 4
    for key in searched:
        found = blob.get(key)
        assert found is not None
        if key.endswith(".parquet"):
            found += repr(pq.read_table(io.BytesIO(found)).to_pylist()).encode()
        assert MARKER.encode() not in found, key
    assert MARKER in repr(shards.client.open_reader("items").errors().to_pylist())


def test_a_dry_run_says_what_would_change_and_changes_nothing(shards: ViewShards) -> None:
    fresh = shards.dry_run(BY_COLOUR, 4)
    assert (fresh.stats["inserted"], fresh.stats["rows"], shards.client.shards()) == (2, 2, ["items"])
    shards.refresh(BY_COLOUR)
    shards.commit("items", ITEMS, 8, [((3, "red", 1), 7, 1)], [("value", b"k", b"p", 7, 1)])
    keys = {entry.key for entry in shards.client.blob.list_keys_and_metadata("")}
    state = shards.client.state("by_colour")
    dry_run = shards.dry_run(BY_COLOUR, 7)
    assert (dry_run.stats["inserted"], dry_run.stats["retracted"], dry_run.stats["errs_inserted"]) == (1, 1, 1)
    oks = [update for update in dry_run.sample if "colour" in update]
    assert oks == [
        {DIFF: -1, "colour": "red", "total": 5},
        {DIFF: 1, "colour": "red", "total": 6},
    ]
    (err,) = (update for update in dry_run.sample if "colour" not in update)
    assert sorted(err) == [DIFF, ERR_KIND, ERR_MESSAGE]
    assert len(dry_run.sample) == 3
    left = {entry.key for entry in shards.client.blob.list_keys_and_metadata("")} - keys
    assert [key.rpartition("/")[0] for key in left] == ["by_colour/dry-runs"]
    assert shards.client.state("by_colour") == state
    other = view("by_colour", "SELECT colour, max(n) AS total FROM items GROUP BY colour", ["items"])
    assert "AS BIGINT" not in other.definition
    with pytest.raises(SchemaMismatch):
        shards.dry_run(other, 7)


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ("SELECT nope FROM items", ConfigError, r"view w: the query is refused by Spark: .*UNRESOLVED_COLUMN"),
        ("SELECT no_such_function(id) FROM items", ConfigError, "UNRESOLVED_ROUTINE"),
        ("DROP TABLE items", ConfigError, "PARSE_SYNTAX_ERROR"),
        ("SELECT 1 AS x) SELECT (2", ConfigError, "refused by Spark"),
        ("SELECT id, id FROM items", ConfigError, "found two columns named 'id'"),
        ("SELECT id, n AS ID FROM items", ConfigError, "found two columns named"),
        ("SELECT NULL AS nothing FROM items", ConfigError, "has type void, which shards do not support; cast"),
        ("SELECT INTERVAL 1 DAY AS d FROM items", ConfigError, "column 'd' has type interval day"),
        ("SELECT array(NULL) AS a FROM items", ConfigError, "column 'a' has type array<void>"),
        ("SELECT TIMESTAMP_NTZ'2026-01-01' AS t FROM items", ConfigError, "type timestamp_ntz.*cast it"),
        ("SELECT id AS _persist_time FROM items", ConfigError, "reserved.*alias"),
        (
            "SELECT assert_true(n > 6) IS NULL AS c FROM items",
            RunFailed,
            r"the refresh as of 4 failed: .*not true.*Nothing was",
        ),
    ],
)
def test_a_wrong_query_says_so_and_commits_nothing(
    shards: ViewShards, query: str, error: type[Exception], said: str
) -> None:
    config = view("w", query, ["items"])
    with pytest.raises(error, match=f"(?s){said}"):
        shards.refresh(config)
    assert not shards.client.state("w").commits
    assert not [e.key for e in shards.client.blob.list_keys_and_metadata("w/batches/") if "manifest" in e.key]


def test_limits_bound_a_refresh(shards: ViewShards) -> None:
    for limit in ("max_updates", "max_rows"):
        config = view("few", "SELECT * FROM items", ["items"], limits={limit: 1})
        with pytest.raises(TooManyUpdates, match=rf"has 2 {limit[4:]}; at most 1 are allowed \(limits\.{limit}\)"):
            shards.refresh(config)
    assert not shards.client.state("few").commits


def reds(spark: SparkSession, inputs: dict[str, DataFrame]) -> DataFrame:
    """A view of a DAG author's own making: no SQL text."""
    del spark
    return inputs["items"].where("colour = 'red'").select("id")


def nothing_of_use(spark: SparkSession, inputs: dict[str, DataFrame]) -> int:
    del spark
    return len(inputs)


def stumbling(spark: SparkSession, inputs: dict[str, DataFrame]) -> DataFrame:
    del spark
    return inputs["itms"]


def asking_for_too_much(spark: SparkSession, inputs: dict[str, DataFrame]) -> DataFrame:
    del spark
    return inputs["items"].select("nope")


def test_a_function_may_stand_for_the_query(shards: ViewShards) -> None:
    module = __name__
    config = view("reds", "", ["items"]).model_copy(update={"query": None, "function": f"{module}:reds"})
    assert shards.refresh(config).stats["rows"] == 1
    assert shards.rows("reds") == {row(id=1): 1}
    for function, error, said in (
        (f"{module}:missing", ConfigError, "which the Spark job cannot import"),
        ("no_such_module:x", ConfigError, r"cannot import.*spark\.submit\.pyFiles=FILE"),
        (f"{module}:nothing_of_use", ConfigError, "returned int; expected a DataFrame"),
        (f"{module}:asking_for_too_much", ConfigError, r"asking_for_too_much is refused by Spark: .*nope"),
        (f"{module}:stumbling", RunFailed, "view wrong: function .*stumbling raised KeyError: 'itms'. Nothing was"),
    ):
        wrong = config.model_copy(update={"name": "wrong", "function": function})
        with pytest.raises(error, match=said):
            shards.refresh(wrong)


CELLS = CollectionSchema(
    key=(), values=(Column("s", "string"), Column("d", "double"), Column("b", "binary"), Column("x.`y", "boolean"))
)


def cells_text(values: tuple[Any, ...]) -> str:
    return text({str(number): value for number, value in enumerate(values)})


def test_the_difference_is_the_oracles(spark: SparkSession, persist_seed: int) -> None:
    draw = random.Random(f"{persist_seed}/difference")

    def cells() -> tuple[Any, ...]:
        return (
            draw.choice((None, "", "ü𝄞")),
            draw.choice((None, 0.0, -0.0, float("nan"), 1.5)),
            draw.choice((None, b"", b"\xff")),
            draw.choice((None, True)),
        )

    desired = [cells() for _ in range(60)]
    persisted = [(*cells(), draw.randrange(20), draw.choice((-2, -1, 1, 2, 3))) for _ in range(60)]
    fields = user_fields(CELLS)
    bounded = [T.StructField(TIME, T.LongType()), T.StructField(DIFF, T.LongType())]
    installed = install_desired_into_persist(
        spark.createDataFrame(desired, T.StructType(fields)),
        None,
        spark.createDataFrame(persisted, T.StructType(fields + bounded)),
        None,
        schema=CELLS,
        at=20,
    )
    run_without_output(installed.updates)
    outcome = installed.outcome(installed.updates)
    found = Counter({cells_text(r[:4]): r[DIFF] for r in installed.updates.collect()})
    wanted = install_desired(desired, [ViewUpdate(r[:4], r[4], r[5]) for r in persisted], at=20)
    assert found == Counter({cells_text(u.row): u.diff for u in wanted if isinstance(u.row, tuple)})
    assert all(r[TIME] == 20 for r in installed.updates.collect())
    assert (outcome.after.rows, outcome.before.rows) == (60, sum(r[5] for r in persisted))
    assert outcome.report["inserted"] - outcome.report["retracted"] == outcome.after.rows - outcome.before.rows
    assert outcome.counts.updates == len(wanted)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_digests_of_more_than_2_to_the_31_rows_do_not_overflow(spark: SparkSession, ansi: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    persisted = T.StructType([*user_fields(CELLS), T.StructField(DIFF, T.LongType())])

    def digest(*diffs: int) -> tuple[int, int]:
        """A view of some copies of each of three rows."""
        rows = [(f"{number}", 1.5, b"", None, diff) for number, diff in enumerate(diffs)]
        nothing = session.createDataFrame([], persisted).drop(DIFF)
        found = session.createDataFrame(rows, persisted)
        installed = install_desired_into_persist(nothing, None, found, None, schema=CELLS, at=20)
        run_without_output(installed.updates)
        return installed.outcome(installed.updates).before.digest

    copies = (2**31, 2**33 + 1, 2**40)  # more than 2**32 of hashes in half a hash each: past 2**63
    alone = [digest(*(int(number == place) for number in range(3))) for place in range(3)]
    expected = tuple(sum(n * each[i] for n, each in zip(copies, alone, strict=True)) % 2**63 for i in range(2))
    assert digest(*copies) == expected


REKEYED = CollectionSchema(
    key=(Column("colour", "string", nullable=False), Column("id", "int", nullable=False)), values=(Column("n", "int"),)
)


def test_a_view_writes_the_difference_to_another_generation(shards: ViewShards) -> None:
    shards.refresh(BY_COLOUR)
    shards.commit("items~rebuild", REKEYED, 5, [(("red", 1, 5), 1, 1), (("blue", 2, 9), 2, 1), (("red", 3, 1), 3, 1)])
    ours, theirs = (shards.client.state(name) for name in ("items", "items~rebuild"))
    assert isinstance(swap(shards.client, ours, theirs, keep_ms=None, writer="test"), Committed)
    stats = shards.refresh(BY_COLOUR).stats
    assert (stats["inserted"], stats["retracted"], stats["corrections"]) == (2, 2, 0)
    assert shards.rows("by_colour") == {row(colour="red", total=6): 1, row(colour="blue", total=9): 1}
    assert shards.changes("by_colour", 4, 5) == {
        row(colour="red", total=5): -1,
        row(colour="red", total=6): 1,
        row(colour="blue", total=7): -1,
        row(colour="blue", total=9): 1,
    }
    for name in ("items", "by_colour"):
        assert fsck(shards.client, name).is_clean
