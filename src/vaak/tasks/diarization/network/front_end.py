"""Input layers of the encoder: fewer frames, each of the encoder's width. Padding never affects a real frame."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from vaak.tasks.diarization.config import DiarizationModelConfig

BELOW = -1
"""For rates by layer (``layer_decay``): all of a front end, its own layers too, is below the encoder's."""


def make_front_end(config: DiarizationModelConfig, num_bins: int) -> StackedFrames | Convolutions:
    """A module from features ``(row, time, bins)`` and mask ``(row, time)`` to ``(row, encoder frames, width)``.

    There is an encoder frame for every ``subsampling`` frames of features, the last one maybe not full. The second
    thing it returns is ``(row, frames of features, channels)``, from which the encoder's frames were made.
    """
    if config.front_end == "stacked":
        return StackedFrames(num_bins, config.d_model, config.context, config.subsampling)
    return Convolutions(num_bins, config)


def centred(features: Tensor, mask: Tensor) -> Tensor:
    """Features minus their mean over the row's real frames; 0 in padding.

    A channel and a level are constants in the logarithmic spectrum, so this removes them.
    """
    real = mask[..., None].to(features.dtype)
    mean = (features * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    return (features - mean) * real


def padded_to(x: Tensor, multiple: int) -> Tensor:
    """``(row, time, width)`` with zeros appended up to a multiple of frames."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % multiple))


class StackedFrames(nn.Module):
    """Frames stacked with their neighbours, subsampled and projected.

    Source: Fujita et al. 2019, section 4.2: 7 frames on each side, every tenth. Differs: it is the middle one of ten,
    because labels are those of the middle.
    """

    layer_number = BELOW

    def __init__(self, num_bins: int, width: int, context: int, subsampling: int) -> None:
        super().__init__()
        self.context, self.subsampling, self.num_channels = context, subsampling, num_bins
        self.projection = nn.Linear((2 * context + 1) * num_bins, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.subsampling // 2
        around = (self.context - middle, self.context + middle)
        fine = padded_to(centred(features, mask), self.subsampling)
        stacked = F.pad(fine, (0, 0, *around)).unfold(1, 2 * self.context + 1, self.subsampling)
        return self.norm(self.projection(stacked.flatten(2))), fine  # flattened (row, frames, bins, around)


class Convolutions(nn.Module):
    """Convolutions over time at the features' rate, then one that subsamples."""

    layer_number = BELOW

    def __init__(self, num_bins: int, config: DiarizationModelConfig) -> None:
        super().__init__()
        width, kernel = config.d_model, config.kernel_size
        self.subsampling, self.num_channels = config.subsampling, width
        self.first = nn.Conv1d(num_bins, width, kernel, padding=kernel // 2)
        self.residual = nn.ModuleList(ResidualConvolution(width, kernel) for _ in range(config.num_convolutions))
        self.last = nn.Conv1d(width, width, self.subsampling, stride=self.subsampling)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = padded_to(centred(features, mask), self.subsampling).transpose(1, 2)
        real = padded_to(mask[..., None].to(x.dtype), self.subsampling).transpose(1, 2)
        x = F.gelu(self.first(x)) * real
        for convolution in self.residual:
            x = convolution(x) * real
        return self.norm(self.last(x).transpose(1, 2)), x.transpose(1, 2)


class ResidualConvolution(nn.Module):
    """A convolution of each channel over time, then one over channels, added to the input ``(row, width, time)``.

    Source: Liu et al. 2022, "A ConvNet for the 2020s". Differs: the channels aren't widened.
    """

    def __init__(self, width: int, kernel_size: int) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.over_channels = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.over_channels(self.norm(self.over_time(x).transpose(1, 2)))
        return x + F.gelu(mixed).transpose(1, 2)
