"""What each of two real processes does in tests/process: join, take steps, write down what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from processes import join
from toy import IGNORED, VOCAB_SIZE, ToyModel, ToyTask, one_step, toy_trainer
from vaak.core.batch import Batch, FirstPass, Term
from vaak.data.batching import FixedPlanner
from vaak.nn.lora_experts import Gate, count_uses, load_balancing, top_k_weights

UNREADABLE = {"skipping": (1, 2, 3), "routed": (1,)}
"""Microbatches of two rows of the first epoch that can't be read: rank 1's of step 1, all of step 2."""


class Balanced(ToyTask):
    """Three experts that tokens choose by their remainder; a gate, with nothing else to do, follows how often."""

    logged_terms = ("expert_use/0", "expert_use/1", "expert_use/2")

    def model(self) -> ToyModel:
        model = super().model()
        model.gate = Gate(4, 3, 2, bias_rate=0.1).to(self.dtype)
        return model

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        times = [(batch["inputs"] % 3 == expert).sum().double() for expert in range(3)]
        return super().losses(model, batch) | dict(
            zip(self.logged_terms, [Term(one, "token") for one in times], strict=True)
        )


class Routed(ToyTask):
    """Three experts that a gate chooses by the tokens of a row, and balances by a loss."""

    def model(self) -> ToyModel:
        model = super().model()
        model.gate = Gate(VOCAB_SIZE, 3, 4).to(self.dtype)
        return model

    def first_pass(self, model: nn.Module, batch: Batch) -> FirstPass:
        logits = self._logits(model, batch)
        return FirstPass(count_uses(top_k_weights(logits, 1)))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        logits, uses = self._logits(model, batch), batch.step_sums
        splittable = uses is not None
        balance = load_balancing(logits, uses or count_uses(top_k_weights(logits, 1)))
        return super().losses(model, batch) | {"balance": Term(balance, "example", splittable)}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        gate: Any = model.gate
        is_real = (batch["targets"] != IGNORED).unsqueeze(-1)
        logits: Tensor = gate((nn.functional.one_hot(batch["inputs"], VOCAB_SIZE) * is_real).sum(1).to(self.dtype))
        return logits


TASKS = {"balanced": Balanced, "routed": Routed}


def make_task(case: str) -> ToyTask:
    """Ragged rows in float64, without what draws differently in microbatches of another size."""
    plan = FixedPlanner(96, 2, seed=42).plan(0)
    bad = tuple(index for number in UNREADABLE.get(case, ()) for (index,) in plan.microbatch(number))
    return TASKS.get(case, ToyTask)(num_examples=96, dropout=0.0, dtype=torch.float64, bad=bad)


def take_steps(rank: int, port: int, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    """Take the steps of every case; the files of rank R are called CASE-R-STEP.safetensors and .json."""
    ranks = join(rank, port)
    for name, training in cases.items():
        trainer = toy_trainer(
            folder / f"{name}-{rank}", task=make_task(name), ranks=ranks, skip_bad=name in UNREADABLE, **training
        )
        for step in range(1, trainer.total_steps + 1):
            report, gradients = one_step(trainer)
            losses = {key: float(value) for key, value in report.losses.items()}
            save_file(gradients, folder / f"{name}-{rank}-{step}.safetensors")
            buffers = {buffer: value.tolist() for buffer, value in trainer.model.named_buffers()}
            about = {"counts": report.counts, "losses": losses, "buffers": buffers}
            (folder / f"{name}-{rank}-{step}.json").write_text(json.dumps(about))
    ranks.close()
