"""`persist run`: rounds, conflicts, failures and time-outs, with a stand-in for `spark-submit` and all else real."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, OutdatedDescription, PersistError, RunFailed, TooManyErrors
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.protocol import run as local_run
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput
from persist_core.spark_job.answer import error_of_kind
from persist_core.spark_job.installation import HUGE_METHODS, job_path
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess, _Running, tuned_conf
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import parse_time
from tests.core.cli.world import UNTIL, World
from tests.core.cli.world import world as world  # the fixture
from tests.core.spark_job.test_job_spec import CONFIG, DESCRIPTION
from tests.one_run import run_one
from tests.servers.backends import on_each_consensus


@on_each_consensus
def test_a_run_commits_and_the_next_has_nothing_to_do(world: World) -> None:
    world.drop("a.txt", 1, 2)
    config = world.config()
    report = world.run(config)
    assert [(r.commit.lower, r.commit.upper, r.input_files) for r in report.rounds] == [(0, UNTIL, 1)]
    assert world.ids() == [1, 2]
    again = world.run(config)
    assert again.rounds == ()
    assert "already in shard orders" in again.reason
    assert len(world.calls()) == 1


def test_an_interval_without_input_needs_no_spark(world: World) -> None:
    report = world.run(world.config())
    assert [r.interval for r in report.rounds] == [f"0 -> {UNTIL}"]
    assert world.calls() == []


@on_each_consensus
def test_dated_input_within_limits_takes_as_many_rounds_as_dates(world: World) -> None:
    for day in (1, 2):
        world.drop(f"2026-01-0{day}.txt", day)
    source = {"path": "in/{date:%Y-%m-%d}.txt", "format": "json"}
    config = world.config(source=source, time="path", limits={"max_files": 1})
    report = world.run(config, parse_time("2026-01-03"))
    assert [r.commit.upper for r in report.rounds] == [parse_time(f"2026-01-0{day}") for day in (2, 3)]
    assert world.ids(parse_time("2026-01-02") - 1) == [1]
    assert world.ids() == [1, 2]


def test_a_run_of_one_millisecond_has_read_the_day_it_begins(world: World) -> None:
    """Unlike a correction, which moves the upper into a day whose files are not due: it has read what there was."""
    source = {"path": "in/{date:%Y-%m-%d}.txt", "format": "json"}
    config, day = world.config(source=source, time="path"), parse_time("2026-01-02")
    world.drop("2026-01-01.txt", 1)
    for until in (day, day + 1):
        world.run(config, until)
    world.drop("2026-01-02.txt", 2)
    minted = stages.mint(world.client, config, until=parse_time("2026-01-03"), writer="test")
    assert isinstance(minted, stages.Minted)
    assert minted.description.input_key is not None
    (late,) = load_frozen(world.client.blob, minted.description.input_key, FrozenInput).files
    assert late.date_ms == day


@on_each_consensus
def test_a_lost_append_is_minted_again_in_the_same_run(world: World) -> None:
    world.drop("a.txt", 1)
    world.spark_will("race")
    report = world.run(world.config())
    assert report.conflicts == 1
    assert [(r.commit.lower, r.commit.upper) for r in report.rounds] == [(1, UNTIL)]
    assert world.ids() == [1]


def test_a_writer_that_always_wins_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "MAX_CONFLICTS", 2)
    world.drop("a.txt", 1)
    world.spark_will("beaten")
    with pytest.raises(RunFailed, match="shard orders: lost 2 appends to other writers"):
        world.run(world.config())
    assert len(list_conflicts(world.client.blob, "orders")) == 2


def test_a_job_that_calls_a_valid_description_outdated_fails(world: World) -> None:
    """Or an empty batch would be committed in its place, and its input would count as consumed."""
    world.drop("a.txt", 1)
    world.spark_will("fail", OutdatedDescription.kind)
    with pytest.raises(RunFailed, match="the upper of shard orders is still 0"):
        world.run(world.config())
    assert world.client.state("orders").commits == ()


@pytest.mark.parametrize("kind", [TooManyErrors, InvalidInput])
def test_the_jobs_own_error_is_raised(world: World, kind: type[PersistError]) -> None:
    world.drop("a.txt", 1)
    world.spark_will("fail", kind.kind)
    with pytest.raises(kind, match="the job says why"):
        world.run(world.config())
    assert world.client.state("orders").commits == ()


def test_an_error_of_a_kind_from_elsewhere_fails_the_run() -> None:
    assert isinstance(error_of_kind("unexpected", "x"), RunFailed)
    assert str(error_of_kind("unexpected", "x")) == "unexpected: x"


@pytest.mark.parametrize(("do", "told"), [("die", "status is 3.*\n.*Java heap space"), ("quiet", "status is 0")])
def test_a_job_that_dies_in_silence_shows_the_end_of_its_log(world: World, do: str, told: str) -> None:
    world.drop("a.txt", 1)
    world.spark_will(do)
    with pytest.raises(RunFailed, match=told):
        world.run(world.config(), log_folder=world.folder / "logs")
    assert len(list((world.folder / "logs").iterdir())) == 1
    assert world.client.state("orders").commits == ()


def test_a_job_that_hangs_is_ended_with_all_its_children(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    look = _Running._look
    monkeypatch.setattr(_Running, "_look", lambda *given: wait_for(lambda: bool(world.calls())) and look(*given))
    world.drop("a.txt", 1)
    world.spark_will("hang")
    with pytest.raises(RunFailed, match="took more than 500 ms and was stopped; nothing was committed"):
        world.run(world.config(), timeout_ms=500)
    assert [alive_in_group(call["pid"]) for call in world.calls()] == [[]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_takes_its_job_with_it(world: World, number: signal.Signals) -> None:
    world.drop("a.txt", 1)
    world.spark_will("hang")
    arguments = ["run", str(world.write_config()), "--until", str(UNTIL)]
    code = f"import signal; signal.signal({number}, signal.SIG_DFL); from persist_core.cli.main import main; main()"
    run = subprocess.Popen([sys.executable, "-c", code, *arguments])  # `nohup` of the tests is not the command's
    wait_for(lambda: bool(world.calls()))
    run.send_signal(number)
    assert (run.wait(60), alive_in_group(world.calls()[0]["pid"])) == (128 + number, [])


def test_output_of_a_long_job_is_immediate_and_harmless(world: World) -> None:
    world.drop("a.txt", 1)
    world.spark_will("long")
    arguments = ["run", str(world.write_config()), "--until", str(UNTIL)]
    main = "from persist_core.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", main, *arguments], capture_output=True, text=True, check=True)
    _, of_job, *rest = [line for line in run.stderr.splitlines() if "minted" not in line]
    assert of_job == "orders: 10 s, \\x1b[31mwrite; 1 of 4 tasks"
    assert not [line for line in rest if "not ours" in line]


def wait_for(holds: Callable[[], bool]) -> bool:
    clock = SystemClock()
    for _ in range(600):
        if holds():
            return True
        clock.sleep_ms(100)
    pytest.fail("did not happen within a minute")


def alive_in_group(group: int) -> list[str]:
    """Processes of a group that are more than zombies (there may be no parent to reap those)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(path.parent.name)
    return found


@on_each_consensus
def test_the_command_line_of_a_job(world: World) -> None:
    world.drop("a.txt", 1)
    world.run(world.config(), conf={"spark.ui.enabled": "true", "x": "a b"})
    (call,) = world.calls()
    argv = call["argv"]
    assert argv[:2] == ["--master", "local[1]"]
    assert argv[argv.index("spark.ui.enabled=true") - 1] == "--conf"
    assert "x=a b" in argv
    assert argv[-1] == str(job_path())
    assert argv[-1].endswith("persist_spark/__main__.py")
    assert not any("consensus.db" in part or "postgresql:" in part for part in argv)


def test_start_up_is_tuned_for_small_local_jobs_only() -> None:
    sizes = (10, 1 << 40)
    items = [JobSpec(replace(DESCRIPTION, input_bytes=each), CONFIG, "attempt") for each in sizes]
    small, large = (tuned_conf("local[2]", [item]) for item in items)
    for flag in (HUGE_METHODS, "TieredStopAtLevel=1", "ReservedCodeCacheSize=240m"):  # the last two go together
        assert flag in small["spark.driver.extraJavaOptions"]
    assert [flag in large["spark.driver.extraJavaOptions"] for flag in ("Tiered", HUGE_METHODS)] == [False, True]
    assert "spark.driver.extraJavaOptions" not in tuned_conf("yarn", items[:1])


@on_each_consensus
def test_other_users_cannot_reach_a_local_job_or_its_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    world.drop("a.txt", 1)
    world.run(world.config())
    options = [part for part in world.calls()[0]["argv"] if part.startswith("spark.")]
    assert "spark.authenticate=true" in options, "without a secret from us Spark makes one, in the driver"
    assert not any("secret" in part for part in options)
    environment = world.calls()[0]["environment"]
    folder = Path(environment["SPARK_LOCAL_DIRS"])
    assert (folder.name.startswith("persist-"), folder.exists()) == (True, False), "it ends with its job"
    assert "SPARK_REMOTE" not in environment, "the master says where the job runs"


@on_each_consensus
def test_a_user_may_put_shuffle_files_on_a_disk_of_their_own(world: World, tmp_path: Path) -> None:
    world.drop("a.txt", 1)
    world.run(world.config(), conf={"spark.local.dir": str(tmp_path / "disk")})
    assert Path(world.calls()[0]["environment"]["SPARK_LOCAL_DIRS"]).parent == tmp_path / "disk"


@pytest.mark.parametrize(("given", "found"), [("C", "C.UTF-8"), ("no_SUCH.UTF-8", "C.UTF-8"), ("C.UTF-8", "")])
def test_java_finds_names_that_are_not_ascii(given: str, found: str) -> None:
    look = "from persist_core.spark_job.installation import *; print(spark_environment({}).get('LC_ALL', ''))"
    environment = {**os.environ, "LC_ALL": given}
    said = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == found


@on_each_consensus
def test_two_runs_at_once_end_in_the_same_contents(world: World) -> None:
    for number in range(4):
        world.drop(f"{number}.txt", number)
    config = world.config()
    errors: list[BaseException] = []
    said: list[str] = []

    def run_it() -> None:
        try:
            with open_location(world.location) as opened:
                client, spark = PersistClient(opened), SparkProcess(world.location, "local[1]")
                write = functools.partial(write_batch, client, spark, config)
                run_one(client, config, until=UNTIL, write=write, say=said.append)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert world.ids() == [0, 1, 2, 3]


def test_closing_is_for_collections_that_end(world: World) -> None:
    world.drop("a.txt", 1)
    with pytest.raises(InvalidInput, match=r"must not be closed: .* write end_of_input: close"):
        world.run(world.config(), None)


@on_each_consensus
def test_the_command(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    world.drop("a.txt", 1, 2, 3)
    world.write_config()
    assert run_command(["run", "orders", "--collections", str(world.folder), "--until", str(UNTIL), "--json"]) == 0
    body = json.loads((captured := capsys.readouterr()).out)
    assert (body["status"], body["commits"][0]["input_files"], body["commits"][0]["upper"]) == ("committed", 1, UNTIL)
    assert "minted 0 -> 1000" in captured.err
    monkeypatch.setenv("PERSIST_COLLECTIONS", str(world.folder))
    assert run_command(["run", "orders", "--until", str(UNTIL)]) == 0
    assert capsys.readouterr().out.startswith("orders is up to date")
    world.drop("b.txt", 4)
    assert run_command(["run", "orders", "--until", str(UNTIL)]) == 0
    assert capsys.readouterr().out.startswith("orders has nothing to run yet")
    world.spark_will("fail", "too_many_errors")
    assert run_command(["run", str(world.folder / "orders.yaml"), "--json"]) == 5
    assert (captured := capsys.readouterr()).out == ""
    assert json.loads(captured.err.splitlines()[-1])["error"]["kind"] == "too_many_errors"
    world.spark_will("fail", "unexpected")  # a later failure of another kind hides nothing
    assert run_command(["run", str(world.folder / "orders.yaml"), "--json"]) == 5
    _check_rejected(capsys)
    assert run_command(["run", "orders", "--conf", "nonsense"]) == 2


def _check_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """The samples of the refused batch, for people and for programs."""
    capsys.readouterr()
    assert run_command(["errors", "orders", "--rejected"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("refused at 20")
    assert "the job says why" in shown
    for cell in ("column 'qty': no integer", "x\\ty", "1970-01-02T00:00:00Z", "2026/a.jsonl"):
        assert cell in shown
    assert run_command(["errors", "orders", "--rejected", "--json"]) == 0
    (sample,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert sample == {
        "kind": "value", "message": "column 'qty': no integer", "time": 86_400_000,
        "key": '{"id":1}', "payload": "x\ty", "position": "2026/a.jsonl",
    }  # fmt: skip
    assert run_command(["errors", "nothing", "--rejected"]) == 0
    assert "no batch of nothing was refused" in capsys.readouterr().out
    assert run_command(["errors", "orders", "--rejected", "--as-of", "1"]) == 2
    capsys.readouterr()


def test_a_time_in_the_future_needs_force(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("a.txt", 1)
    command = ["run", str(world.write_config()), "--until", "2099-01-01"]
    assert run_command(command) == 2
    assert "run it with --force" in capsys.readouterr().err
    assert run_command([*command, "--force"]) == 0
    assert world.client.state("orders").upper.time == parse_time("2099-01-01")


def test_a_damaged_checkpoint_is_repaired_and_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.drop("a.txt", 1)
    config = world.config()
    checkpoint_id = world.run(config).rounds[0].commit.checkpoint_id
    key = f"orders/checkpoints/{checkpoint_id}/manifest.json"
    world.client.blob.set(key, b"rotten")
    capsys.readouterr()
    assert run_command(["run", str(world.write_config()), "--until", "2026-01-01"]) == 0
    assert f"warning: {key} was damaged or missing and was written again from its commit" in capsys.readouterr().err


def test_by_default_the_input_is_final_up_to_the_current_period(world: World) -> None:
    now = parse_time("2026-03-04T05:06:07.008Z")
    assert world.config().default_until(now) == now
    periods = {
        "%Y-%m-%d-%H": "2026-03-04T05:00:00",
        "%Y-%m-%d": "2026-03-04",
        "%Y/%m": "2026-03-01",
        "%Y": "2026-01-01",
    }
    for date_format, wanted in periods.items():
        source = {"path": f"in/{{date:{date_format}}}.txt", "format": "json"}
        assert world.config(source=source, time="path").default_until(now) == parse_time(wanted)
        assert world.config(source=source).default_until(now) == now


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        ("2026-07-03T21:59Z", "2026-07-02T22:00Z"),  # in Berlin it is still the third
        ("2026-07-03T22:00Z", "2026-07-03T22:00Z"),
        ("2026-03-29T22:00Z", "2026-03-29T22:00Z"),  # a day of 23 hours
        ("2026-10-25T22:59Z", "2026-10-24T22:00Z"),  # one of 25
    ],
)
def test_a_day_is_over_when_the_clocks_of_its_zone_say_so(world: World, now: str, wanted: str) -> None:
    source = {"path": "in/{date:%Y-%m-%d}.txt", "format": "json"}
    config = world.config(source=source, time="path", timezone="Europe/Berlin")
    assert config.default_until(parse_time(now)) == parse_time(wanted)
    assert config.source_pattern().date_ms(f"{wanted[:10]}.txt") != parse_time(wanted)


def test_the_token_of_a_connect_server_is_printed_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERSIST_SPARK_CONNECT_TIMEOUT", "1")
    world = World(tmp_path, f"sqlite:///{tmp_path}/c.db", monkeypatch)
    monkeypatch.delenv("SPARK_HOME")
    world.drop("a.txt", 1)
    world.write_config()
    master = "sc://127.0.0.1:1/;user_id=me;token=sesame%2Fopen"
    command = ["run", "orders", "--collections", str(world.folder), "--until", str(UNTIL), "--master", master, "--logs"]
    assert run_command([*command, str(tmp_path / "logs")]) == 5
    printed = "".join(capfd.readouterr())
    assert "sc://127.0.0.1:1/;user_id=me;token=***" in printed
    logs = "".join(log.read_text() for log in (tmp_path / "logs").iterdir())
    assert "sesame" not in printed + logs + repr(SparkProcess(world.location, master))
    world.client.location.close()
