"""The objects that a program holds: a client on a location, and readers, writers and holds of one shard."""
