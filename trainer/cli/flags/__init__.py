"""The flags of the verbs. argparse and nothing else: `--help` must answer at once."""
