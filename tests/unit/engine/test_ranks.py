"""Alone, a rank's collectives are free; what can't be started is an error before anything begins."""

from __future__ import annotations

import pytest
import torch

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.launcher import pick_device, precision_from_launcher
from vaak.engine.ranks import Ranks, start_ranks

ENVIRONMENT = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_one_process_adds_up_to_itself():
    ranks = Ranks(torch.device("cpu"))
    tensor = torch.ones(3)
    ranks.sum_tensors([tensor])
    assert tensor.equal(torch.ones(3))
    assert ranks.is_main
    assert ranks.gather({"a": 1}) == [{"a": 1}]
    assert ranks.sum({"a": 1.0}) == {"a": 1.0}
    assert ranks.main_first(lambda: 7) == 7
    ranks.wait()
    ranks.close()


def test_a_failure_of_the_main_process_is_told():
    def fail() -> None:
        raise UserError("the corpus is empty")

    with pytest.raises(UserError, match=r"^the corpus is empty$"):
        Ranks(torch.device("cpu")).main_first(fail)


def test_alone_nothing_is_joined():
    ranks = start_ranks(TrainingConfig(device="cpu"))
    assert (ranks.rank, ranks.world_size, ranks.device.type) == (0, 1, "cpu")


def test_another_number_of_processes_than_asked_for_is_an_error():
    with pytest.raises(UserError, match=r"world_size is 2 but 1 process\(es\) were started.*--nproc_per_node=2"):
        start_ranks(TrainingConfig(device="cpu", distributed={"world_size": 2}))


def test_more_processes_than_microbatches_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"4 processes share the 3 microbatch\(es\) of a step"):
        start_ranks(TrainingConfig(device="cpu", gradient_accumulation_steps=3))


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is another device")
def test_devices_that_are_not_there():
    assert pick_device("auto").type == pick_device("cpu").type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"training.device is {name} but there is none here"):
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
