"""`make bench`: the only workload so far. `ARGS='--help'` lists its sizes."""

from tests.benchmarks.upl import main

main()
