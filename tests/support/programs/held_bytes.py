"""How much each of several processes really holds between backward and update, by how the model is divided."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from processes import join
from tiny_runs import loaded, prepared_task
from vaak.config.training import DistributedConfig
from vaak.core.batch import Batch, Term
from vaak.engine.callback import Callback
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.distributed.sharding import Gathering, ShardedModel, is_sharded, local
from vaak.engine.forecast import at_rest
from vaak.engine.inspection import Inspection, ModulePlace, NonFiniteFinding, first_non_finite
from vaak.engine.snapshot import FileLayout
from vaak.engine.trainer import Trainer

MODEL = "model={d_model: 128, num_layers: 4, num_heads: 4}"


def bytes_of_all_tensors() -> int:
    """The bytes of every storage that a tensor of this process has."""
    storages = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter) and not is_sharded(one):
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(storages.values())


class Weigh(Callback):
    """Weighs all tensors when the optimizer has updated, while the gradients are still there."""

    held = 0

    def on_fit_start(self, trainer: Any) -> None:
        trainer.state.optimizers[0].register_step_post_hook(lambda *_: setattr(self, "held", bytes_of_all_tensors()))


def train_and_weigh(rank: int, port: int, folder: Path, options: dict[str, dict[str, Any]]) -> None:
    """For each of some ``training.distributed``, write what rank holds, and what it should, into NAME-RANK.json."""
    torch.set_num_threads(1)
    for name, distributed in options.items():
        run = folder / name
        how = (MODEL, f"training.distributed={json.dumps(distributed)}", "training.gradient_accumulation_steps=2")
        task = prepared_task(folder, folder / f"{name}-{rank}", *how)
        config = loaded(
            folder, run, *how, "training.max_steps=3", "training.validation.interval=null"
        ).experiment.training
        ranks, weigh = join(rank, port), Weigh()
        before = bytes_of_all_tensors()
        run.mkdir(exist_ok=True)
        trainer = Trainer(task, config, run, (weigh,), ranks=ranks)
        trainer.fit()
        rest = at_rest(trainer.model, config)
        said = {"held": weigh.held - before, "forecast": rest.of_each(2), "weights": rest.weights}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(said))
        ranks.close()
        del trainer, weigh, rest
        gc.collect()


class Layer(nn.Module):
    """A block with sizes that processes can't share evenly; where the input is 0, its gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.gate = nn.Linear(64, 257), nn.Linear(257, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        hidden = self.wide(x)
        if fails:
            raise MemoryError("out of memory, says the test")
        added: Tensor = self.narrow(hidden.relu()) * self.gate(x).abs().sqrt()
        return x + added


class Layers(nn.Module):
    layers: Any

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers, self.last = (
            nn.Linear(8, 64),
            nn.ModuleList(Layer() for _ in range(10)),
            nn.Linear(64, 5),
        )

    def forward(self, x: Tensor, depth: int = 10, fails: bool = False) -> Tensor:
        x = self.first(x)
        for layer in self.layers[:depth]:
            x = layer(x, fails=fails)
        logits: Tensor = self.last(x)
        return logits


def write_into_a_file(ranks: Ranks, folder: Path, whole: nn.Module, divided: nn.Module) -> None:
    """Rank 0 writes the file that the library writes of whole tensors, and has a part of one at a time."""
    expected = {name: one.detach() for name, one in whole.named_parameters()}
    others = {"step": torch.tensor(7), "half": torch.arange(3.0).bfloat16(), "flags": torch.tensor([True, False, True])}
    held, before = [0], bytes_of_all_tensors()
    live: dict[str, Any] = {**dict(divided.named_parameters()), **others}
    gathering, layout = Gathering(ranks, DistributedConfig(strategy="fsdp")), FileLayout.of("divided.safetensors", live)
    own = [(local(live[name]).detach(), live[name].shape if is_sharded(live[name]) else None) for name in layout.order]

    def watched() -> Iterator[Tensor]:
        for chunk in gathering.chunks(own):
            held.append(bytes_of_all_tensors())
            yield chunk

    failed = folder / "nowhere"
    for where in (folder, failed):
        chunks = watched()
        if ranks.is_main:
            with pytest.raises(FileNotFoundError) if where == failed else contextlib.nullcontext():
                layout.write(where, chunks)
        assert ranks.is_main or where == failed or not list(chunks)
        for _ in chunks:  # after an error, too
            pass
    largest = max(one.nbytes for one in expected.values())
    assert max(held) - before < largest < 0.3 * sum(one.nbytes for one in expected.values())
    if ranks.is_main:
        FileLayout.of("nothing.safetensors", {}).write(folder, iter(()))
        assert load_file(folder / "nothing.safetensors") == {}
        save_file(expected | others, folder / "whole.safetensors")
        assert (folder / "divided.safetensors").read_bytes() == (folder / "whole.safetensors").read_bytes()


def call_by_itself(rank: int, port: int, folder: Path) -> None:
    """One of two processes calls a divided model in its own way, and compares with the whole one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks, whole = join(rank, port), Layers()
    divided = copy.deepcopy(whole)
    sharded = ShardedModel(divided, list(divided.layers), ranks, DistributedConfig(strategy="fsdp"), "no")
    averages = {name: 2 * one.detach() for name, one in divided.named_parameters() if "wide" in name}
    inputs = torch.randn(7, 4, 8, generator=torch.Generator().manual_seed(rank))
    held, before = list[int](), bytes_of_all_tensors()
    model: Any
    with sharded.independent({}) as model, torch.no_grad():
        weigh = model.layers[5].narrow.register_forward_pre_hook(lambda *_: held.append(bytes_of_all_tensors()))
        model(inputs[0])
        weigh.remove()
        found = [model(one, depth=10 - rank) for one in inputs[: 1 + 4 * rank]]
        with pytest.raises(MemoryError):
            model(inputs[0], fails=True)
        assert ranks.most(rank) == 1  # one is here long before the other
        found += [model(one) for one in inputs[3 * rank :]]
    assert held[0] - before < 0.4 * sum(one.nbytes for one in whole.parameters())
    with torch.no_grad():
        expected = [whole(one, depth=10 - rank) for one in inputs[: 1 + 4 * rank]]
        expected += [whole(one) for one in inputs[3 * rank :]]
        assert all(map(torch.equal, found, expected))
        doubled = copy.deepcopy(whole)
        for name, one in doubled.named_parameters():
            one.mul_(2 if "wide" in name else 1)
        with sharded.independent(averages) as model:
            assert rank or model(inputs[0]).equal(doubled(inputs[0]))

    write_into_a_file(ranks, folder, whole, divided)

    def inspect(model: Any) -> tuple[Inspection, int]:
        def terms(batch: Batch) -> dict[str, Term]:
            return {"main": Term(model(batch["x"]).sum(), per="row")}

        batch = Batch({"x": inputs[0]}, {"row": torch.ones(4)}, [[n] for n in range(4)])
        with FlopCounterMode(display=False) as counter:
            terms(batch)["main"].total.backward(inputs=[*model.parameters()])  # as the count for MFU
        inspection = first_non_finite(model, batch, terms, lambda terms: terms["main"].total.backward())
        return inspection, counter.get_total_flops()

    with torch.no_grad():
        for model in (whole, divided):
            model.layers[4].gate.weight.zero_()
            model.layers[4].gate.bias.zero_()
    with sharded.independent({}) as model:
        if rank == 1:  # alone, with the gradients of all layers
            assert inspect(model) == inspect(whole)
            assert inspect(model)[0].finding == NonFiniteFinding(
                "gradient", ModulePlace("layers.4", "backward, after layers.4.gate")
            )
            assert all(one.grad is None for one in model.parameters())
    with torch.no_grad():
        for model in (whole, divided):
            model.layers[7].wide.bias.fill_(math.nan)
    with sharded.independent({}) as model:
        finding = inspect(model)[0].finding
    assert finding == inspect(whole)[0].finding
    assert finding is not None
    assert finding.parameter == "layers.7.wide.bias"
    ranks.close()
