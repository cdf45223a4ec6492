"""Logic of the workflow: one module per concept, imported by the command-line tools in scripts/ and by the tests."""
