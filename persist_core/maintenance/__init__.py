"""Looking after shards and stores: `fsck` and `doctor`."""
