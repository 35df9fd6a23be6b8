"""The cause of a dead job, from lines as Spark writes them. Real deaths: tests/spark/test_dead_jobs.py."""

from __future__ import annotations

import pytest

from persist_core.spark_job.causes import CauseFinder, find_cause

NOISE = ["26/01/02 WARN TaskSetManager: Lost task 0.0", "\tat java.base/java.lang.Thread.run(Thread.java:840)"] * 50


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("java.io.IOException: No space left on device", "the disk is full"),
        ("java.io.FileNotFoundException: /tmp/blockmgr-1/0c (Too many open files)", "too many files are open"),
        ("26/01/02 ERROR DiskBlockManager: Failed to create any local dir.", "Spark cannot write to its own folder"),
        ("java.io.IOException: Failed to get a temp directory under [/a].", "Spark cannot write to its own folder"),
        ("Lost executor 0 on 10.0.0.1: Command exited with code 53", "Spark cannot write to its own folder"),
        ("Caused by: java.io.IOException: Mkdirs failed to create file:/blobs/t/batches/x (exists=false, cwd=file:/)",
         "Spark cannot write to the folder of the blobs"),
        ("JAVA_HOME is not set", "there is no Java"),
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main", "this Java is too old"),
        ("ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive! Giving"
         " up.", "there is no such Spark master"),
        ("org.apache.spark.SparkException: Could not parse Master URL: 'sparc://h'", "there is no such Spark master"),
        ("java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2.5.2/local",
         "the user that Spark runs as has no name"),
        ("ERROR TaskSchedulerImpl: Lost executor 0 on 10.0.0.7: Command exited with code 52",
         "an executor ran out of memory"),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Container killed by YARN"
         " for exceeding physical memory limits. 2.1 GB of 2 GB", "an executor ran out of memory"),
        ("The API gave the following container statuses: exit code: 137, reason: OOMKilled ExecutorLostFailure (exit"
         " code 137)", "an executor ran out of memory"),
        ("java.lang.OutOfMemoryError: Java heap space", "Spark has too little memory"),
        ("java.lang.RuntimeException: java.lang.ClassNotFoundException: Class"
         " org.apache.hadoop.fs.s3a.S3AFileSystem not found", "the jars for S3 are missing"),
        ('java.io.IOException: Cannot run program "python3.13": error=2, No such file or directory',
         "Python is missing where Spark runs its tasks"),
        ("pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
         " version: 3.11 than that in driver: 3.12", "Python where Spark runs its tasks is another version"),
        ("ModuleNotFoundError: No module named 'persist_spark'", "a Python package is missing"),
        ("AnalysisException: [PATH_NOT_FOUND] Path does not exist: file:/in/\u00e4.jsonl. SQLSTATE: 42K03",
         "Spark finds no file of this name"),
        ("_InactiveRpcError: status = StatusCode.UNAVAILABLE", "the Spark Connect server does not answer"),
    ],
)  # fmt: skip
def test_a_line_among_many_names_the_cause(line: str, what: str) -> None:
    found = find_cause([*NOISE, line, *NOISE])
    assert found is not None
    assert str(found).startswith(what)
    assert found.line in line


def test_the_first_cause_of_all_is_said() -> None:
    """A full disk makes tasks fail, then executors; who reads the last line looks for memory."""
    lines = ["Lost executor 0: Command exited with code 52", "x" * 30_000, "y: No space left on device", "\x1b[31mred"]
    found = find_cause(lines)
    assert found is not None
    assert (found.what, found.line) == ("the disk is full", "y: No space left on device")


def test_an_exit_status_or_nothing_is_known_too() -> None:
    killed = CauseFinder().cause(-9)
    assert killed is not None
    assert "was killed with exit status -9" in str(killed)
    assert CauseFinder().cause(1) is None
    assert find_cause(NOISE) is None


def test_a_cause_is_short_and_printable() -> None:
    found = find_cause(["z" * 5_000 + "\x1b[31m OutOfMemory java.lang.OutOfMemoryError " + "z" * 5_000])
    assert found is not None
    assert found.line.isprintable()
    assert len(found.line) < 300
