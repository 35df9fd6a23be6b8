"""View files: the valid forms, and the errors of invalid ones: file, field, value found and value expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from persist_core.config.collection import load_collection
from persist_core.config.view import ON_INPUT, ViewConfig, load_view, load_views
from persist_core.contents.batch import BatchDescription
from persist_core.errors import ConfigError, InvalidInput
from persist_core.spark_job.spec import JobSpec

ORDERS = """
source: {path: "in/*.jsonl", format: json}
key: id
columns: {id: bigint, city: string, amount: "decimal(12,2)"}
delete: none
"""


class Files:
    """`collections/orders.yaml` and a folder of views beside it."""

    def __init__(self, folder: Path) -> None:
        self.collections, self.views = folder / "collections", folder / "views"
        for made in (self.collections, self.views):
            made.mkdir()
        (self.collections / "orders.yaml").write_text(ORDERS)

    def write(self, name: str, text: str) -> Path:
        path = self.views / f"{name}.yaml"
        path.write_text(text)
        return path

    def told(self, name: str, text: str) -> str:
        """The error of an invalid file, without its folder."""
        with pytest.raises(ConfigError) as caught:
            load_view(self.write(name, text))
        return str(caught.value).replace(f"{self.views}/", "")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_file_may_be_named_by_a_text(files: Files) -> None:
    path = files.write("by_city", "query: SELECT city, count(*) AS n FROM orders GROUP BY city")
    assert load_view(str(path)) == load_view(path)
    orders = files.collections / "orders.yaml"
    assert load_collection(str(orders)) == load_collection(orders)


def test_a_view_is_a_query_and_finds_its_inputs(files: Files) -> None:
    view = load_view(files.write("by_city", "query: SELECT city, count(*) AS n FROM orders GROUP BY city"))
    assert (view.name, view.inputs, view.schedule, view.read_only) == ("by_city", ("orders",), ON_INPUT, False)
    cron = load_view(
        files.write("daily", "query: SELECT * FROM orders\nschedule: '@daily'\nlimits: {max_updates: 10}\n")
    )
    assert (cron.schedule, cron.limits.max_updates, cron.limits.max_rows) == ("@daily", 10, None)
    function = load_view(files.write("f", "function: my.views:by_city\ninputs: orders\nschedule: null\n"))
    assert (function.inputs, function.definition) == (("orders",), "function my.views:by_city")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "w.yaml: the file: found nothing, expected a mapping; start with query:"),
        ("description: x", "w.yaml: query: found nothing, expected exactly one of query and function"),
        ("query: SELECT * FROM orders\nfunction: a:b", "query: found 'query and function', expected exactly one"),
        ("function: nonsense\ninputs: orders", "function: found 'nonsense', expected module:name"),
        ("function: a:b", "inputs: found 0, expected 1 to 100 inputs"),
        ("query: SELECT 1 AS x", "query: found no table, expected a query over at least one shard; name a collection"),
        ("query: 5", "query: found 5, expected text"),
        ("query: SELECT * FROM orders\nshedule: '@daily'", "shedule: found an unknown field.*did you mean 'schedule'"),
        ("query: SELECT * FROM orders\nschedule: on_imput", "schedule: found 'on_imput', .*did you mean 'on_input'"),
        (
            "query: SELECT * FROM orders\nschedule: often",
            "schedule: found 'often', expected on_input or five cron fields",
        ),
        ("query: SELECT * FROM orders\nlimits: {max_rows: -1}", "limits.max_rows: found -1, expected at least 0"),
        ("query: SELECT * FROM orders\nstart_date: 5", "start_date: found"),
        ("query: SELECT * FROM ordrs", r"query: found table ordrs \(line 1, column 15\), .*did you mean 'orders'"),
        (
            "query: SELECT * FROM orders\ninputs: [orders, ../x]",
            r"inputs\[1\]: found '\.\./x', expected 1 to 128 letters",
        ),
        ("query: SELECT * FROM orders\ninputs: [orders, orders]", "expected each name once"),
        ("query: SELECT * FROM orders\ninputs: [orders, ORDERS]", "expected each name once"),
        (
            "query: SELECT * FROM orders JOIN stores USING (id)\ninputs: [orders, shops]",
            r"query: found table stores \(line 1, column 27\), expected one of inputs \(orders, shops\); .* add it",
        ),
        ("query: SELECT * FROM orders\ninputs: {a: b}", "inputs"),
        ("query: SELECT * FROM orders\ninputs: []", "inputs: found 0, expected 1 to 100 inputs"),
        ("query: SELECT citty FROM orders", r"query: found column citty \(line 1, column 8\), .*did you mean 'city'"),
        ("query: SELECT rand() FROM orders", r"query: found rand\(\) \(line 1, column 8\)"),
        ("query: SELEC 1 FROM orders", "query: .*expected a query that parses; correct it"),
        ("query: SELECT * FROM w", "inputs: found 'w', expected inputs other than the view itself"),
        ("query: |\n  SELECT id\n  FROM orders\n  LIMIT 1\n", r"LIMIT without ORDER BY \(line 3, column 7\)"),
    ],
)
def test_a_wrong_file_says_what_where_and_what_to_do(files: Files, text: str, expected: str) -> None:
    told = files.told("w", text)
    assert re.search(expected, told, re.DOTALL), told
    assert told.startswith("w.yaml: ")


def test_inputs_without_a_file_open_no_way_around_the_parser(files: Files) -> None:
    elsewhere = load_view(files.write("e", "query: SELECT * FROM elsewhere\ninputs: [elsewhere]\n"))
    assert elsewhere.inputs == ("elsewhere",)
    for query in ("TABLE orders", "SELEC 1 FROM orders", "EXECUTE IMMEDIATE 'SELECT 1'"):
        assert "t.yaml: query: found" in files.told("t", f"query: {query}\ninputs: orders\n")
    script = "SELECT TRANSFORM(id) USING 'bash -c id' FROM orders"
    assert "found QueryTransform" in files.told("t", f'query: "{script}"\ninputs: orders\n')


def test_columns_of_a_view_that_names_them_are_known_to_the_next(files: Files) -> None:
    files.write("first", "query: SELECT id, amount * 2 AS twice FROM orders")
    assert "did you mean 'twice'" in files.told("second", "query: SELECT twise FROM first")
    files.write("first", "query: SELECT *, amount * 2 AS twice FROM orders")
    assert load_view(files.write("second", "query: SELECT twise FROM first")).inputs == ("first",)


def test_views_follow_their_inputs_and_wrong_ones_fail_alone(files: Files) -> None:
    files.write("a", "query: SELECT * FROM b")
    files.write("b", "query: SELECT * FROM c JOIN orders USING (id)")
    files.write("c", "query: SELECT * FROM orders")
    wrong = {"wrong": "SELECT nope FROM orders", "zzz": "SELECT * FROM orders |> LIMIT 1"}
    for name, query in wrong.items():
        files.write(name, f"query: {query}")
    views, errors = load_views(files.views)
    assert [view.name for view in views] == ["c", "b", "a"]
    assert [str(error).partition(".yaml")[0] for error in errors] == [f"{files.views}/{name}" for name in wrong]


def test_a_cycle_is_named(files: Files) -> None:
    files.write("a", "query: SELECT * FROM b")
    files.write("b", "query: SELECT * FROM c")
    files.write("c", "query: SELECT * FROM a")
    files.write("beside", "query: SELECT * FROM a")
    views, errors = load_views(files.views)
    assert len(errors) == 3
    for error in errors:
        way = re.search(r"query: found '(.*)', expected inputs that do not read this view", str(error))
        assert way is not None
        assert sorted(set(way[1].split(" -> "))) == ["a", "b", "c"]
    assert [view.name for view in views] == ["beside"]


@pytest.mark.parametrize("form", ["{}", "[{}]", "[orders, {}]"])
def test_a_cycle_of_functions_fails_alone(files: Files, form: str) -> None:
    """Whatever the form of `inputs`, and whatever other cycles there are."""
    for name, reads in {"a": "z", "z": "a", "x": "y", "y": "x", "good": "x"}.items():
        files.write(name, f"function: my.views:f\ninputs: {form.format(reads)}\n")
    files.write("q", "query: SELECT * FROM x JOIN r USING (id)")
    files.write("r", "query: SELECT * FROM q")
    views, errors = load_views(files.views)
    assert [view.name for view in views] == ["good"]
    told = "\n".join(map(str, errors))
    for name, field, way in (("a", "inputs", "a -> z -> a"), ("y", "inputs", "y -> x -> y"), ("q", "query", "q -> r")):
        assert f"{name}.yaml: {field}: found '{way}" in told


@pytest.mark.parametrize("given", ["5", "true", "{a: b}", "[1]", "[true]"])
@pytest.mark.parametrize("what", ["query: SELECT * FROM orders", "function: my.views:f"])
def test_inputs_that_are_no_names_fail_alone(files: Files, what: str, given: str) -> None:
    files.write("wrong", f"{what}\ninputs: {given}\n")
    files.write("good", "query: SELECT * FROM orders")
    views, errors = load_views(files.views)
    assert [view.name for view in views] == ["good"]
    assert ["inputs" in str(error) for error in errors] == [True]


def test_a_view_and_a_collection_cant_share_a_shard(files: Files) -> None:
    assert "name: found 'orders', expected a name that no collection has" in files.told(
        "orders", "query: SELECT * FROM daily\ninputs: [daily]"
    )


def test_a_file_in_the_folder_of_the_others_is_named(files: Files) -> None:
    assert files.told("orders", ORDERS) == (
        "orders.yaml: the file: found a collection, expected a view; move it to collections/"
    )
    path = files.collections / "by_city.yaml"
    for text in ("query: SELECT * FROM orders\n", "function: my.views:by_city\ninputs: orders\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="found a view, expected a collection; move it to views/"):
            load_collection(path)


def test_a_job_is_told_of_a_view_as_it_is(files: Files) -> None:
    view = load_view(files.write("v", "query: SELECT id FROM orders"))
    description = BatchDescription("v", 0, 5, token="x", checkpoint_id="c", epoch=1, parent_id=None, writer="w")
    for dry_run in (None, 4):
        spec = JobSpec(description, view, "attempt", dry_run_as_of=dry_run)
        again = JobSpec.decode(spec.encode())
        assert again == spec
        assert isinstance(again.config, ViewConfig)
    with pytest.raises(InvalidInput, match="found a view, expected a collection"):
        assert again.collection
