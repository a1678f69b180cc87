"""The command line: the verbs of `dpaudit` and what they print."""
