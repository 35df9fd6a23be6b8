"""Keys of consensus on S3 whose folder does not say them."""

from __future__ import annotations

import pytest

from persist_core.errors import Corruption
from tests.core.location.test_s3_consensus import COMMITTED, Location, location, version
from tests.servers.s3_raw import raw_names
from tests.virtual import ManualClock

__all__ = ["location"]  # a fixture


@pytest.mark.parametrize("data", [b"", b"persist-consensus-1 0"])
def test_a_damaged_entry_of_a_long_name_hides_no_other_key(location: Location, data: bytes) -> None:
    """Its folder does not say the key; the entries below the newest one do."""
    long = "k" * 120
    for seqno in (0, 1):
        assert location.others.compare_and_set(long, seqno - 1 if seqno else None, version(seqno)) is COMMITTED
    location.append(0)
    raw, bucket = location.server.raw, location.others._settings.bucket
    newest, oldest = raw_names(location.server, location.others, long)
    raw.put_object(Bucket=bucket, Key=newest, Body=data)
    assert sorted(location.others.list_keys()) == ["k", long]
    fresh = location.open(ManualClock())
    with pytest.raises(Corruption, match="expected the header"):
        fresh.head(long)
    raw.put_object(Bucket=bucket, Key=oldest, Body=data)
    with pytest.raises(Corruption, match="expected the header"):
        list(fresh.list_keys())
