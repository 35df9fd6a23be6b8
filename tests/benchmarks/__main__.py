"""`make bench`: the one workload that there is so far. `ARGS='--help'` lists its sizes."""

from tests.benchmarks.upl import main

main()
