"""The semantics in plain, slow, obvious Python. Tests compare Spark's results with it."""
