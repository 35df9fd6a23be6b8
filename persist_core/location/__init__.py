"""The stores of shards: the two contracts, their backends, and how a URI selects one of them."""

from persist_core.location.blob import Blob, BlobMetadata
from persist_core.location.consensus import MAX_SEQNO, SCAN_ALL, CaSResult, Consensus, VersionedData
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_blob, open_consensus, open_location, s3_settings
from persist_core.location.s3.blob import S3Blob
from persist_core.location.s3.consensus import S3Consensus
from persist_core.location.s3.uri import S3Settings
from persist_core.location.settings import PersistLocation, location_from
from persist_core.location.sqlite.consensus import SqliteConsensus
from persist_core.location.uri import redact_uri

__all__ = [
    "MAX_SEQNO",
    "SCAN_ALL",
    "Blob",
    "BlobMetadata",
    "CaSResult",
    "Consensus",
    "FileBlob",
    "MemBlob",
    "MemConsensus",
    "OpenLocation",
    "PersistLocation",
    "S3Blob",
    "S3Consensus",
    "S3Settings",
    "SqliteConsensus",
    "VersionedData",
    "location_from",
    "open_blob",
    "open_consensus",
    "open_location",
    "redact_uri",
    "s3_settings",
]
