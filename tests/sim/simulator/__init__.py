"""A simulator of the whole protocol on virtual time. See docs/testing.md."""
