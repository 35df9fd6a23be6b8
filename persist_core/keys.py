"""Every key of blob storage. No other module formats one; `tests/test_house.py` checks this.

Below `<shard>/`:

    inputs/<era>/<sha256>.json                        frozen input of a description, named by its digest
    sources/files/<era>/<sha256>.json.zst             segment of the ledger of consumed files, named by its digest
    jobs/<lower>/<attempt>/spec.json                  spec of one Spark job, while it runs
    jobs/<lower>/<attempt>/died                       the job ended without an answer
    jobs/<lower>/<attempt>/reading-<n>.json           files that it reads apart from all others, while it does
    jobs/<lower>/<attempt>/input-<n>.gz               copy of an input file for Spark to read, until that job ends
    batches/<attempt>/_persist_part=<kind>/*.parquet  parts that one write attempt staged
    batches/<attempt>/manifest.json                   manifest of that attempt, written last
    batches/<attempt>/parts-<n>.json                  lists of its parts, if they are many
    batches/<attempt>/failure.json                    why the attempt failed, if it could still write this
    dry-runs/<attempt>.json                             what a read-only refresh of a view would write, until it is read
    checkpoints/_latest                               id of the latest checkpoint
    checkpoints/<id>/manifest.json                    manifest of a checkpoint, written last
    checkpoints/<id>/pinned                           a user's pin: retention leaves the checkpoint alone
    checkpoints/<id>/operators/<operator>/partition-<n>.snap | .delta
    checkpoints/<id>/offsets/<source>.json
    checkpoints/quarantine/<id>/<sha256>.json         bytes that are not a manifest of this checkpoint
    conflicts/<id>.json                               record of one lost append
    conflict_alerts/<id>.json                         marks a conflict whose callbacks were called
    forks/<fork>/<sha256>.json                        what a fork of this shard shares with it
    erased/<sha256>.json                              list of erasures, named by its digest: the state names the newest
    gc/<era>/<id>.json                                keys that may be garbage: see `persist_core.gc`
    gc/clock                                          written to learn the store's time

Beside the shards, `_location` holds the location's id, as consensus does under this key. What a copier tries is below
`_copy/<id>`, what `persist doctor` tries below `_doctor/<id>`, in consensus too; both delete it.

Two attempts never share a folder. An attempt, a checkpoint id and the id of a list of garbage are UUIDv7s. `<era>` is
the era in which an object was staged (`persist_core.shard.eras`), so that a name that is garbage is never used again.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Callable

from persist_core.errors import InvalidName

PART = "_persist_part"  # which kind of part a row belongs to: a folder's name once staged, never a column of a file
MANIFEST = "manifest.json"
LOCATION = "_location"
PROBES = ("_copy/", "_doctor/")  # all keys of probes start with one of them, then comes a UUIDv7
_INPUT_COPY = "input-"
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HIDDEN = re.compile(r"~[a-z][a-z0-9]{0,31}")  # at the end of a name, of a shard that is not listed
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_PARTITION = 1_000_000  # files of operator state in one checkpoint; more is a defect in the writer


def is_shard_name(name: object) -> bool:
    """True if a user can give a shard this name. Other keys of consensus are records of the location, or shards that
    are not listed."""
    return isinstance(name, str) and _SHARD_NAME.fullmatch(name) is not None and ".." not in name


def hidden_shard(shard: str, purpose: str) -> str:
    """The name of a shard that works for `shard` and is not listed: no file of a user can have it."""
    return f"{shard}~{purpose}"


def listed_shard(name: str) -> str:
    """The shard that a hidden shard works for; of other names the name itself."""
    return name.partition("~")[0]


def check_key_name(name: str) -> str:
    """Return `name` if it can name a shard, listed or not, else raise `InvalidName`."""
    shard = listed_shard(name)
    return name if _HIDDEN.fullmatch(name.removeprefix(shard)) and is_shard_name(shard) else check_shard_name(name)


def check_shard_name(name: str) -> str:
    """Return `name` if it can name a shard of a user, else raise `InvalidName`."""
    if not is_shard_name(name):
        raise InvalidName(
            f"shard name {str(name)[:80]!r}: expected 1 to 128 letters, digits, '.', '_' or '-', starting with a"
            " letter or a digit, without '..'"
        )
    return name


def owner_of(key: str) -> str:
    """The shard that a key belongs to."""
    return key.partition("/")[0]


def digest_in(key: str) -> str:
    """The digest that names an object stored under its own digest (inputs, ledger segments, fork records)."""
    return key.rpartition("/")[2].partition(".")[0]


def era_in(key: str) -> int:
    """The era in the key of a frozen input, a segment of the ledger or a list of garbage; `ValueError` for others."""
    return int(key.split("/")[-2])


def _folder(name: str) -> Callable[[str], str]:
    return f"{{}}/{name}/".format


def _named(folder: str, ending: str = ".json") -> Callable[[str, str], str]:
    return f"{{}}/{folder}/{{}}{ending}".format


def _of_era(folder: str, ending: str = ".json") -> Callable[[str, int, str], str]:
    """From a shard, an era and a digest or id to a key."""
    return f"{{}}/{folder}/{{}}/{{}}{ending}".format


batches_prefix = _folder("batches")
attempt_prefix = _named("batches", "")  # the folder of one write attempt; nothing else writes there
manifest_key = _named("batches", f"/{MANIFEST}")
failure_key = _named("batches", "/failure.json")
conflicts_prefix, conflict_key = _folder("conflicts"), _named("conflicts")
conflict_alerts_prefix, conflict_alert_key = _folder("conflict_alerts"), _named("conflict_alerts")
dry_runs_prefix, dry_run_key = _folder("dry-runs"), _named("dry-runs")
erased_prefix, erased_key = _folder("erased"), _named("erased")  # GC leaves them alone
inputs_prefix, input_key = _folder("inputs"), _of_era("inputs")
ledger_prefix, ledger_segment_key = _folder("sources/files"), _of_era("sources/files", ".json.zst")
gc_prefix, garbage_list_key = _folder("gc"), _of_era("gc")
gc_era_prefix: Callable[[str, int], str] = "{}/gc/{}/".format  # shard, era
gc_clock_key: Callable[[str], str] = "{}/gc/clock".format
forks_prefix = _folder("forks")
fork_key: Callable[[str, str, str], str] = "{}/forks/{}/{}.json".format  # shard, fork, digest


jobs_prefix: Callable[[str, int], str] = "{}/jobs/{}/".format  # shard, lower of the batch; the attempt follows
job_key: Callable[[str, int, str, str], str] = "{}/jobs/{}/{}/{}".format  # ..., attempt, name (`spark_job.deaths`)
# Number and suffix of a copy of an input file, which one Spark job makes and reads: its name for `job_key`.
input_copy: Callable[[int, str], str] = f"{_INPUT_COPY}{{:06d}}{{}}".format
copy_probe_key: Callable[[str], str] = "_copy/{}".format  # by which a copier learns if two blob stores are one
doctor_probe_key: Callable[[str], str] = "_doctor/{}".format  # a key of consensus, and blobs below it


def is_input_copy(key: str) -> bool:
    """True for the key of such a copy: no other job needs it."""
    return key.rpartition("/")[2].startswith(_INPUT_COPY)


def part_key(shard: str, attempt: str, kind: str, number: int, suffix: str = "parquet") -> str:
    """An output file of an attempt, in the folder that Spark makes; its kind is a `PartKind` or an operator's name."""
    return f"{attempt_prefix(shard, attempt)}/{PART}={kind}/part-{number}.{suffix}"


def list_key(manifest: str, number: int) -> str:
    """The key of a list of parts (`persist_core.contents.part_lists`), by its manifest's key."""
    return f"{manifest.removesuffix(MANIFEST)}parts-{number:06d}.json"


def manifest_of_list(key: str) -> str | None:
    """The key of the manifest to which the list with this key belongs, or `None` if it has another form."""
    folder, name = posixpath.split(key)
    is_list = re.fullmatch(r"parts-[0-9]{6,}\.json", name) is not None
    return f"{folder}/{MANIFEST}" if is_list and attempt_of(f"{folder}/{MANIFEST}") else None


def attempt_of(key: str, made: Callable[[str, str], str] = manifest_key) -> str | None:
    """The attempt whose manifest's key (or `failure_key`) this is, or `None` if it has another form."""
    shard, _, rest = key.partition("/")
    attempt = rest.removeprefix("batches/").partition("/")[0]
    return attempt if made(shard, attempt) == key else None


def collectable_prefixes(shard: str) -> tuple[str, ...]:
    """All keys that GC may delete start with one of these. It leaves alone what a newer release may keep elsewhere."""
    return (
        batches_prefix(shard),
        f"{check_key_name(shard)}/checkpoints/",
        conflict_alerts_prefix(shard),
        conflicts_prefix(shard),
        dry_runs_prefix(shard),
        forks_prefix(shard),
        inputs_prefix(shard),
        f"{shard}/jobs/",
        ledger_prefix(shard),
    )


def fork_in(key: str) -> str:
    """The fork that the key of such a record names."""
    return key.split("/")[-2]


def is_checkpoint_id(checkpoint_id: object) -> bool:
    """True for a UUIDv7 in its canonical text."""
    try:
        parsed = uuid.UUID(checkpoint_id) if isinstance(checkpoint_id, str) else None
    except ValueError:
        return False
    return parsed is not None and str(parsed) == checkpoint_id and parsed.version == 7


def check_checkpoint_id(checkpoint_id: str) -> str:
    """Return the id if it is a UUIDv7 in its canonical text, else raise `InvalidName`."""
    if not is_checkpoint_id(checkpoint_id):
        raise InvalidName(f"checkpoint id {str(checkpoint_id)[:80]!r}; expected a UUIDv7 in lower case")
    return checkpoint_id


def state_path(operator: str, partition_id: int, *, is_delta: bool) -> str:
    """An operator's artifact, relative to the checkpoint's folder."""
    if not 0 <= partition_id < _MAX_PARTITION:
        raise InvalidName(f"partition {partition_id}; expected 0 to {_MAX_PARTITION - 1}")
    ending = "delta" if is_delta else "snap"
    return f"operators/{_check_name(operator, 'operator')}/partition-{partition_id}.{ending}"


def offsets_path(source: str) -> str:
    """A source's offsets, relative to the checkpoint's folder."""
    return f"offsets/{_check_name(source, 'source')}.json"


def _check_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(f"{what} {name[:80]!r}; expected 1 to 64 letters, digits, '.', '_' or '-'")
    return name


class CheckpointLayout:
    """Keys of one shard's checkpoints."""

    def __init__(self, shard: str) -> None:
        self.root = f"{check_key_name(shard)}/checkpoints/"

    @property
    def latest(self) -> str:
        """The pointer that tools and outside readers follow."""
        return f"{self.root}_latest"

    def folder(self, checkpoint_id: str) -> str:
        """All keys of one checkpoint start with this."""
        return f"{self.root}{check_checkpoint_id(checkpoint_id)}/"

    def manifest(self, checkpoint_id: str) -> str:
        return f"{self.folder(checkpoint_id)}{MANIFEST}"

    def pin(self, checkpoint_id: str) -> str:
        return f"{self.folder(checkpoint_id)}pinned"

    @property
    def quarantine(self) -> str:
        """The keys of all manifests that were moved aside start with this."""
        return f"{self.root}quarantine/"

    def quarantined(self, checkpoint_id: str, sha256: str) -> str:
        """The key of bytes that were under the key of this checkpoint's manifest; `sha256` is their digest."""
        return f"{self.quarantine}{check_checkpoint_id(checkpoint_id)}/{sha256}.json"

    def artifact(self, checkpoint_id: str, path: str) -> str:
        """The key of an artifact, by its path relative to the checkpoint's folder.

        Raises `InvalidName` for a path that leads out of the shard.
        """
        key = posixpath.normpath(f"{self.folder(checkpoint_id)}{path}")
        if not key.startswith(f"{owner_of(self.root)}/"):
            raise InvalidName(f"path {path!r} leads out of shard {owner_of(self.root)}; expected a file of the shard")
        return key
