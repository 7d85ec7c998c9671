"""A stack with every setting of storage that is off by default: the program is applied once with these."""

CONFIG = {"storage": "efs-cache"}
