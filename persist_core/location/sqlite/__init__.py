"""Consensus in SQLite."""
