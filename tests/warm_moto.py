"""Load moto with the services of the embedded AWS. Run by the tests' fork server, which must not import anything of ours."""

import os
from pathlib import Path

# As trainer/rehearsal/wire.py sets it: moto reads the variable when it is imported.
os.environ["MOTO_AMIS_PATH"] = str(Path(__file__).parents[1] / "trainer" / "rehearsal" / "images.json")

from moto.core.routing import get_service_router  # noqa: E402  (the variable above comes first)
from moto.core.utils import get_service_model  # noqa: E402
from moto.moto_server.werkzeug_app import create_backend_app  # noqa: E402

for service in ("ec2", "iam", "lambda", "logs", "s3", "scheduler", "ssm", "sts"):
    get_service_model(service)
    get_service_router(service)
    create_backend_app(service)
