"""A pass without numbers takes as many operations and bytes as the real one, by the counters of torch's own."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from vaak.config.load import load
from vaak.core.batch import Batch, Term
from vaak.core.task import Task
from vaak.engine.dry_pass import NEEDS_NUMBERS, dry_pass, numberless
from vaak.engine.flops import count_flops
from vaak.engine.precision import Precision
from vaak.nn.config import LoraConfig
from vaak.nn.lora import add_lora
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.task import LanguageModelTask

CPU = torch.device("cpu")
CONFIG = """\
task: lm
model: {d_model: 64, num_layers: 2, num_heads: 4, dropout: 0.1}
data: {tokenizer: {vocab_size: 2000}, max_length: 64}
training: {batch_size: 8}
"""


def profiled_peak(task, model, batch, precision):
    """Return the allocator's peak of bytes above those allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        with precision.autocast():
            terms = task.losses(model, batch)
        torch.stack([term.total.float() for term in terms.values()]).sum().backward()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def sketched(task: LanguageModelTask) -> LanguageModel:
    """The task's sketch; this one's tokenizer is Vaak's, so there is one."""
    model = task.meta_model()
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["training.performance.gradient_checkpointing=true"],
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                ["training.performance.gradient_checkpointing=attention"],
                ["training.performance.gradient_checkpointing=all", "model.num_layers=5"],
                ["training.mixed_precision=bf16"],
                ["training.batching.type=packed"],
                ["training.loss.label_smoothing=0.1", "model.tie_embeddings=false"],
                ["model.model_type=encoder"],
                ["model.attention_type=causal_linear", "training.loss.auxiliary.norm_reg=0.1"],
            )
        ),
    ],
    ids=lambda overrides: " ".join(overrides) or "plain",
)
def test_it_takes_what_the_real_pass_takes(tmp_path, overrides):
    path = tmp_path / "f.yml"
    path.write_text(CONFIG)
    experiment = load([path], overrides).experiment
    task = LanguageModelTask(experiment, tmp_path, tmp_path)
    recompute = experiment.training.performance.gradient_checkpointing
    precision = Precision(experiment.training.mixed_precision, CPU)
    batch = task.meta_batch()
    with numberless(CPU) as fake:
        meta_model = sketched(task)
        meta_model.stack.gradient_checkpointing = recompute
        dry = dry_pass(fake, task, meta_model, batch, precision, 1)
    model = sketched(task).train()
    model.stack.gradient_checkpointing = recompute
    assert dry.flops == count_flops(task, model, batch, precision)
    assert dry.count == batch.totals()["token"]
    assert dry.peak_bytes == pytest.approx(profiled_peak(task, model, batch, precision), rel=0.01)


class Multiplying(Task):
    """A task whose loss is a product with one matrix."""

    def losses(self, model, batch):
        return {"loss": Term(model(batch["x"]).square().sum(), "row")}


def batch_of(rows):
    return Batch({"x": torch.ones(rows, 256)}, {"row": torch.ones(rows)})


def dry(task, model_of, batch, passes=1):
    with numberless(CPU) as fake:
        return dry_pass(fake, task, model_of(), batch, Precision("no", CPU), passes)


def test_gradients_of_several_passes_are_one():
    def weight():
        return nn.Linear(256, 256, bias=False)

    one, two = (dry(Multiplying(), weight, batch_of(4), passes).peak_bytes for passes in (1, 2))
    gradient = 4 * 256 * 256
    assert gradient < one < 2 * gradient
    assert 2 * gradient < two < 3 * gradient  # the second gradient, before it is added to the first


def test_shapes_that_depend_on_numbers_are_an_error_of_their_own():
    class Choosing(Multiplying):
        def losses(self, model, batch):
            return {"loss": Term(model(batch["x"])[batch["x"].nonzero()[:, 0]].sum(), "row")}

    with pytest.raises(NEEDS_NUMBERS):
        dry(Choosing(), lambda: nn.Linear(256, 1), batch_of(4))


def test_nothing_is_allocated():
    with numberless(CPU):
        model = nn.Linear(2**20, 2**20)
    assert model.weight.numel() == 2**40


def test_low_rank_adapters_are_made_without_numbers():
    """peft moves each to its layer's device, which torch can't do with fake parameters."""
    with numberless(torch.device("cpu")):
        model = add_lora(nn.Sequential(nn.Linear(3, 4)), LoraConfig(rank=2, targets=("0",)))
    assert {name.rpartition(".")[0] for name, _ in model.named_parameters()} >= {"0.lora_A.default", "0.base_layer"}
