"""A shard: its state and transitions, what its batches are made of, and the loop that commits."""
