"""A merge as a Spark job: the same run as `persist_core.compaction.merge` makes, for shards of any size."""
