"""Reading shards as DataFrames."""
