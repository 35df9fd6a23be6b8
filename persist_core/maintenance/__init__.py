"""Checks of shards and stores: `fsck` and `doctor`."""
