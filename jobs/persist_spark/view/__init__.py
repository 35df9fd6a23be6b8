"""The write stage of a view: a query's rows become the difference to what the shard holds."""
