"""Compaction: which batches to merge, the merge itself, and putting its result in their place."""
