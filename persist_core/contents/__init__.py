"""The contents of a batch: description, manifest, parts, key ranges, schema versions and operator state."""
