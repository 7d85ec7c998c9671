"""The trial of a user's files: what it measures, and the one line that each mistake gets, from a child that
always ends.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

from benchmarks.memory import counted, predicted
from tests.desk import until
from tests.jobs import job_of, with_settings
from trainer.base.errors import ConfigError, UsageError
from trainer.job.job import Job
from trainer.machines.kernels import window_costs
from trainer.machines.memory import footprint
from trainer.train.own import check as own_check
from trainer.train.own.check import checked, contents, copied, portable
from trainer.train.own.probe import ON_A_NODE
from trainer.train.own.probe_model import measure_model
from trainer.train.own.probe_target import measure_target
from trainer.train.packs.pack import Member, new_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
NETS = ROOT / "tests" / "trainer" / "outside" / "nets.py"
START = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n"
INIT = (
    "    def __init__(self, features, outputs):\n        super().__init__()\n        self.f ="
    " nn.Linear(features, outputs)\n"
)


def job_with(folder: Path, text: str, **keys: object) -> Job:
    (folder / "net.py").write_text(text)
    return job_of(model=f"{folder / 'net.py'}:Net", **{"lookback": 5, **keys})


def tried(job: Job) -> Job:
    """Try the job's files in this process: a child takes seconds to load torch."""
    if "target" in job.own_files:
        job = job.with_own_files({"target": measure_target(job, lambda stage: None)})
    return (
        job.with_own_files({"model": measure_model(job, lambda stage: None)})
        if "model" in job.own_files
        else job
    )


def refusal(make) -> str:
    with pytest.raises(UsageError) as caught:
        make()
    line = str(caught.value)
    assert "\n" not in line and "Traceback" not in line
    return line


# --- what is measured
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("Norm", {"model.hidden": 64, "lookback": 20, "batch": 96}),
        pytest.param(
            "Attention", {"model.width": 32, "lookback": 24, "batch": 48}, marks=pytest.mark.nightly
        ),
        pytest.param("Chunks", {"model.width": 32, "chunk": 64, "batch": 8}, marks=pytest.mark.nightly),
    ],
)
def test_planner_and_packer_use_measurements_like_a_formula(name, keys):
    job = tried(job_of(model=f"{NETS}:{name}", **keys))
    member = Member(
        name="a",
        rows_TF=torch.zeros(9, 37),
        labels_TK=torch.zeros(9, 1),
        mean_F=torch.zeros(37),
        std_F=torch.ones(37),
    )
    network = new_model(member, job)
    assert job.cost.weights == sum(weight.numel() for weight in network.parameters())
    part, _ = predicted(with_settings(job, micro_batch=job.train.batch), on_gpu=False)
    seen = counted(with_settings(job, micro_batch=job.train.batch))
    assert seen.kept == pytest.approx(part.kept, rel=0.1)
    assert seen.peak <= 1.5 * (part.kept + part.workspace)
    assert footprint(job, features=37, bars=1000, windows=8).total > 0
    assert all(0 < cost < 100 for cost in window_costs(job.cost))


def test_its_cost_is_that_of_its_multiplications(tmp_path):
    wide = START + INIT.replace("nn.Linear(features, outputs)", "nn.Linear(5 * features, outputs)")
    text = wide + "        self.g = nn.Linear(5 * features, 1000)\n    def forward(self, x):\n"
    text += "        return self.f(x.flatten(1)) + self.g(x.flatten(1)).mean(1, keepdim=True)\n"
    job = tried(job_with(tmp_path, text))
    mflop = job.model.measured.mflop
    # Forwards, and backwards for the weights alone: nothing asks for the gradient of x.
    assert mflop == pytest.approx(2 * 2 * 5 * 37 * 1001 / 1e6, rel=1e-3)
    assert window_costs(job.cost)[0] == pytest.approx(mflop / 21.1)


def test_our_lstm_as_a_users_file_costs_about_the_same(tmp_path):
    text = START + "    def __init__(self, features, outputs):\n        super().__init__()\n"
    text += "        self.f, self.h = nn.LSTM(features, 64, 2, batch_first=True), nn.Linear(64, outputs)\n"
    text += "    def forward(self, x):\n        return self.h(self.f(x)[0][:, -1])\n"
    cost = tried(job_with(tmp_path, text, lookback=60)).cost
    assert window_costs(cost)[0] == pytest.approx(1.0, rel=0.2)


def test_measurements_of_other_settings_do_not_count(tmp_path):
    job = tried(
        job_with(tmp_path, START + INIT + "    def forward(self, x):\n        return self.f(x[:, -1])\n")
    )
    assert job.cost.is_measured and job.train.batch == 256
    assert not with_settings(job, lookback=7).cost.is_measured


# --- what is refused
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (INIT, "Net.forward fails on x of shape (4, 5, 37) (NotImplementedError"),
        (
            INIT + "    def forward(self, x):\n        return self.f(x)\n",
            "Net.forward returns shape (4, 5, 1)",
        ),
        (INIT + "    def forward(self, x):\n        return self.f(x[:, -1]), 1\n", "Net.forward fails on"),
        (
            INIT + "    def forward(self, x):\n        return self.f(x[:, -1]).log()\n",
            "outputs that are not finite",
        ),
        (
            INIT + "    def forward(self, x):\n        return self.f(x[:, -1]).detach()\n",
            "Net has no weight to train",
        ),
        (INIT + "    def forward(self, x):\n        return x[:, -1, :1]\n", "Net has no weight to train"),
        (
            "    def __init__(self, features):\n        super().__init__()\n",
            "Net takes no argument 'outputs'",
        ),
        (
            "    def __init__(self, features, outputs):\n        raise OSError('no')\n",
            "Net can't be built (OSError: no)",
        ),
        ("    def __init__(self, features, outputs):\n        pass\n", "Net can't be built (AttributeError"),
        (INIT + "        self.receptive_field = 'x'\n", "Net.receptive_field is 'x'"),
        (
            INIT + "    def forward(self, x):\n        y = self.f(x[:, -1])\n        return y - y.mean(0)\n",
            "Net uses statistics of the batch in evaluation",
        ),
        (
            INIT + "    def forward(self, x):\n        return self.f(nn.functional.dropout(x[:, -1], 0.5))\n",
            "Net is not deterministic in evaluation",
        ),
        (
            INIT
            + "        self.receptive_field = 3\n    def forward(self, x):\n        return self.f(x[:, 2:] +"
            " x.mean())\n",
            "Net",
        ),
        (
            INIT
            + "        self.receptive_field = 3\n    def forward(self, x):\n        return self.f(x[:, 2:] +"
            " x[:, -1:])\n",
            "Net looks ahead",
        ),
        (
            INIT
            + "        self.receptive_field = 2\n    def forward(self, x):\n        return self.f(x[:, 1:] +"
            " x[:, :1])\n",
            "Net sees more than its receptive_field of 2 bars",
        ),
        (
            INIT + "        self.e = nn.Embedding(9, 1, sparse=True)\n"
            "    def forward(self, x):\n        return self.f(x[:, -1]) + self.e((x[:, -1, 0] > 0).long())\n",
            "AdamW can't train Net",
        ),
        (
            INIT + "        self.register_buffer('b', torch.zeros(2, dtype=torch.complex128))\n"
            "    def forward(self, x):\n        return self.f(x[:, -1])\n",
            "Net.b is of type complex128",
        ),
    ],
)
def test_a_class_that_cannot_be_trained_is_one_error_line(tmp_path, rest, words):
    assert words in refusal(lambda: tried(job_with(tmp_path, START + rest)))


def test_an_unknown_setting_of_the_class_names_the_nearest(tmp_path):
    text = (
        START
        + INIT.replace("outputs)", "outputs, hidden=3)", 1)
        + "    def forward(self, x):\n        return self.f(x[:, -1])\n"
    )
    assert tried(job_with(tmp_path, text, **{"model.hidden": 4})).model.given == {"hidden": 4}
    line = refusal(lambda: tried(job_with(tmp_path, text, **{"model.hiden": 4})))
    assert line == "Net takes no argument 'hiden'. Did you mean hidden?"


def test_a_class_that_is_no_module_is_refused(tmp_path):
    assert "Net is not a torch.nn.Module" in refusal(lambda: tried(job_with(tmp_path, "class Net: pass\n")))


# --- the child
# -------------------------------------------------------------------------------------------------------


def test_prints_of_the_users_code_do_not_reach_the_answer(tmp_path, capfd, forked_children):
    text = (
        START
        + INIT
        + "        print('{\"job\": 1}')\n    def forward(self, x):\n        return self.f(x[:, -1])\n"
    )
    job = checked(job_with(tmp_path, "print('hello')\n" + text))
    assert job.cost.is_measured and job.model.sha256 and capfd.readouterr() == ("", "")
    assert checked(job) == job, "and is not asked again"


def test_a_trial_that_hangs_or_dies_is_one_error_line(tmp_path, forked_children):
    endless = START + "    def __init__(self, features, outputs):\n        while True: pass\n"
    line = refusal(lambda: checked(job_with(tmp_path, endless), limit_seconds=1.0))
    assert line.startswith("Net was not tried within 1 s (it was busy with loading net.py and building Net)")
    dies = "import os\nos._exit(7)\n"
    assert "ended with exit code 7 during loading net.py" in refusal(
        lambda: checked(job_with(tmp_path, dies))
    )


@pytest.mark.nightly
def test_an_import_that_a_node_lacks_is_named(tmp_path, forked_children):
    end = START + INIT + "    def forward(self, x):\n        return self.f(x[:, -1])\n"
    line = refusal(lambda: checked(job_with(tmp_path, "import moto\n" + end)))
    assert line.startswith("net.py imports moto, which a node does not have (")
    late = end.replace("        return self.f", "        import helpers.more\n        return self.f")
    assert "net.py imports helpers.more, which a node" in refusal(lambda: checked(job_with(tmp_path, late)))
    fine = "try:\n    import moto\nexcept ImportError:\n    moto = None\nassert moto is None\n"
    assert checked(
        job_with(tmp_path, fine + "import numpy, math, trainer.targets.bars\n" + end)
    ).cost.is_measured


def test_modules_of_a_node_are_those_of_its_lock():
    lock = (ROOT / "trainer" / "node" / "requirements.lock").read_text()
    named = {
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)
    }
    found = {
        module
        for module, distributions in packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", name).lower() for name in distributions} & named
        and module.isidentifier()
        and not module.startswith("_")
    }
    assert {*found, "torch"} - {"example"} == set(ON_A_NODE)  # an example of a package's own, by mistake


@pytest.mark.nightly
def test_the_child_ends_with_its_parent(tmp_path):
    mark = tmp_path / "pid"
    text = (
        f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()) + '.')\nwhile True:"
        " pass\n"
    )
    job = job_with(tmp_path, text)
    script = "import sys\nfrom trainer.job.reading import job_from_json\nfrom trainer.train.own.check import checked\n"
    script += "checked(job_from_json(sys.argv[1]))\n"
    parent = subprocess.Popen([sys.executable, "-c", script, json.dumps(job.to_dict())], cwd=ROOT)
    pid = int(
        until(lambda: mark.exists() and mark.read_text().endswith(".") and mark.read_text()).rstrip(".")
    )
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(
        lambda: (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
        )
    )


def test_without_torch_a_job_is_hashed_and_not_estimated(tmp_path, monkeypatch):
    from trainer.machines.chips import named_profile
    from trainer.machines.rates import NOT_ESTIMATED, rate_of

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    job = checked(job_with(tmp_path, "raise ValueError\n"))
    assert job.model.sha256 and not job.cost.is_measured
    assert rate_of(named_profile("t4"), job).basis == NOT_ESTIMATED
    assert rate_of(named_profile("t4"), job).is_estimate


def test_a_desk_that_cannot_run_the_trial_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(own_check, "MODULE", "trainer.no_such_module")
    with pytest.raises(ConfigError, match="your file can't be tried here"):
        checked(job_with(tmp_path, "class Net: pass\n"))


def test_a_portable_job_has_no_folders_and_workers_get_copies(tmp_path, forked_children):
    job = tried(
        job_with(tmp_path, START + INIT + "    def forward(self, x):\n        return self.f(x[:, -1])\n")
    )
    sha256 = (tmp_path / "net.py").read_bytes()
    assert list(contents(checked(job)).values()) == [sha256]
    away = portable(job)
    assert away.model.file == "net.py"
    assert away.cost.is_measured
    assert str(tmp_path) not in json.dumps(away.to_dict())
    here = copied(checked(job), tmp_path / "own_files")
    (tmp_path / "net.py").write_text("an edit\n")
    assert here.model.load().__name__ == "Net" and here.model.base_name == "net.py"
    assert [path.name for path in (tmp_path / "own_files").iterdir()] == [f"{here.model.sha256}.py"]
    assert portable(here) == replace_file(here, "net.py")


def replace_file(job: Job, name: str) -> Job:
    return job.with_own_files({"model": job.model.with_file(name)})
