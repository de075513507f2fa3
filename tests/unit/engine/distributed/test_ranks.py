"""Collectives of a single rank are free; ranks that can't be started are an error before anything begins."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
import torch

import vaak
from vaak.config.training import DistributedConfig, PerformanceConfig, TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.distributed import ranks
from vaak.engine.distributed.exchange import StepMessage
from vaak.engine.distributed.launcher import check_microbatches, own_place, pick_device, precision_from_launcher
from vaak.engine.distributed.ranks import Ranks, start_ranks

ENVIRONMENT = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_more_processes_than_gpus_are_an_error_that_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail(f"{device} was chosen"))
    for name, value in {"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="rank 2 has no GPU: 2 for 3 or more processes"):
        start_ranks(TrainingConfig.model_validate({"device": "cuda", "gradient_accumulation_steps": 3}))


def test_one_process_adds_up_to_itself():
    alone = Ranks(torch.device("cpu"))
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    gradients = alone.gradients([parameter])
    sums = {"main": torch.ones(())}
    assert gradients.reduce(sums, {"main": "token"}) == (sums, {"main": "token"})
    assert gradients.gradients[0].equal(torch.ones(3))
    assert alone.is_main
    assert alone.gather({"a": 1}) == [{"a": 1}]
    assert alone.sum({"a": 1.0}) == {"a": 1.0}
    assert alone.run_on_main(lambda: 7) == 7
    message = StepMessage({"token": 3.0}, stop="enough")
    assert alone.exchange(message) is message
    assert [alone.any(flag) for flag in (True, False)] == [True, False]
    alone.compare("at the start", {"seed": object()})  # nothing is hashed
    alone.wait()
    alone.close()


def test_a_failure_of_the_main_process_is_told():
    def fail() -> None:
        raise UserError("the corpus is empty")

    with pytest.raises(UserError, match=r"^the corpus is empty$"):
        Ranks(torch.device("cpu")).run_on_main(fail)


def test_alone_nothing_is_joined():
    alone = start_ranks(TrainingConfig(device="cpu"))
    assert (alone.rank, alone.world_size, alone.device.type) == (0, 1, "cpu")


def test_another_number_of_processes_than_asked_for_is_an_error():
    with pytest.raises(UserError, match=r"world_size is 2 but 1 process\(es\) were started.*--processes 2"):
        start_ranks(TrainingConfig(device="cpu", distributed=DistributedConfig(world_size=2)))


def test_more_processes_than_microbatches_is_an_error():
    with pytest.raises(UserError, match=r"4 processes share the 3 microbatch\(es\) of a step"):
        check_microbatches(TrainingConfig(device="cpu", gradient_accumulation_steps=3), 4)


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is another device")
def test_devices_that_are_not_there():
    assert pick_device("auto").type == pick_device("cpu").type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"training.device is {name} but this machine has none"):
            pick_device(name)


def test_accelerates_use_cpu_is_honoured_and_a_contradiction_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert pick_device("auto").type == "cpu"
    with pytest.raises(UserError, match="device is cuda but accelerate's configuration says use_cpu"):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("launched", "chosen", "given", "expected"),
    [
        (None, "bf16", True, "bf16"),
        ("no", "bf16", True, "bf16"),  # accelerate's default contradicts nothing
        ("bf16", "no", False, "bf16"),
        ("bf16", "bf16", True, "bf16"),
        ("bf16", "auto", True, "bf16"),
        ("no", "auto", False, "auto"),
        ("bf16", "fp16", True, "mixed_precision is fp16 but accelerate's configuration says bf16"),
        ("fp8", "no", False, "fp8, which isn't supported"),
    ],
)
def test_precision_of_the_launcher(
    launched: str | None, chosen: str, given: bool, expected: str, monkeypatch: pytest.MonkeyPatch
):
    if launched is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    if " " not in expected:
        assert precision_from_launcher(chosen, given) == expected
        return
    with pytest.raises(UserError, match=expected):
        precision_from_launcher(chosen, given)


def test_a_compiler_of_accelerate_that_the_yaml_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch):
    compiled = TrainingConfig(device="cpu", performance=PerformanceConfig(compile=True))
    for name, contradicts in (("INDUCTOR", True), ("NO", False)):
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", name)
        assert start_ranks(compiled).world_size == 1
        if not contradicts:
            assert start_ranks(TrainingConfig(device="cpu")).world_size == 1
            continue
        with pytest.raises(
            UserError, match=r"asks for the compiler inductor: set training\.performance\.compile: true"
        ):
            start_ranks(TrainingConfig(device="cpu"))


def test_torch_distributed_is_known_to_two_files_and_its_format_to_one():
    source = Path(vaak.__file__).parent
    knowing = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"^\s*(import|from) torch\.distributed", path.read_text(), re.MULTILINE)
    ]
    assert sorted(knowing) == [
        "engine/checkpoint/dcp.py",
        "engine/distributed/ranks.py",
        "engine/distributed/sharding.py",
        "tasks/formats.py",  # the code on a card
    ]


def test_a_word_of_rank_0_is_read_and_one_that_never_comes_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "START_SECONDS", 0.3)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    places = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"^rank 1 doesn't meet the other processes \(.*\); start all of them again$"):
        ranks.common_word(None)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.common_word("go on") == ranks.common_word(None) == ("go on", own_place())


def test_a_launcher_that_does_not_answer_is_said_at_once(monkeypatch: pytest.MonkeyPatch):
    """Ranks that were still starting when torchrun was killed waited for half an hour."""
    monkeypatch.setattr(ranks, "LAUNCHER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    places = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (places | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    with pytest.raises(
        UserError, match=rf"^the launcher of this process doesn't answer at 127.0.0.1:{port}, so rank 0"
    ):
        start_ranks(TrainingConfig(device="cpu", gradient_accumulation_steps=2))
    assert time.monotonic() - begun < 20
