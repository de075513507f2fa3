"""The doctor: what it says of machines, packages and devices that are and aren't well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vaak.core.machine import GIB, cpu_quota
from vaak.runs.preflight.doctor import DoctorFinding, devices, machine, packages, training
from vaak.runs.preflight.doctor.packages import Import, examine_packages, find_module, look_up, try_imports

CUDA = torch.device("cuda")
Usage = namedtuple("Usage", "total used free")


def by_name(findings: Any) -> dict[str, DoctorFinding]:
    return {finding.name: finding for finding in findings}


# The machine.


def test_this_machine_is_described(tmp_path: Path):
    found = by_name(machine.examine_machine(tmp_path))
    assert {"Python", "processor", "memory", "disk", "clock"} <= set(found)
    assert all(finding.about == "machine" and finding.said for finding in found.values())
    assert sys.version.split()[0] in found["Python"].said
    assert f"{os.cpu_count()} cores" in found["processor"].said


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 2.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "250000 100000"}, 0.5),
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("0::/outside", {"cpu.max": "100000 100000"}, 1.0),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/a", {"a/cpu.max": "100000 100000"}, None),
        ("", {}, None),
    ],
)
def test_the_processors_that_a_container_grants(own: str, files: dict[str, str], quota: float | None, tmp_path: Path):
    (tmp_path / "own").write_text(own + "\n" if own else "")
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == quota


def test_a_quota_below_the_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "allowed_cores", lambda: 64)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 3.5)
    found = machine.processors()
    assert found.mark == "warning"
    assert "num_threads: 3" in found.advice
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)
    assert machine.processors().mark == "ok"


@pytest.mark.parametrize(("free", "mark"), [(100 * GIB, "ok"), (GIB, "warning"), (1000, "problem")])
def test_disks(free: int, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(200 * GIB, 0, free))
    found = machine.disk(tmp_path / "not" / "there", "disk")
    assert found.mark == mark
    assert str(tmp_path) in found.said
    assert bool(found.advice) == (mark != "ok")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert machine.disk(tmp_path, "disk").mark == "problem"


def test_little_memory_shared_memory_and_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import resource

    monkeypatch.setattr(machine, "host_memory", lambda: SimpleNamespace(read=lambda: (31 * GIB, 32 * GIB, 0)))
    assert machine.memory().mark == "warning"
    assert machine.memory().said == "1.0 GiB free of 32.0 GiB"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB // 16, 0, 0))  # what Docker gives
    (found,) = machine.shared_memory(tmp_path)
    assert found.mark == "warning"
    assert "--shm-size" in found.advice
    assert list(machine.shared_memory(tmp_path / "none")) == []
    for soft, mark in ((256, "warning"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, 65536))
        (found,) = machine.open_files()
        assert found.mark == mark
        assert ("ulimit -n" in found.advice) == (mark == "warning")


def test_a_clock_behind_the_installation_is_a_warning():
    assert machine.clock(time.time()).mark == "ok"
    assert machine.clock(0.0).mark == "warning"


# The packages.


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules are found first."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, code in {
        "torchaudio": "raise OSError('libcudart.so.13: cannot open shared object file\\nand more')",
        "torchcodec": "raise ImportError('no FFmpeg')",
        "xformers": "import os; os.abort()",
        "bitsandbytes": "print(5); print('{}'); raise SystemExit('no GPU')",
        "peft": "print('well')",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def test_what_is_broken_is_named_however_it_breaks(planted: Path):
    found = try_imports(["torchaudio", "nowhere", "xformers", "torchcodec", "bitsandbytes", "nowhere.at_all", "peft"])
    assert found == {
        "torchaudio": Import(True, "OSError: libcudart.so.13: cannot open shared object file\nand more"),
        "nowhere": Import(False),
        "xformers": Import(True, "it crashes Python"),
        "torchcodec": Import(True, "ImportError: no FFmpeg"),
        "bitsandbytes": Import(True, "SystemExit: no GPU"),
        "nowhere.at_all": Import(False),
        "peft": Import(True, None),
    }


def test_looking_up_imports_no_module(planted: Path, monkeypatch: pytest.MonkeyPatch):
    (planted / "vocos.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(planted)
    assert look_up(["vocos", "nowhere", "nowhere.at_all"]) == {
        "vocos": Import(True),
        "nowhere": Import(False),
        "nowhere.at_all": Import(False),
    }
    assert "vocos" not in sys.modules


def test_an_import_that_never_ends_is_named(planted: Path, monkeypatch: pytest.MonkeyPatch):
    (planted / "deepspeed.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setattr(packages, "IMPORT_TIMEOUT_SECONDS", 0.5)
    assert try_imports(["deepspeed"]) == {"deepspeed": Import(True, "it takes more than 0 s")}


def all_well() -> dict[str, Import]:
    names = [*map(find_module, packages.required()), *packages.OPTIONAL, *packages.OTHERS]
    return dict.fromkeys(names, Import(True))


def test_broken_and_missing_packages_say_what_they_break():
    broken = all_well() | {
        "torchaudio": Import(True, "OSError: libcudart.so.13\nmore"),
        "datasets": Import(False),
        "wandb": Import(True, "ImportError: x"),
        "tokenizers": Import(False),
        "safetensors": Import(True, "OSError: y"),
    }
    found = by_name(examine_packages(broken))
    assert found["torchaudio"].mark == "warning"
    assert "(OSError: libcudart.so.13); it breaks speechbrain" in found["torchaudio"].said
    assert "pip uninstall torchaudio" in found["torchaudio"].advice
    assert (found["datasets"].mark, found["wandb"].mark) == ("ok", "warning")
    assert "pip install 'vaak[hf]'" in found["datasets"].said
    assert (found["tokenizers"].mark, found["safetensors"].mark) == ("problem", "problem")
    assert "torch" in found["needed"].said
    assert "tokenizers" not in found["needed"].said
    assert all(finding.mark == "ok" for finding in examine_packages(all_well()))


def test_versions_are_held_against_what_is_needed_and_what_was_tested(monkeypatch: pytest.MonkeyPatch):
    real = packages.get_version
    monkeypatch.setattr(packages, "get_version", lambda name: {"numpy": "1.26.4", "rich": "99.0"}.get(name, real(name)))
    found = by_name(examine_packages(all_well()))
    assert found["numpy"].mark == "problem"
    assert found["numpy"].said.startswith("1.26.4, and Vaak needs >=")
    assert "rich 99.0 (tested: " in found["other than tested"].said
    assert found["other than tested"].mark == "ok"


@pytest.mark.slow
def test_a_torch_that_is_broken_is_a_problem_and_not_a_traceback(tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: undefined symbol')")
    code = "import sys; from vaak.cli.main import main; sys.argv = ['vaak', 'doctor', 'f.yml', '--json']; main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stderr
    report = json.loads(done.stdout)
    assert report["trains"] is False
    torch_is = next(finding for finding in report["findings"] if finding["name"] == "torch")
    assert torch_is["mark"] == "problem"
    assert "OSError: libtorch_cpu.so: undefined symbol" in torch_is["said"]
    assert {finding["about"] for finding in report["findings"]} == {"machine", "packages"}


# What would run.


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with a CUDA device, as torch would describe it; tests change what is in the dictionary."""
    about = {"name": "GeForce Nothing", "major": 9, "minor": 0, "architectures": ["sm_80", "sm_90a"], "bf16": True}
    device = lambda _: SimpleNamespace(name=about["name"], major=about["major"], minor=about["minor"])  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: about["architectures"])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: about["bf16"])
    monkeypatch.setattr(training, "cuda_driver", lambda: "570.1")
    return about


def test_cuda_devices(cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    first, second = training.cuda_devices()
    assert (first.name, second.name, first.mark) == ("cuda:0", "cuda:1", "ok")
    assert "GeForce Nothing, 10.0 GiB free of 80.0 GiB, capability 9.0" in first.said
    assert "driver 570.1" in first.said
    assert "--processes 2" in training.processes(CUDA).said
    monkeypatch.setattr(training, "pick_device", lambda _: CUDA)
    assert "auto is bf16" in by_name(training.examine_training())["precision"].said
    cuda["bf16"] = False
    said = by_name(training.examine_training())["precision"].said
    assert "auto is no: this device has no hardware for bf16" in said


@pytest.mark.parametrize(
    ("capability", "architectures", "known"),
    [
        ((8, 6), ["sm_80"], True),  # a binary of an older one of its family
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # compiled when it is first used
        ((7, 0), ["sm_80", "compute_80"], False),
        ((10, 0), ["sm_100"], True),
    ],
)
def test_whether_torch_is_built_for_a_device(cuda: dict[str, Any], capability, architectures, known: bool):
    cuda["major"], cuda["minor"] = capability
    cuda["architectures"] = architectures
    assert next(training.cuda_devices()).mark == ("ok" if known else "warning")


def test_a_driver_that_torch_can_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    assert training.cuda_driver(tmp_path / "version") == "535.104.05"
    assert training.cuda_driver(tmp_path / "none") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(training, "cuda_driver", lambda: None)
    assert list(training.cuda_devices()) == []
    monkeypatch.setattr(training, "cuda_driver", lambda: "535.104.05")
    monkeypatch.setattr(torch.version, "cuda", None)
    (found,) = training.cuda_devices()
    assert found.mark == "warning"
    assert "built without CUDA" in found.said
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    assert "can't use it: The NVIDIA driver on your system is too old" in next(training.cuda_devices()).said


def test_compiling_needs_a_compiler_headers_and_on_cuda_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    (tmp_path / "Python.h").touch()
    (tmp_path / "triton.py").write_text("raise OSError('libcuda.so.1')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert devices.compiler("cpu").mark == "ok"
    assert devices.find_missing_for_compile("cuda") == ["working triton"]
    (tmp_path / "Python.h").unlink()
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    found = devices.compiler("cpu")
    assert found.mark == "warning"
    assert "not possible without C++ compiler" in found.said
    assert "Python.h" in found.said


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "allowed_cores", lambda: 4)
    for number, mark in ((4, "ok"), (64, "warning")):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        assert training.threads().mark == mark
    assert "num_threads: 4" in training.threads().advice


def test_of_a_key_only_its_presence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    monkeypatch.setattr(devices, "get_version", lambda _: "1.0")
    assert "without an API key" in devices.weights_and_biases().said
    file.write_text("machine api.wandb.ai login user password s3cret\n")
    file.chmod(0o600)
    assert devices.weights_and_biases().said == "mode online, with an API key"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert "without an API key" in devices.weights_and_biases().said
    file.write_text("machine api.wandb.ai password\n")
    assert "without an API key" in devices.weights_and_biases().said
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said = "mode offline, with an API key"
    assert devices.weights_and_biases() == DoctorFinding("what would run", "W&B", "ok", said)
    monkeypatch.setattr(devices, "get_version", lambda _: None)
    assert "not installed" in devices.weights_and_biases().said


@pytest.mark.parametrize(
    ("text", "mark", "said"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16\n", "ok", "MULTI_GPU, num_processes 4"),
        ("distributed_type: FSDP\n", "warning", "doesn't train under FSDP"),
        ("distributed_type: MULTI_CPU\nuse_cpu: true\n", "warning", "MULTI_CPU"),
        ("a: [\n", "warning", "default_config.yaml"),
    ],
)
def test_accelerates_configuration(text: str, mark: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert next(devices.accelerate_configuration("cpu")).said.startswith("no configuration")
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(text)
    (found,) = devices.accelerate_configuration("cpu")
    if sys.platform == "linux" or mark != "warning":
        assert found.mark == mark
    assert said in found.said


def test_what_this_machine_would_do():
    found = by_name(training.examine_training())
    assert {"device", "precision", "compile", "threads", "processes", "W&B", "accelerate"} <= set(found)
    assert all(finding.mark != "problem" for finding in found.values())


SMI = "NVIDIA H100 80GB HBM3, 79000, 81559, 9.0, 570.1\nTesla V100-SXM2-16GB, 16000, 16384, 7.0, 570.1\n"


@pytest.mark.parametrize(
    ("printed", "built", "expected"),
    [
        (SMI, "13.0", {"cuda:0", "cuda:1", "auto uses cuda", "auto is bf16", "capability 9.0", "--processes 2"}),
        (SMI.splitlines()[1], "13.0", {"cuda:0", "15.6 GiB free of 16.0 GiB", "no hardware for bf16"}),
        (SMI, None, {"NVIDIA H100 80GB HBM3 (driver 570.1), but torch is built without CUDA", "auto uses cpu"}),
        ("Failed to initialize NVML: Driver/library version mismatch", "13.0", {"auto uses cpu"}),
        ("", "13.0", {"auto uses cpu"}),
    ],
)
def test_devices_are_known_without_torch(printed: str, built: str | None, expected: set[str], tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(devices, "get_torch_cuda", lambda: built)
    said = "\n".join(f"{one.name} {one.said}" for one in devices.examine_devices())
    assert all(words in said for words in expected), said


def test_what_torch_was_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert devices.get_torch_cuda() == torch.version.cuda
    (tmp_path / "version.py").write_text("cuda: str | None = '13.0'\nhip: str | None = None\n")
    at = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: at)
    assert devices.get_torch_cuda() == "13.0"
