"""A stack with every setting of storage that is off by default: the program is applied once with these."""

CONFIG = {"storage": "efs-cache", "kms_key": "create", "access_logs": "true", "replicate_to": "eu-west-1"}
