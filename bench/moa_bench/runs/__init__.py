"""One harness for all suites: run them, compare two results, and list the results that there are."""
