"""Consensus in PostgreSQL."""
