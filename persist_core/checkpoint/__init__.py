"""Checkpoints (docs/semantics.md, section 7): manifests, operator state, source offsets; derived from the commits.

    commit (in the shard) --publish--> checkpoints/<id>/{operators/..., offsets/..., manifest.json} --> _latest

The commit point is the shard's compare-and-set, which names the checkpoint id. Any process can write everything here
again from the commit's batch manifest; a crash at any point loses nothing.
"""
