"""The stores of shards: the two contracts, their backends, and how a URI selects one of them."""

from persist_core.location.blob import Blob as Blob
from persist_core.location.blob import BlobMetadata as BlobMetadata
from persist_core.location.consensus import MAX_SEQNO as MAX_SEQNO
from persist_core.location.consensus import CaSResult as CaSResult
from persist_core.location.consensus import Consensus as Consensus
from persist_core.location.consensus import VersionedData as VersionedData
from persist_core.location.file.blob import FileBlob as FileBlob
from persist_core.location.mem import MemBlob as MemBlob
from persist_core.location.mem import MemConsensus as MemConsensus
from persist_core.location.open import open_blob as open_blob
from persist_core.location.open import open_consensus as open_consensus
from persist_core.location.open import open_location as open_location
from persist_core.location.open import s3_settings as s3_settings
from persist_core.location.s3.blob import S3Blob as S3Blob
from persist_core.location.s3.consensus import S3Consensus as S3Consensus
from persist_core.location.s3.uri import S3Settings as S3Settings
from persist_core.location.settings import PersistLocation as PersistLocation
from persist_core.location.settings import location_from as location_from
from persist_core.location.sqlite.consensus import SqliteConsensus as SqliteConsensus
from persist_core.location.uri import redact_uri as redact_uri
