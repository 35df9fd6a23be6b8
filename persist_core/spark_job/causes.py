"""Find why a Spark job died, in one sentence: from its log, or from the exception that it recorded.

    lines of the log ─> CauseFinder ─> Cause: what happened, the line that shows it, what to do

Spark reports a full disk or a missing Java somewhere in the middle of its log, below it the stack traces of all that
failed because of that. A task says the cause first and last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_LINE_CHARS = 20_000  # looked at in one line; Spark's messages may hold whole plans
_MAX_SHOWN_CHARS = 240
KILLED = (137, -9)  # exit statuses of a process that the kernel or an orchestrator has killed
STOPPED = (143, -15, 130, -2)  # of one that was asked to end: by SIGTERM, or SIGINT
EXECUTOR_MEMORY, DRIVER_MEMORY = "an executor ran out of memory", "Spark has too little memory"
NO_JAVA, OLD_JAVA, NO_MASTER = "there is no Java", "this Java is too old", "there is no such Spark master"
NO_PYTHON = "Python is missing where Spark runs its tasks"
OTHER_PYTHON = "Python where Spark runs its tasks is another version"
NO_PACKAGE, NO_JARS = "a Python package is missing where Spark runs its tasks", "the jars for S3 are missing"
NO_USER = "the user that Spark runs as has no name"
NO_SCRATCH = "Spark cannot write to its own folder"
NO_BLOBS = "Spark cannot write to the folder of the blobs"
FULL_DISK, OPEN_FILES = "the disk is full", "too many files are open"
# Whatever the items are.
ENVIRONMENT = (NO_JAVA, OLD_JAVA, NO_MASTER, NO_USER, NO_SCRATCH, NO_PYTHON, OTHER_PYTHON, NO_PACKAGE, NO_JARS)
# No file is at fault. Other items may still end well.
NO_FILES_FAULT = (*ENVIRONMENT, NO_BLOBS, FULL_DISK, OPEN_FILES)

# What happened, what a log says then, and what to do. The first one found is the cause of the later ones.
KNOWN = (
    (
        FULL_DISK,
        r"No space left on device|Disk quota exceeded|File too large",
        "make room where Spark writes (spark.local.dir, the folder of the blobs), or give the job less input",
    ),
    (
        OPEN_FILES,
        r"Too many open files",
        "raise the limit of open files where Spark runs (ulimit -n) to 4096 or more",
    ),
    (
        NO_SCRATCH,
        r"Failed to create any local dir|Failed to get a temp directory under|exited with code 53\b",
        "make room in SPARK_LOCAL_DIRS, else spark.local.dir, else /tmp, and let Spark's user write there",
    ),
    (
        NO_BLOBS,
        r"Mkdirs failed to create",
        "driver and executors need that folder under the same path, with room in it, and a user who may write there",
    ),
    (
        NO_JAVA,
        r"JAVA_HOME is not set|java: (?:command )?not found|/bin/java: No such file or directory"
        r"|Unable to locate a Java Runtime",
        "install Java 17 or newer where Spark starts, or set JAVA_HOME to it",
    ),
    (
        OLD_JAVA,
        r"UnsupportedClassVersionError",
        "install Java 17 or newer where Spark starts, and set JAVA_HOME to it",
    ),
    (
        NO_MASTER,
        r"All masters are unresponsive|Failed to connect to master|Could not parse Master URL|Invalid master URL"
        r"|Could not load (?:YARN|KUBERNETES|Kubernetes) classes",
        "correct the host and the port of the Spark connection (or --master), and check that the master runs",
    ),
    (
        NO_USER,
        r"basedir must be absolute: \?/|LoginException: java\.lang\.NullPointerException: invalid null input: name",
        "give its uid a line with a home in /etc/passwd where Spark starts (a container may run as any uid)",
    ),
    (
        EXECUTOR_MEMORY,
        r"exited with code 52\b|Container killed by YARN for exceeding|ExecutorLostFailure.*(?:137|OOMKilled)"
        r"|Lost executor .*(?:OutOfMemory|exit(?:ed with)? code:? 137)|ExecutorLostFailure.*[Oo]ut ?[Oo]f ?[Mm]emory"
        r"|Exception in thread \"Executor task launch.*OutOfMemoryError",
        "raise spark.executor.memory (or spark.executor.memoryOverhead), or give the job less input (limits.max_bytes)",
    ),
    (
        DRIVER_MEMORY,
        r"java\.lang\.OutOfMemoryError|GC overhead limit exceeded|Cannot allocate memory|Out of Memory Error"
        r"|There is insufficient memory for the Java Runtime|SparkOutOfMemoryError|System memory \d+ must be at least",
        "raise spark.driver.memory (of a local master) or spark.executor.memory, or give the job less input"
        " (limits.max_bytes)",
    ),
    (
        NO_JARS,
        r"ClassNotFoundException: (?:Class )?(?:org\.apache\.hadoop\.fs\.s3a|software\.amazon)\S*"
        r"|NoClassDefFoundError: (?:org/apache/hadoop/fs/s3a|software/amazon)\S*|No FileSystem for scheme \"?s3a",
        "install them with `make spark-jars`, name their folder in PERSIST_SPARK_JARS, or see docs/spark-on-s3.md",
    ),
    (
        NO_PYTHON,
        r"Cannot run program \"[^\"]*python[^\"]*\".*No such file|env: .?python3?.?: No such file",
        "install Python there, or set PYSPARK_PYTHON (spark.pyspark.python) to one that is there",
    ),
    (
        OTHER_PYTHON,
        r"PYTHON_VERSION_MISMATCH|Python in worker has different version",
        "set PYSPARK_PYTHON (spark.pyspark.python) to the same version",
    ),
    (
        NO_PACKAGE,
        r"ModuleNotFoundError: No module named \S+",
        "install airflow-persist[spark] there too",
    ),
    (
        "Spark finds no file of this name, which is not ASCII",
        r"PATH_NOT_FOUND\] Path does not exist: [^\n]*[^\x00-\x7f]",
        "if the file is there, start Spark (or its server) in a locale of UTF-8: LC_ALL=C.UTF-8",
    ),
    (
        "the Spark Connect server does not answer",
        r"StatusCode\.UNAVAILABLE|StatusCode\.DEADLINE_EXCEEDED|failed to connect to all addresses",
        "check that it runs, and the host and the port of the connection",
    ),
)  # fmt: skip
_PATTERNS = [re.compile(pattern) for _, pattern, _ in KNOWN]


@dataclass(frozen=True)
class Cause:
    """The cause: what happened, the line of the log that shows it (cut), what to do, and all that the log names."""

    what: str
    line: str
    remedy: str
    seen: frozenset[str] = frozenset()

    def __str__(self) -> str:
        said = f" ({self.line})" if self.line else ""
        return f"{self.what}{said}: {self.remedy}"

    def is_no_files_fault(self) -> bool:
        """True unless a file may be why memory was short. A log names what Spark has survived too."""
        return self.what in NO_FILES_FAULT and self.seen.isdisjoint((EXECUTOR_MEMORY, DRIVER_MEMORY))


class CauseFinder:
    """Looks at each line of a log once. Keeps the first line of each kind of cause."""

    def __init__(self) -> None:
        self._found: dict[int, str] = {}

    def see(self, line: str) -> None:
        looked_at = line[:_MAX_LINE_CHARS]
        for number, pattern in enumerate(_PATTERNS):
            if number not in self._found and (found := pattern.search(looked_at)) is not None:
                self._found[number] = _around(looked_at, found)

    def cause(self, exit_status: int | None) -> Cause | None:
        """The cause, if the lines name a known one; or if the exit status alone says that the process was killed."""
        if self._found:
            number = min(self._found)
            what, _, remedy = KNOWN[number]
            return Cause(what, self._found[number], remedy, frozenset(KNOWN[each][0] for each in self._found))
        if exit_status in KILLED:
            return Cause(
                f"the job was killed with exit status {exit_status}, usually because the machine ran out of memory",
                "",
                "give the machine or the container more memory, lower spark.driver.memory, or give the job less input",
            )
        return None


def find_cause(lines: Iterable[str]) -> Cause | None:
    """The cause that a whole log names, if it is a known one."""
    finder = CauseFinder()
    for line in lines:
        finder.see(line)
    return finder.cause(exit_status=None)


def _around(line: str, found: re.Match[str]) -> str:
    """The part of a line that a person needs to see, without what would control a terminal."""
    start = max(0, found.start() - _MAX_SHOWN_CHARS // 2)
    shown = line[start : max(found.end(), start + _MAX_SHOWN_CHARS)].strip()
    return "".join(char if char.isprintable() else " " for char in shown)[: 2 * _MAX_SHOWN_CHARS]
