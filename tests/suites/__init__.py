"""Suites that every backend passes: conformance, races, fault injection."""
