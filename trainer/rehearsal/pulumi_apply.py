"""Apply the Pulumi program to the embedded AWS, resource by resource: the same infra/ that `pulumi up`
applies to an account.

    python -m trainer.rehearsal.pulumi_apply --endpoint URL --account 000000000001 [--set KEY=VALUE]

The desk's secret key is read from stdin, since every user of the machine can read a command line. Pulumi's
own mocks run the program; each resource it registers is made by `pulumi_resources`. It runs in a process of
its own, since Pulumi keeps its settings and its event loop in globals. Outputs and calls go to stdout, as
`applied_program` writes them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trainer
from trainer.aws.access import Access
from trainer.base.environment import for_embedded_aws
from trainer.base.errors import ConfigError, TrainerError, UsageError, nearest
from trainer.rehearsal.applied_program import AppliedProgram, from_json, to_json
from trainer.rehearsal.forks import start_python
from trainer.rehearsal.keys import Credentials, access_key

STACK = "dev"
MOST_SETTINGS_BYTES = 1 << 20
APPLY_SECONDS = 540  # against a hang: it takes four on an idle machine, and took over 120 on a busy one


def apply(
    access: Access,
    *,
    config: Mapping[str, str] | None = None,
    module: str = __name__,
    server: Path | None = None,
) -> AppliedProgram:
    """Apply the program to an account of a running server, in a process that runs `module` (a fork of
    `server`, if given), and return the application. Takes a few seconds.

    `access` must be a rehearsal's: its key names the account. Raises ConfigError with the child's error.
    """
    if access.endpoint_url is None or access.access_key is None or access.secret_key is None:
        raise ConfigError(
            "the Pulumi program is only applied to an embedded AWS", do="Run `pulumi up` for an account."
        )
    what = "the Pulumi program could not be applied to the embedded AWS"
    where = ("--endpoint", access.endpoint_url, "--account", access.access_key[4:16])
    chosen = [f"--set={key}={value}" for key, value in (config or {}).items()]
    environment = for_embedded_aws(source=str(Path(next(iter(trainer.__path__))).parent))
    with ExitStack() as opened:
        secret, out, err = (opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        secret.write(access.secret_key)
        secret.seek(0)
        process = start_python(
            ("-m", module, *where, *chosen),
            server=server,
            environment=environment,
            folder=Path.cwd(),
            files={0: secret.fileno(), 1: out.fileno(), 2: err.fileno()},
            name="pulumi",
        )
        try:
            code = process.wait(timeout=APPLY_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            process.kill()
            raise ConfigError(what, why=f"{APPLY_SECONDS} s passed") from error
        out.seek(0)
        err.seek(0)
        if code:
            lines = err.read().strip().splitlines() or ["it said nothing"]
            raise ConfigError(what, why=lines[-1])
        return from_json(out.read())


def apply_here(access: Access, *, account: str, config: Mapping[str, str]) -> AppliedProgram:
    """Apply the program in this process, which should do nothing else.

    Raises ConfigError for resources that the embedded AWS can't apply, and for settings that the program
    refuses.
    """
    import pulumi
    from pulumi.runtime import get_root_resource
    from pulumi.runtime.config import set_all_config
    from pulumi.runtime.mocks import set_mocks

    from trainer.rehearsal.pulumi_mocks import EmbeddedCloud  # late, as pulumi: `apply` needs neither

    program = program_folder()
    project = _read_yaml(program / "Pulumi.yaml")
    values = settings(program, stack=STACK, overrides=config)
    cloud = EmbeddedCloud(access, account=account)
    outputs: dict[str, Any] = {}
    set_mocks(cloud, project=project["name"], stack=STACK, preview=False)
    own = {f"{project['name']}:{key}": value for key, value in values.items()}
    set_all_config({**own, "aws:region": cloud.resources.region})

    def run_program() -> Any:
        runpy.run_path(str(program / project["main"] / "__main__.py"), run_name="__main__")
        exports: dict[str, Any] = getattr(get_root_resource(), "outputs", {})
        return pulumi.Output.all(**exports).apply(outputs.update)

    sys.path.insert(0, str(program))  # for `from infra.network import Network`
    try:
        # Waits for every resource, and raises the first error.
        pulumi.runtime.test(run_program)()  # type: ignore[no-untyped-call]
    except pulumi.RunError as error:  # the program refused a setting
        raise ConfigError(str(error)) from error
    return AppliedProgram(account=account, outputs=outputs, calls=tuple(cloud.recorder.calls))


def program_folder() -> Path:
    """Return the folder with Pulumi.yaml: the checkout's, or the copy that an installed wheel carries."""
    package = Path(next(iter(trainer.__path__)))
    for folder in (package.parent, package / "_infra"):
        if (folder / "Pulumi.yaml").is_file() and (folder / "infra" / "__main__.py").is_file():
            return folder
    why, do = f"neither beside nor inside {package}", "Install mayfly again."
    raise ConfigError("the Pulumi program is missing", why=why, do=do)


def settings(program: Path, *, stack: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the stack's settings in Pulumi's order: defaults, then Pulumi.<stack>.yaml, then overrides.

    Raises UsageError for a setting that Pulumi.yaml doesn't declare, or declares with another type.
    """
    project = _read_yaml(program / "Pulumi.yaml")
    declared: dict[str, dict[str, Any]] = project["config"]
    values = {key: one["default"] for key, one in declared.items() if "default" in one}
    stack_file = program / f"Pulumi.{stack}.yaml"
    own = _of_stack(_read_yaml(stack_file), project["name"]) if stack_file.is_file() else {}
    return _as_texts(values | own | dict(overrides), declared)


def settings_in(file: Path) -> dict[str, str]:
    """Return the settings of a file that has the form of a Pulumi.<stack>.yaml. Raises UsageError for any
    other file, and as `settings` does.
    """
    import yaml

    project = _read_yaml(program_folder() / "Pulumi.yaml")
    what, do = f"{file} has no settings of a stack", "Write it as docs/runs.md has it under Retrains."
    if not file.is_file():
        raise UsageError(f"{file} is not a file", do="Name one with the settings of the rehearsal's stack.")
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_SETTINGS_BYTES + 1)
        found = yaml.safe_load(text) if len(text) <= MOST_SETTINGS_BYTES else None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(what, why=" ".join(str(error).split())[:160], do=do) from error
    if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
        raise UsageError(what, why="it is not YAML with a table `config`", do=do)
    return _as_texts(_of_stack(found, project["name"]), project["config"])


def _of_stack(content: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return the project's settings in the content of a stack's file."""
    named = [(str(key).rpartition(":"), value) for key, value in (content.get("config") or {}).items()]
    # Others are providers': aws:region is the server's here.
    return {name: value for (namespace, _, name), value in named if namespace in ("", project)}


def _as_texts(values: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    for key in values:
        if key not in declared:
            do = nearest(key, declared) or "Pulumi.yaml lists them."
            raise UsageError(f"the stack has no setting '{key}'", do=do)
    return {key: _as_text(key, value, declared[key]["type"]) for key, value in values.items()}


def _as_text(key: str, value: Any, kind: str) -> str:
    """Return a setting as Pulumi's configuration carries it, which is always text."""
    if kind in ("array", "object") and not isinstance(value, str):
        return json.dumps(value)
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    fits = {"integer": text.lstrip("-").isdecimal(), "boolean": text in ("true", "false")}.get(kind, True)
    if not fits:
        what, do = f"the stack's setting '{key}' is {text!r}", "Correct it in the file of settings."
        raise UsageError(what, why=f"Pulumi.yaml declares it as {kind}", do=do)
    return text


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # late: only a rehearsal has it, with pulumi

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.rehearsal.pulumi_apply", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--endpoint", required=True, help="URL of the embedded AWS")
    parser.add_argument("--account", required=True, help="account id, 12 digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    gc.disable()  # saves a quarter of this process's time
    secret_key = sys.stdin.readline().strip()
    own = Credentials(access_key=access_key(options.account), secret_key=secret_key)
    access, config = own.access(options.endpoint), dict(pair.partition("=")[::2] for pair in options.set)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the outputs alone
            applied = apply_here(access, account=options.account, config=config)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(to_json(applied))
    return 0


if __name__ == "__main__":
    sys.exit(main())
