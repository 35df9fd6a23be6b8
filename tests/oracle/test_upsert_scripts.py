"""Scripts for the upsert oracle: commands and what they print, one file per rule. `tests/core/scripts/README.md`.

PERSIST_REWRITE=1 writes what is found into the scripts instead of comparing; read the diff before you believe it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from persist_core.errors import PersistError
from persist_core.schema import Late
from tests.oracle.upsert import (
    SKIP,
    TOMBSTONE,
    TRUNCATE,
    Drained,
    Err,
    Mark,
    Record,
    Slot,
    UpsertDiff,
    Value,
    as_of,
    check_collection,
    drain_sealed_input,
)

SCRIPTS = Path(__file__).parents[1] / "core" / "scripts" / "upsert"
_RECORD = re.compile(
    r"(?P<slot>\S+)(?: (?P<sign>=|!) (?P<value>.*?)| (?P<mark>gone|truncate|skip))(?: @(?P<time>\d+))? #(?P<order>\S+)"
)
_CELLS = {"null": None, '""': ""}
_MARKS = {"gone": TOMBSTONE, "truncate": TRUNCATE, "skip": SKIP}


def parse_slot(text: str) -> Slot | None:
    """`*`: no slot. `?raw`: a key that could not be decoded. Else a key of one string; `""` is the empty one."""
    if text == "*":
        return None
    return text[1:].encode() if text.startswith("?") else ("" if text == '""' else text,)


def parse_record(line: str) -> Record:
    found = _RECORD.fullmatch(line)
    if found is None:
        raise AssertionError(f"not a record: {line!r}")
    slot, order = parse_slot(found["slot"]), tuple(int(part) for part in found["order"].split("."))
    value: Value | Mark
    if found["mark"]:
        value = _MARKS[found["mark"]]
    elif found["sign"] == "!":
        kind, _, payload = found["value"].partition(":")
        payload, _, message = payload.partition(" -- ")
        value = Err(kind, slot if isinstance(slot, bytes) else str(slot).encode(), payload.encode(), message)
    else:
        value = tuple(_CELLS.get(part, part) for part in found["value"].split("|"))
    return Record(slot, value, int(found["time"]) if found["time"] else None, order)


def show_slot(slot: Slot | None) -> str:
    if slot is None:
        return "*"
    return "?" + slot.decode() if isinstance(slot, bytes) else slot[0] or '""'


def show_value(value: Value | Mark) -> str:
    if isinstance(value, Mark):
        return next(name for name, mark in _MARKS.items() if mark is value)
    if isinstance(value, Err):
        return f"! {value.kind}:{value.payload.decode()}" + (f" -- {value.message}" if value.message else "")
    return "= " + "|".join("null" if part is None else part or '""' for part in value)


class Session:
    """A shard, as far as a script needs one: what is committed, and the stash."""

    def __init__(self) -> None:
        self.state: tuple[UpsertDiff, ...] = ()
        self.stash: tuple[Record, ...] = ()

    def drain(self, words: list[str], lines: list[str]) -> str:
        """`drain LOWER UPPER [late=...] [in-time=...] [as-of=...] [stash=no]`, then records; commits what it makes."""
        options = dict(word.split("=") for word in words[2:])
        late: Late = "lift"
        for known in ("lift", "error", "persisted"):
            if options.get("late") == known:
                late = known
        drained = drain_sealed_input(
            [parse_record(line) for line in lines],
            self.stash,
            self.state,
            lower=int(words[0]),
            upper=None if words[1] == "closed" else int(words[1]),
            late=late,
            in_time_from=int(options["in-time"]) if "in-time" in options else None,
            as_of_frontier=int(options["as-of"]) if "as-of" in options else None,
        )
        self.state, self.stash = self.state + drained.updates, drained.stash
        check_collection(self.state)
        return self.show(drained)

    def show(self, drained: Drained) -> str:
        rows = [f"{u.diff:+d} {show_slot(u.slot)} {show_value(u.value)} @{u.time}" for u in drained.updates]
        rows += [
            f"stash {show_slot(r.slot)} {show_value(r.value)} @{r.time} #{'.'.join(map(str, r.order))}"
            for r in drained.stash
        ]
        counts = " ".join(f"{name}={count}" for name, count in drained.stats.to_json().items() if count)
        return "\n".join([*rows, counts or "nothing"])

    def force(self, _words: list[str], lines: list[str]) -> str:
        """`force`, then records as `+1 a = x @3 #0`: put updates into the state unasked."""
        for line in lines:
            diff, _, rest = line.partition(" ")
            record = parse_record(rest)
            assert record.slot is not None
            assert not isinstance(record.value, Mark)
            assert record.time is not None
            self.state += (UpsertDiff(record.slot, record.value, record.time, int(diff)),)
        return "ok"

    def contents(self, words: list[str], _lines: list[str]) -> str:
        """`as-of TIME`: what the collection holds then."""
        held = as_of(self.state, int(words[0]))
        return "\n".join(sorted(f"{show_slot(slot)} {show_value(value)}" for slot, value in held.items())) or "empty"


def run(session: Session, command: list[str]) -> str:
    commands: dict[str, Callable[[list[str], list[str]], str]] = {
        "drain": session.drain,
        "force": session.force,
        "as-of": session.contents,
    }
    name, *words = command[0].split()
    try:
        return commands[name](words, [line.strip() for line in command[1:]])
    except PersistError as error:
        return f"{type(error).__name__}: {error}"


def replay(text: str) -> str:
    """The script with what its commands print now in place of what they should."""
    session, out = Session(), []
    for block in text.strip("\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith("#")]
        comments = [line for line in block.split("\n") if line.startswith("#")]
        if not lines:
            out.append("\n".join(comments))
            continue
        command = lines[: lines.index("----")] if "----" in lines else lines
        out.append("\n".join([*comments, *command, "----", run(session, command)]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script(script: Path) -> None:
    wanted = script.read_text()
    found = replay(wanted)
    if os.environ.get("PERSIST_REWRITE"):
        script.write_text(found)
        return
    assert found == wanted


def test_there_are_scripts() -> None:
    assert len(list(SCRIPTS.glob("*.txt"))) >= 8
