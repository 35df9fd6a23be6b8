"""Nothing damaged is ever read as data: one flipped bit in any stored object, on every backend.

For each flip: every question to the location has the same answer as before, or raises a `PersistError`; fsck never
raises; and if anything was refused, fsck is not clean. A session tries a seeded sample of every kind of object;
`PERSIST_PROFILE=nightly` tries every bit of small objects and more of the others. Counts are printed (`pytest -s`, or
the report of a failure).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from persist_core.errors import CorruptArtifact, PersistError
from persist_core.maintenance.fsck import fsck
from persist_core.sealed import is_sealed, unseal
from tests.core.maintenance.damaged_location import (
    KINDS,
    SHARDS,
    AllOnS3,
    Complete,
    FilesAndPostgres,
    FilesAndSqlite,
    InMemory,
    Stored,
    kind_of,
)

SMALL_BYTES = 64  # objects up to this size are tried bit by bit at night
# Of each kind of object.
FLIPS = {"dev": 3, "ci": 3, "nightly": 400}
FLIPS_ON_DISK = {"dev": 1, "ci": 1, "nightly": 100}
FLIPS_ON_SERVERS = {"dev": 1, "ci": 1, "nightly": 40}
# On a server every object takes the same path, except the log that is the consensus.
KINDS_ON_SERVERS = {"dev": 3, "ci": 3, "nightly": len(KINDS)}
SEALED_BITS = {"dev": 1_000, "ci": 1_000, "nightly": 50_000}  # of each kind of sealed object


class Tally:
    """The results of the flips."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.harmless: defaultdict[str, list[str]] = defaultdict(list)
        self.wrong: list[str] = []

    def __str__(self) -> str:
        lines = [f"{'kind':<24}{'flips':>7}{'refused':>9}{'by fsck':>9}{'harmless':>10}"]
        for kind in sorted(self.tried):
            numbers = (self.tried[kind], self.refused[kind], self.found[kind], len(self.harmless.get(kind, ())))
            lines.append("{:<24}{:>7}{:>9}{:>9}{:>10}".format(kind, *numbers))
        totals = (self.tried.total(), self.refused.total(), self.found.total(), sum(map(len, self.harmless.values())))
        lines.append("{:<24}{:>7}{:>9}{:>9}{:>10}".format("all", *totals))
        return "\n".join(lines)


def flips(complete: Complete, count: int, kinds: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """`count` flips of each of `kinds` kinds of object, spread over its objects; every bit of a small one at night."""
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for name in complete.names:
        by_kind[kind_of(name)].append(name)
    assert set(by_kind) == KINDS, "the location has every kind of object"
    for kind in ["state", *dice.sample(sorted(KINDS - {"state"}), kinds - 1)]:
        sizes = {name: 8 * len(complete.stored.read(name)) for name in by_kind[kind]}
        for name, bits in sizes.items():
            if count >= FLIPS["nightly"] and bits <= 8 * SMALL_BYTES:
                yield from ((name, bit) for bit in range(bits))
        for number in range(count):
            name = by_kind[kind][number % len(by_kind[kind])]
            yield name, dice.randrange(sizes[name])


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def try_flips(complete: Complete, count: int, kinds: int, seed: int) -> Tally:
    """Flip, ask everything, flip back."""
    tally = Tally()
    asked = list(complete.answers())
    before = {name: ask() for name, ask in asked}
    assert all(fsck(complete.client, shard).is_clean for shard in SHARDS)
    for name, bit in flips(complete, count, kinds, random.Random(seed)):
        whole = complete.stored.read(name)
        complete.stored.write(name, flipped(whole, bit))
        try:
            one_flip(complete, tally, f"bit {bit} of {name}", kind_of(name), asked, before)
        finally:
            complete.stored.write(name, whole)
        last = tally.harmless[kind_of(name)][-1:]
        if last == [f"bit {bit} of {name}"] and complete.stored.why_harmless(name, bit) is None:
            tally.wrong.append(f"{last[0]} changes no answer, and fsck finds nothing")
    assert {name: ask() for name, ask in asked} == before
    assert all(fsck(complete.client, shard).is_clean for shard in SHARDS)
    return tally


def one_flip(
    complete: Complete,
    tally: Tally,
    what: str,
    kind: str,
    asked: list[tuple[str, Callable[[], object]]],
    before: dict[str, object],
) -> None:
    is_clean = all(fsck(complete.client, shard).is_clean for shard in SHARDS)
    refused = []
    for question, ask in asked:
        try:
            answer = ask()
        except PersistError:
            refused.append(question)
            continue
        if answer != before[question]:
            tally.wrong.append(f"{what}: {question} has another answer ({'clean' if is_clean else 'fsck finds it'})")
    tally.tried[kind] += 1
    tally.refused[kind] += bool(refused)
    tally.found[kind] += not is_clean
    if is_clean and refused:
        tally.wrong.append(f"{what}: {refused} refused, and fsck finds nothing")
    if is_clean and not refused:
        tally.harmless[kind].append(what)


def check(stored: Stored, folder: Path, count: int, seed: int, *, kinds: int = len(KINDS)) -> None:
    tally = try_flips(Complete(stored, folder), count, kinds, seed)
    stored.location.close()
    print(f"\n{type(stored).__name__}\n{tally}")  # noqa: T201 - the counts are the result
    assert tally.wrong == []


def profile() -> str:
    return settings.get_current_profile_name() or "dev"


def test_flips_in_memory(tmp_path: Path, persist_seed: int) -> None:
    check(InMemory(tmp_path), tmp_path, FLIPS[profile()], persist_seed)


def test_flips_in_files_and_sqlite(tmp_path: Path, persist_seed: int) -> None:
    check(FilesAndSqlite(tmp_path), tmp_path, FLIPS_ON_DISK[profile()], persist_seed)


def test_flips_on_postgresql(tmp_path: Path, persist_seed: int, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres")
    check(
        FilesAndPostgres(tmp_path, server),
        tmp_path,
        FLIPS_ON_SERVERS[profile()],
        persist_seed,
        kinds=KINDS_ON_SERVERS[profile()],
    )


@pytest.mark.family("histories in Python")
def test_flips_on_s3(tmp_path: Path, persist_seed: int, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("versitygw")
    check(AllOnS3(server), tmp_path, FLIPS_ON_SERVERS[profile()], persist_seed, kinds=KINDS_ON_SERVERS[profile()])


def test_every_bit_of_every_sealed_object_is_sealed(tmp_path: Path, persist_seed: int) -> None:
    """Without a reader: the seal finds each single flip, so a sample is enough on the layers above."""
    complete, dice, most = Complete(InMemory(tmp_path), tmp_path), random.Random(persist_seed), SEALED_BITS[profile()]
    tried: Counter[str] = Counter()
    for name in complete.names:
        data, kind = complete.stored.read(name), kind_of(name)
        if not is_sealed(data) or tried[kind] >= most:
            continue
        facts = {"kind": data[data.index(b'"kind":"') + 8 :].partition(b'"')[0].decode(), "what": name}
        version = 2 if kind == "checkpoint manifest" else 1
        unseal(data, version=version, **facts)
        bits = range(8 * len(data))
        for bit in bits if profile() == "nightly" else dice.sample(bits, min(len(bits), most // 2)):
            with pytest.raises(CorruptArtifact):
                unseal(flipped(data, bit), version=version, **facts)
            tried[kind] += 1
    assert tried.keys() == {
        "state", "batch manifest", "checkpoint manifest", "offsets file", "frozen input", "fork record",
        "conflict record", "list of parts",
    }  # fmt: skip
