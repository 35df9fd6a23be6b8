"""`python -m tests.benchmarks` is `make bench`."""

from tests.benchmarks.aims import main

main()
