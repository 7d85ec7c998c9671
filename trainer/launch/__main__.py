"""`python -m trainer.launch` is `mayfly launch`."""

import sys

from trainer.cli.main import main

sys.exit(main(["launch", *sys.argv[1:]], prog="python -m trainer.launch"))
