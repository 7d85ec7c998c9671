"""The cores of a worker, by trees of sysfs as machines have them."""

from __future__ import annotations

from pathlib import Path

from trainer.train.workers.affinity import core_list, cores_near_gpu, cores_of_worker

GPU = "0000:17:00.0"


def _machine(root: Path, *nodes: str, gpu: str = "") -> Path:
    for number, cores in enumerate(nodes):
        folder = root / "devices" / "system" / "node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    (root / "devices" / "system" / "node" / "online").write_text(f"0-{len(nodes) - 1}\n")
    device = root / "bus" / "pci" / "devices" / GPU
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(gpu + "\n")
    return root


def test_a_gpus_worker_runs_on_the_cores_near_it(tmp_path):
    root = _machine(tmp_path, "0-3,8-11", "4-7,12-15", gpu="4-7,12-15")
    assert cores_near_gpu(GPU, range(16), root=root) == {4, 5, 6, 7, 12, 13, 14, 15}
    assert cores_near_gpu(GPU, range(6), root=root) == {4, 5}


def test_a_gpus_worker_is_not_pinned_without_a_choice(tmp_path):
    root = _machine(tmp_path, "0-3", "4-7", gpu="4-7")
    assert cores_near_gpu(GPU, {5, 6}, root=root) == set()  # all that it may use is near
    assert cores_near_gpu(GPU, {0, 1}, root=root) == set()  # nothing that it may use is
    assert cores_near_gpu("0000:99:00.0", range(8), root=root) == set()
    (root / "bus" / "pci" / "devices" / GPU / "local_cpulist").write_text("what\n")
    assert cores_near_gpu(GPU, range(8), root=root) == set()


def test_cpu_workers_are_dealt_over_nodes_in_turn(tmp_path):
    root = _machine(tmp_path, "0-1", "2-3")
    dealt = [cores_of_worker(number, range(4), root=root) for number in range(6)]
    assert dealt == [{0, 1}, {2, 3}] * 3


def test_a_node_with_fewer_allowed_cores_gets_fewer_workers(tmp_path):
    root = _machine(tmp_path, "0-3", "4-7")
    dealt = [cores_of_worker(number, {0, 1, 2, 4}, root=root) for number in range(4)]
    assert [cores == {4} for cores in dealt].count(True) == 1
    assert all(cores in ({4}, {0, 1, 2}) for cores in dealt)


def test_cpu_workers_are_not_pinned_on_a_single_node(tmp_path):
    assert cores_of_worker(0, range(4), root=_machine(tmp_path / "one", "0-3")) == set()
    assert cores_of_worker(1, {0, 1}, root=_machine(tmp_path / "two", "0-3", "4-7")) == set()
    assert cores_of_worker(0, range(4), root=tmp_path / "none") == set()


def test_cores_are_written_as_the_kernel_writes_them():
    assert core_list({0, 1, 2, 3, 8}) == "0-3,8" and core_list({5}) == "5"
