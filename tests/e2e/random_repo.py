"""A git repository with a random history, made by `git fast-import`: hundreds of commits in little time."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

NAMES = (
    b"a", b"b", b"README.md", b"src", b"lib", b"deep", b"with space", b"new\nline", b"tab\there", b'quote"d',
    b"back\\slash", "\u00fcml\u00e4ut".encode(), "e\u0301".encode(), "\u6f22\u5b57".encode(), "\U0001f980.rs".encode(),
    b"latin-\xe9", b"percent%20", b"-dash", b"{date}", b"*", b"CON", b"A",
)  # fmt: skip
MODES = ("100644", "100644", "100644", "100755", "120000", "160000")  # files, programs, links, submodules
MAX_DEPTH = 3
_FOUNDING_DAY = 1_700_000_000  # seconds; git requires it, no test reads it


def _quoted(path: bytes) -> bytes:
    """A path as fast-import wants it: in double quotes, every byte in octal."""
    return b'"' + b"".join(b"\\%03o" % byte for byte in path) + b'"'


def _changes(dice: random.Random, known: list[bytes]) -> list[bytes]:
    """A few random file commands. Writing `a/b` if `a` is a file replaces the file by a folder, and vice versa."""
    lines = []
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 8))):
        if known and dice.random() < 0.6:
            path = dice.choice(known)
        else:
            path = b"/".join(dice.choice(NAMES) for _ in range(dice.randint(1, MAX_DEPTH)))
            known.append(path)
        if dice.random() < 0.2:
            lines.append(b"D " + _quoted(path))
            continue
        mode = dice.choice(MODES)
        if mode == "160000":
            lines.append(b"M 160000 %040x %s" % (dice.getrandbits(160) or 1, _quoted(path)))
        else:
            content = b"%d" % dice.randrange(40)  # few contents: an edit that restores an old one is a real case
            lines.append(b"M %s inline %s\ndata %d\n%s" % (mode.encode(), _quoted(path), len(content), content))
    if dice.random() < 0.002:
        lines.insert(0, b"deleteall")
    return lines


def make_random_repo(folder: Path, *, seed: int, commits: int) -> Path:
    """A bare repository in `folder` with `commits` commits on HEAD's first-parent line, some of them merges."""
    dice = random.Random(seed)
    stream: list[bytes] = []
    known: list[bytes] = []
    for number in range(1, commits + 1):
        has_side = number > 2 and dice.random() < 0.1
        if has_side:
            stream += [b"commit refs/heads/side", b"mark :%d" % (commits + number), _author(number), b"data 4\nside"]
            stream += [b"from :%d" % (number - 1), *_changes(dice, known)]
        stream += [b"commit refs/heads/main", b"mark :%d" % number, _author(number), b"data 4\nmain"]
        if number > 1:
            stream.append(b"from :%d" % (number - 1))
        if has_side:
            stream.append(b"merge :%d" % (commits + number))
        stream += _changes(dice, known)
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
    subprocess.run(
        ["git", "-C", str(folder), "fast-import", "--quiet", "--force"], input=b"\n".join(stream) + b"\n", check=True
    )
    return folder


def _author(number: int) -> bytes:
    return b"committer Persist Tests <tests@localhost> %d +0000" % (_FOUNDING_DAY + number)
