"""The command line: parse, call, show progress, exit code."""
