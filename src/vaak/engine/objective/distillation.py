"""What a student's outputs lack of being its teacher's.

Sources: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2 (logits); Romero et
al. 2015, "FitNets" (hidden states).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · the sum over units of KL(teacher, student), of logits ``(unit, ..., class)`` of the same shape.

    Where a unit makes several choices, its divergence is their mean. T² keeps the gradient as large as that of the
    labels, whatever the temperature is.
    """
    precise = torch.promote_types(student.dtype, torch.float32)
    found = F.log_softmax(student.to(precise) / temperature, dim=-1)
    wanted = F.log_softmax(teacher.to(precise) / temperature, dim=-1)
    each = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
    return temperature**2 * each.flatten(1).mean(1).sum() if each.ndim > 1 else temperature**2 * each.sum()


def hidden_difference(student: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """The sum over real positions of the mean squared difference of hidden states ``(row, time, width)``.

    The first ``lengths`` ``(row,)`` positions of each row are real.
    """
    precise = torch.promote_types(student.dtype, torch.float32)
    each = (student.to(precise) - teacher.to(precise)).square().mean(-1)
    real = torch.arange(each.shape[1], device=each.device) < lengths.to(each.device)[:, None]
    return torch.where(real, each, 0.0).sum()
