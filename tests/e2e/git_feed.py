"""The history of a git repository as a change feed, and back: the largest real test data that every developer has.

    git rev-list --first-parent  ->  commits 1, 2, 3 ...          one commit = one time
    git diff-tree                ->  records {time, path, mode, blob}; a removed path is a record with `deleted`
    git ls-tree -r               ->  what the table must hold as of that commit

`python -m tests.e2e.git_feed REPO` replays REPO through mint, write (Spark), append and checkpoint in a handful of
batches, and compares the table with git at sampled commits (tests/e2e/git_replay.py). REPO is only read. A shallow
clone works too: its oldest commit then counts as the one that added everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COLLECTION = "git_history"
GONE = "000000"  # the mode that git gives to the missing side of a change

Tree = dict[str, tuple[str, str]]  # path -> (mode, blob id)


@dataclass(frozen=True)
class Record:
    """One change of one path, at the time of its commit (1 for the oldest)."""

    time: int
    path: str
    mode: str | None
    blob: str | None

    def to_line(self) -> str:
        """The feed's JSON line."""
        deleted = self.mode is None
        return json.dumps(
            {"time": self.time, "path": self.path, "mode": self.mode, "blob": self.blob, "deleted": deleted},
            ensure_ascii=False,
        )


def path_text(raw: bytes) -> str:
    """A path as text, reversibly, since git names are bytes: what is not UTF-8 is written `\\xNN`, `\\` as `\\\\`."""
    text = raw.replace(b"\\", b"\\\\").decode("utf-8", "surrogateescape")
    return "".join(f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char for char in text)


def git(repo: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run git in `repo` with the caller's settings out of the way; its standard output."""
    command = ["git", "-C", str(repo), "-c", "core.quotePath=false", "-c", "diff.renames=false", *arguments]
    return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout


def commits(repo: Path, revision: str = "HEAD") -> list[str]:
    """Commit ids along the first parents of `revision`, oldest first. Commit `i` has time `i + 1`."""
    return git(repo, "rev-list", "--first-parent", "--reverse", revision).decode().split()


def records(repo: Path, history: Sequence[str]) -> Iterator[Record]:
    """The changes of each commit against its first parent, in the order of `history`."""
    times = {commit: number for number, commit in enumerate(history, 1)}
    wanted = ["-r", "-z", "--raw", "--root", "--no-renames", "--no-abbrev", "--diff-merges=first-parent"]
    out = git(repo, "diff-tree", "--stdin", *wanted, stdin="\n".join(history).encode() + b"\n")
    time = 0
    tokens = iter(out.split(b"\0"))
    for token in tokens:
        if token.startswith(b":"):
            _, mode, _, blob, _ = token[1:].decode().split(" ")
            path = path_text(next(tokens))
            yield Record(time, path, None, None) if mode == GONE else Record(time, path, mode, blob)
        elif token:
            time = times[token.decode()]


def tree(repo: Path, commit: str) -> Tree:
    """The listing of `git ls-tree -r` of a commit: submodules and links as git sees them."""
    entries: Tree = {}
    for entry in git(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        if entry:
            facts, _, path = entry.partition(b"\t")
            mode, _, blob = facts.decode().split(" ")
            entries[path_text(path)] = (mode, blob)
    return entries


def main(argv: Sequence[str]) -> int:
    """The command line: replay and compare, print the results; 1 if table and git differ."""
    from persist_core.clock import SystemClock
    from persist_core.location.open import open_location
    from persist_core.location.settings import PersistLocation
    from tests.e2e.git_replay import replay
    from tests.local_spark import local_spark

    parser = argparse.ArgumentParser(prog="git_feed", description="Replay a git history; compare the table with git.")
    parser.add_argument("repo", type=Path, help="any git repository; it is only read")
    parser.add_argument("--batches", type=int, default=6, help="Spark runs (default 6)")
    parser.add_argument("--samples", type=int, default=25, help="commits at which the table is compared (default 25)")
    parser.add_argument("--seed", type=int, default=1, help="what shuffles the feed and picks the samples (default 1)")
    options = parser.parse_args(argv)
    clock = SystemClock()
    started_ms = clock.now_ms()
    with tempfile.TemporaryDirectory(prefix="git-feed-") as scratch:
        folder = Path(scratch)
        location = PersistLocation((folder / "blobs").as_uri(), f"sqlite:///{folder}/consensus.db")
        spark = local_spark("git_feed", folder / "spark")
        try:
            with open_location(location) as opened:
                done = replay(spark, opened, options.repo, folder, batches=options.batches,
                              samples=options.samples, seed=options.seed)  # fmt: skip
        except AssertionError as error:
            sys.stderr.write(f"DIFFERENT: {error}\n")
            return 1
        finally:
            spark.stop()
    sys.stdout.writelines(f"batch {number}: {stats}\n" for number, stats in enumerate(done.stats, 1))
    sys.stdout.write(
        f"{done.commits} commits, {done.records} changes in {len(done.stats)} batches: equal to git at"
        f" {len(done.compared)} commits, after {(clock.now_ms() - started_ms) / 1000:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
