"""Convolutional positions: each token learns its place from its neighbours, ``x + gelu(convolution(x))``.

The convolution is depthwise: every channel has its own kernel. In a decoder it reaches back only.

    a row            a b c d e _         three tokens of one document, two of the next, padding
    is convolved as  a b c 0 d e 0 0     documents set apart by zeros that a kernel of 3 can't reach across

Sources: Baevski et al. 2020, "wav2vec 2.0", section 2; Chu et al. 2021, "Conditional Positional Encodings for Vision
Transformers", section 3. Differs: depthwise like the second's, over time like the first's, with a kernel between their
sizes; no weight normalisation; kernels begin as noise that keeps the variance of its input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels.device_paths import paths_on

BLOCK = 16
"""Tokens that are convolved by one product of matrices."""


class ConvolutionalPositions(nn.Module):
    """Adds to each token a mixture of its neighbours within its document; ``kernel_size`` is odd."""

    def __init__(self, width: int, causal: bool, kernel_size: int = 31) -> None:
        super().__init__()
        assert kernel_size % 2, "a token stands in the middle of its kernel"
        self.causal = causal
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(width, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernels again; biases start at 0, or they would drown small embeddings."""
        nn.init.normal_(self.weight, std=self.kernel_size**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, documents: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """Shape and type of ``x`` ``(batch, time, width)`` kept; ``documents`` ``(batch, time)`` are those of ``x``.

        With a cache, ``x`` continues after the tokens that it remembers.
        """
        read, read_documents = x, documents
        if cache is not None:
            read, read_documents = self._with_the_last(x, documents, cache)
        convolved = self._convolve(read) if read_documents is None else self._convolve_apart(read, read_documents)
        return x + F.gelu(convolved[:, -x.shape[1] :]).to(x.dtype)

    def _with_the_last(self, x: Tensor, documents: Tensor | None, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """``x`` and its documents after as many earlier tokens as the kernel reaches, which the cache keeps."""
        assert self.causal, "only a decoder can continue from a cache"
        if documents is None:
            documents = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        if cache.tensors:
            x = torch.cat((cache.tensors["inputs"], x), 1)
            documents = torch.cat((cache.tensors["documents"], documents), 1)
        first_kept = max(0, x.shape[1] - (self.kernel_size - 1))
        cache.tensors.update(inputs=x[:, first_kept:], documents=documents[:, first_kept:])
        return x, documents

    def _convolve_apart(self, x: Tensor, documents: Tensor) -> Tensor:
        """The convolution of each document by itself; in an exported model, a row has one."""
        if torch.compiler.is_exporting():
            return self._convolve(x.masked_fill(documents[..., None] < 0, 0.0))
        begins = documents[:, 1:] != documents[:, :-1]
        gap = self.kernel_size - 1 if self.causal else self.kernel_size // 2
        places = torch.arange(x.shape[1], device=x.device) + F.pad(gap * begins.cumsum(1), (1, 0))
        index = places[..., None].expand_as(x)
        spread = x.new_zeros(x.shape[0], int(places.max()) + 1, x.shape[2])
        spread = spread.scatter(1, index, x.masked_fill(documents[..., None] < 0, 0.0))
        return self._convolve(spread).gather(1, index)

    def _convolve(self, x: Tensor) -> Tensor:
        reach = self.kernel_size - 1
        before = reach if self.causal else reach // 2
        if paths_on(x.device).toeplitz_convolution and not torch.compiler.is_exporting():
            return self._convolve_by_products(x, before)
        padded = F.pad(x.transpose(1, 2), (before, reach - before))
        return F.conv1d(padded, self.weight, self.bias, groups=x.shape[2]).transpose(1, 2)

    def _convolve_by_products(self, x: Tensor, before: int) -> Tensor:
        """Each block of tokens is a product of what its kernels reach with a matrix that has the kernel in every row.

        On a CPU this takes a tenth of the time of torch's depthwise convolution, forward and backward.
        """
        rows, time, width = x.shape
        reach, blocks = self.kernel_size - 1, -(-time // BLOCK)
        padded = F.pad(x.permute(2, 0, 1), (before, blocks * BLOCK + reach - before - time))
        read = padded.unfold(2, BLOCK + reach, BLOCK).flatten(1, 2)
        # a kernel with zeros after it, repeated: cut in rows that are shorter by one, it moves on in each
        again = F.pad(self.weight[:, 0], (0, BLOCK)).repeat(1, BLOCK)
        kernels = again[:, : BLOCK * (BLOCK + reach)].unflatten(1, (BLOCK, BLOCK + reach))
        convolved = torch.bmm(read, kernels.transpose(1, 2)).reshape(width, rows, blocks * BLOCK)
        return convolved[:, :, :time].permute(1, 2, 0) + self.bias
