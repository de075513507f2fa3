"""Options of networks of speech synthesis that several tasks share; they need no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from vaak.config.base import ResumeClass, Section, option
from vaak.nn.config import LARGEST_WIDTH

Size = Annotated[int, Field(gt=0, le=4096)]


class HifiGanConfig(Section):
    """The sizes of HiFi-GAN's generator; the defaults are V1. Source: Kong et al. 2020, appendix A.1."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    upsample_rates: tuple[Size, ...] = option(
        "Factors of the frame rate, one per level; their product is hop_length.", (8, 8, 2, 2), min_length=1
    )
    upsample_kernel_sizes: tuple[Size, ...] = option(
        "Kernel sizes of the levels; each is its rate, or larger by an even number.", (16, 16, 4, 4)
    )
    upsample_initial_channel: int = option(
        "Channels at the frame rate; each level has half of the one before.", 512, gt=0, le=LARGEST_WIDTH
    )
    resblock: Literal["1", "2"] = option("Residual blocks with two convolutions (V1, V2), or with one (V3).", "1")
    resblock_kernel_sizes: tuple[Size, ...] = option(
        "Kernels of the residual blocks of a level; odd.", (3, 7, 11), min_length=1
    )
    resblock_dilation_sizes: tuple[tuple[Size, ...], ...] = option(
        "Dilations of the convolutions of each of them.", ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    )

    @field_validator("resblock", mode="before")
    @classmethod
    def _number_is_text(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value

    @model_validator(mode="after")
    def _levels_fit(self) -> Self:
        levels = len(self.upsample_rates)
        if len(self.upsample_kernel_sizes) != levels:
            raise ValueError(f"upsample_kernel_sizes has {len(self.upsample_kernel_sizes)}, upsample_rates {levels}")
        for kernel, rate in zip(self.upsample_kernel_sizes, self.upsample_rates, strict=True):
            # with padding (kernel - rate) / 2 on both sides, the output is exactly rate times as long
            if kernel < rate or (kernel - rate) % 2:
                raise ValueError(f"upsample_kernel_sizes: {kernel} isn't the rate {rate}, nor an even number more")
        if self.upsample_initial_channel % 2**levels:
            raise ValueError(
                f"upsample_initial_channel ({self.upsample_initial_channel}) can't be halved {levels} times"
            )
        if any(kernel % 2 == 0 for kernel in self.resblock_kernel_sizes):
            raise ValueError("resblock_kernel_sizes must be odd, so that kernels have a middle")
        if len(self.resblock_dilation_sizes) != len(self.resblock_kernel_sizes):
            raise ValueError(
                f"resblock_dilation_sizes has {len(self.resblock_dilation_sizes)}, resblock_kernel_sizes "
                f"{len(self.resblock_kernel_sizes)}"
            )
        return self

    def num_parameters(self, num_bins: int) -> int:
        """Return about how many weights there are, for a spectrogram of ``num_bins``."""
        width = self.upsample_initial_channel
        found, each = 7 * num_bins * width, 2 if self.resblock == "1" else 1
        for kernel in self.upsample_kernel_sizes:
            found, width = found + kernel * width * width // 2, width // 2
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True):
                found += each * len(dilations) * size * width**2
        return found
