"""The contents of a location, as plain objects that a page shows and `persist ... --json` prints.

    consensus (states) + blobs (manifests, records) --Inspector--> facts --asdict--> JSON (docs/reference/inspection.md)
    parts --rows--> a page of rows, changes or errors, within bounds

1. Reads only. Nothing here leases, holds, repairs or writes.
2. Every read is bounded: so many states, manifests, records and rows, whatever the shard holds.
3. One damaged object hides no other: the facts that need it are `None`, and `error` names it.

Neither Spark nor Airflow: what only Airflow knows (schedules, dag runs, roles) is added by the page.
"""
