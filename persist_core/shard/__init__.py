"""A shard: its state, the pure transitions and invariants, and the loop that commits."""
