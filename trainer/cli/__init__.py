"""The command line: parser, verbs, what they draw, and where a launch's work comes from."""
