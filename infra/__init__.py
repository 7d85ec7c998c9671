"""The permanent resources of the account, as a Pulumi program. Read infra/__main__.py from the top."""
