"""One module for each verb, with `run(arguments)`."""
