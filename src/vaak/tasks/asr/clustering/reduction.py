"""Fewer dimensions: PCA read from disk a block at a time, and UMAP."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from vaak.core.errors import UserError
from vaak.tasks.asr.clustering.config import Reduction

COLUMNS_AT_ONCE = 1 << 14
LARGEST_MATRIX_BYTES = 512 << 20
"""Larger input of UMAP is reduced by PCA first, so that it needn't be in memory."""
DIMS_BEFORE_UMAP = 100
LARGEST_SQUARE = 20_000
"""The most rows or columns, whichever are fewer, of what PCA can decompose in memory."""


class Matrix(Protocol):
    """Rows that need not be in memory, such as ``vaak.pipeline.rows.RowStore``."""

    @property
    def num_columns(self) -> int: ...
    def __len__(self) -> int: ...
    def blocks(self) -> Iterator[np.ndarray]: ...
    def columns(self, first: int, last: int) -> np.ndarray: ...


class ArrayMatrix:
    """The same of an array ``(row, column)``."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.num_columns: int = array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[np.ndarray]:
        """The rows, some at a time."""
        for first in range(0, len(self.array), 1000):
            yield self.array[first : first + 1000].astype(np.float32)

    def columns(self, first: int, last: int) -> np.ndarray:
        """Some columns of all rows."""
        return self.array[:, first:last].astype(np.float32)


def reduced(rows: Matrix | np.ndarray, how: Reduction, dims: int, seed: int) -> np.ndarray:
    """The rows in fewer dimensions: ``(row, dims)`` float32, or as many as there are. Raises what the two below do."""
    matrix = ArrayMatrix(rows) if isinstance(rows, np.ndarray) else rows
    if how == "none":
        return matrix.columns(0, matrix.num_columns)
    return pca(matrix, dims) if how == "pca" else umap(matrix, dims, seed)


def pca(matrix: Matrix, dims: int) -> np.ndarray:
    """The principal components of the rows: ``(row, dims)`` float32, those that vary most first.

    The covariance of columns is decomposed, or the products of rows where those are fewer; each is summed up a part at
    a time, so memory holds the smaller square and the result.

    Raises UserError where both are too many.
    """
    number, width = len(matrix), matrix.num_columns
    if min(number, width) > LARGEST_SQUARE:
        raise UserError(
            f"{number} rows of {width} columns can't be reduced by PCA: pool the embeddings (--pooling mean), or take "
            "fewer"
        )
    dims = min(dims, number, width)
    if width <= number:
        shift = next(matrix.blocks()).mean(axis=0, dtype=np.float64)  # near the mean, so that little cancels
        total, square = np.zeros(width), np.zeros((width, width))
        for block in matrix.blocks():
            centred = block - shift
            total += centred.sum(axis=0)
            square += centred.T @ centred
        mean = total / number
        directions = _largest(square - number * np.outer(mean, mean), dims)[1]
        offset = (shift + mean) @ directions
        points = np.concatenate([block.astype(np.float64) @ directions - offset for block in matrix.blocks()])
    else:
        square = np.zeros((number, number))
        for first in range(0, width, COLUMNS_AT_ONCE):
            part = matrix.columns(first, first + COLUMNS_AT_ONCE).astype(np.float64)
            part -= part.mean(axis=0)
            square += part @ part.T
        variances, directions = _largest(square, dims)
        points = directions * np.sqrt(np.maximum(variances, 0))
    signs = np.sign(points[np.argmax(np.abs(points), axis=0), np.arange(dims)])  # a direction is as good as its reverse
    return (points * np.where(signs == 0, 1, signs)).astype(np.float32)


def _largest(square: np.ndarray, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of a symmetric matrix, and their vectors as columns."""
    values, vectors = np.linalg.eigh(square)
    return values[::-1][:dims], vectors[:, ::-1][:, :dims]


def umap(matrix: Matrix, dims: int, seed: int) -> np.ndarray:
    """The rows as UMAP places them: ``(row, dims)`` float32; the same for the same seed.

    Source: McInnes, Healy and Melville, 2018, "UMAP: Uniform Manifold Approximation and Projection". Raises UserError
    where its package is missing, or there are fewer than four rows.
    """
    number = len(matrix)
    if number < 4:
        raise UserError(f"UMAP requires at least 4 rows, not {number}; use --reduce pca or none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports, and that one seed means one process
        try:
            from umap import UMAP
        except ImportError as error:
            raise UserError("reduce: umap requires the package umap-learn: pip install 'vaak[asr]'") from error
        if number * matrix.num_columns * 4 > LARGEST_MATRIX_BYTES:
            points = pca(matrix, DIMS_BEFORE_UMAP)
        else:
            points = matrix.columns(0, matrix.num_columns)
        dims = min(dims, points.shape[1], number - 2)
        model: Any = UMAP(n_components=dims, n_neighbors=min(15, number - 1), random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), np.float32)
