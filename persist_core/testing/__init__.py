"""For authors of other backends: conformance suites, races, fault injection."""
