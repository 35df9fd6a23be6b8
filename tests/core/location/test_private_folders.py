"""The folders that `file:` and `sqlite:` create are their owner's; existing ones keep their modes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.errors import InvalidName
from persist_core.location import PersistLocation, VersionedData, open_location
from tests.core.sources.test_scan import only_root

_NOBODY = 65534


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that all users may enter and list: `tmp_path` is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="persist-public-"))
    folder.chmod(0o755)
    before = os.umask(0o022)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)


def commit(top: Path) -> None:
    """Write to both stores of a location below `top`."""
    with open_location(
        PersistLocation(f"file://{top / 'blob'}", f"sqlite:///{top / 'state' / 'consensus.db'}")
    ) as both:
        both.blob.set("shard/part", b"data")
        both.consensus.compare_and_set("shard", None, VersionedData(0, b"state"))


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


def test_new_folders_are_their_owners(public: Path) -> None:
    commit(public / "new" / "location")
    assert {mode(public / "new" / name) for name in (".", "location", "location/blob", "location/state")} == {"0o700"}
    assert mode(public) == "0o755"


@pytest.mark.parametrize("given", [0o755, 0o2770, 0o777])
def test_folders_that_exist_keep_their_modes(public: Path, given: int) -> None:
    for name in ("blob", "state"):
        (public / name).mkdir()
        (public / name).chmod(given)
    os.umask(0o002)
    commit(public)
    assert {mode(public / name) for name in ("blob", "state")} == {oct(given)}
    inside = {(public / "blob" / name).stat().st_mode & 0o777 for name in ("shard", ".persist-tmp")}
    assert inside == {0o775}, "who may write to a shared location may write below it"


def test_a_database_is_for_all_who_may_write_to_its_folder(public: Path) -> None:
    os.umask(0o007)
    commit(public)
    assert mode(public / "state" / "consensus.db") == "0o660"


def test_a_folder_that_cannot_be_looked_at_fails_each_call(public: Path) -> None:
    """Not as an error of Python's: a name that is too long stands for a missing right, which root never lacks."""
    with (
        open_location(PersistLocation(f"file://{public / ('x' * 300)}", "mem:")) as both,
        pytest.raises(InvalidName, match="name too long"),
    ):
        both.blob.get("shard/part")


@only_root
def test_another_user_cannot_read_a_new_location(public: Path) -> None:
    (public / "shared" / "blob").mkdir(parents=True)
    (public / "shared" / "state").mkdir()
    read = {}
    for top in (public / "shared", public / "new"):
        commit(top)
        for path in (top / "blob/shard/part", top / "state/consensus.db"):
            done = subprocess.run(
                ["/bin/cat", path], user=_NOBODY, group=_NOBODY, extra_groups=[], capture_output=True, timeout=30
            )
            read[f"{top.name}/{path.name}"] = (done.returncode, done.stdout != b"")
    assert read == {
        "shared/part": (0, True),
        "shared/consensus.db": (0, True),
        "new/part": (1, False),
        "new/consensus.db": (1, False),
    }
