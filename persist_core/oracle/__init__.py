"""The semantics in plain, slow, obvious Python: what Spark's answers are compared with."""
