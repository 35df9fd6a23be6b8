"""Shipped for whoever builds on this project: conformance suites for backends, races, fault injection."""
