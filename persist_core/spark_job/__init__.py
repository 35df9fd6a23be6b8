"""The write stage's Spark job as the core sees it: its spec, how it starts, and how it answers."""
