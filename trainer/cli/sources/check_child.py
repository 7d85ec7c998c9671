"""The data check as a child process: it needs pyarrow, and the launcher does not.

It ends when the launcher ends, for any reason. Its errors are the user's errors, word for word.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.base.errors import ConfigError, DataError
from trainer.base.extras import needs
from trainer.base.files import HeldFolder
from trainer.job.job import Job

# Fields of an index entry.
INDEXED = ("file", "bytes", "sha256", "timeframe", "synthetic", "further", "told", "holds")


class CheckChild:
    """`python -m trainer.bars.check` on a path: of a job, or without one as `--describe` or
    `--joined` does.
    """

    def __init__(
        self,
        data: str | Path,
        *,
        job: Job | None = None,
        joined: bool = False,
        columns: Sequence[str] = (),
    ) -> None:
        needs("pyarrow")
        self.data = data
        self.folder = HeldFolder("check")
        command = [sys.executable, "-m", "trainer.bars.check", "--data", str(data)]
        if job is None:
            command += ["--joined" if joined else "--describe"]
            command += [f"--columns={entry}" for entry in columns]
        else:
            job_file = Path(self.folder.name) / "job.json"
            job_file.write_text(json.dumps(job.to_dict()), encoding="utf-8")
            command += ["--job", str(job_file)]
        # Cleaned up by `close`; where this process is killed, by the child or the next command.
        command += ["--scratch", self.folder.name]
        # The child ends when the other end of its pipe closes: with this process, whatever ends it.
        theirs, self.pipe = os.pipe()
        self.process = subprocess.Popen(
            [*command, "--parent", str(theirs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(theirs,),
        )
        os.close(theirs)

    def report(self) -> dict[str, Any]:
        """Wait for the child and return what it found. Raises DataError as it wrote it."""
        try:
            stdout, stderr = self.process.communicate()
        finally:
            self.close()
        if self.process.returncode < 0:  # a library that reads files ended it
            why = (stderr.strip().splitlines() or [f"signal {-self.process.returncode}"])[-1][:160]
            do = "Write its files again, or check them one by one with --data FILE."
            raise DataError(f"the data check crashed while it read {self.data}", why=why, do=do)
        if self.process.returncode not in (0, 2) or not stdout.strip():
            lines = stderr.strip().splitlines() or [f"exit {self.process.returncode}"]
            why = lines[-1]
            raise ConfigError("the data check could not run", why=why, do="Run make setup.")
        report: dict[str, Any] = json.loads(stdout)
        if "error" in report:
            error = report["error"]
            raise DataError(error["what"], why=error.get("why", ""), do=error.get("do", ""))
        return report

    def close(self) -> None:
        """End the child if it still runs, and remove its folder."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        self.folder.cleanup()
