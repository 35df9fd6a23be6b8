"""The write stage's Spark job as the core sees it: what it is told, and how it is started."""
