"""The kinds of input: file drops and other shards. Each freezes a range of input and moves its progress past it.

source      the contracts: `Source` (by a YAML file), `Progress` (by what a commit stored), positions of records
registry    which source a shard has; no other package asks for a kind of source
frozen      frozen inputs in blob storage
collection  files: `files` (what is due), `file_scan`, `natural_order`, `root` (identity), `ledger` (what was consumed)
shards      other shards, for views
"""
