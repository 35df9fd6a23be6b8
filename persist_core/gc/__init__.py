"""GC: deletes what nothing needs (docs/storage.md, section 8).

    list all keys ── less needs ──> gc/<era>/<id>.json ── eras pass ──> needs again ──> delete what is still unneeded
    └────────────── mark ────────────────────────────┘                  └───────────── sweep ────────────────────┘

Once an era it also aborts unfinished uploads that are older than the staging intent (`gc.sweep`).

1. A file that a state, a retained checkpoint or a fork needs is never deleted, whatever the clocks say: `shard.eras`.
2. A file stays for whole eras after it has become garbage, so that readers without a lease can finish.
3. Each step may die anywhere and be done again, by any number of processes side by side.
"""
