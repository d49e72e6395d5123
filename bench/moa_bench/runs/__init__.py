"""One harness for all suites: run them, compare two results, and write the page of results."""
