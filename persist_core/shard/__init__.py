"""A shard: its state and transitions, the parts of its batches, and the loop that commits."""
