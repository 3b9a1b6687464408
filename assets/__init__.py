"""Files that come with the package: programs and run files for the demo and the tests."""
