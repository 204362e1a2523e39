"""What the demonstration, the tests and the benchmarks need that a user of the library does not."""
