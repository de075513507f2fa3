"""How translations are written: the run's ``data.decoding``, with what a user asks for over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vaak.core.errors import UserError
from vaak.nn.decoding.beam_search import BeamSettings
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.tasks.seq2seq.config import METHOD_OPTIONS, METHODS_OF, DecodingConfig

METHODS = tuple(METHOD_OPTIONS)
READ_BY = {**METHODS_OF, "seed": METHODS_OF["temperature"]}
"""The options that only some methods read."""


@dataclass(frozen=True)
class DecodingSettings:
    """``method`` and its options, and how many texts are translated together.

    Raises UserError where a value makes no sense.
    """

    method: str = "greedy"
    max_new_tokens: int = 100
    """Tokens written at most, the one that ends a text among them."""
    beam_size: int = 4
    length_penalty: float = 1.0
    """Scores are log-probabilities divided by this power of the length, whatever the method."""
    n_best: int = 1
    """The number of translations of each text: from the beam, or samples, or the best of mbr's samples."""
    num_samples: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64
    """Texts translated together, at most."""
    max_tokens: int = 32768
    """Places of all hypotheses translated together, at most: of the source, and of the longest target there may be."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"method is {self.method}; it must be one of {', '.join(METHODS)}.")
        for name in ("n_best", "num_samples", "batch_size", "max_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.method == "greedy" and self.n_best > 1:
            raise UserError(f"n_best is {self.n_best}, and a greedy search finds one; use method beam or sampling.")
        if self.method == "mbr" and self.n_best > self.num_samples:
            raise UserError(f"n_best is {self.n_best} of {self.num_samples} draws (num_samples); draw more.")
        _ = self.beam(end_id=0), self.sampling(end_id=0)  # they look at the rest

    @property
    def width(self) -> int:
        """Hypotheses of each text that are alive at a time."""
        widths = {"greedy": 1, "beam": self.beam_size, "sampling": self.n_best, "mbr": self.num_samples}
        return widths[self.method]

    def beam(self, end_id: int) -> BeamSettings:
        n_best = self.n_best if self.method == "beam" else 1
        return BeamSettings(end_id, self.max_new_tokens, self.beam_size, self.length_penalty, n_best)

    def sampling(self, end_id: int) -> SamplingSettings:
        temperature = self.temperature if self.method in ("sampling", "mbr") else 0.0
        return SamplingSettings(
            self.max_new_tokens, temperature, self.top_k, self.top_p, stop_ids=(end_id,), seed=self.seed
        )


def decoding_settings(decoding: DecodingConfig, max_target_length: int, **asked: Any) -> DecodingSettings:
    """The run's settings, overridden by those in ``asked``; None overrides nothing.

    An option of only one method selects that method too; an option of several selects the first of
    them, if the run's isn't among them. Raises UserError if a method was requested that doesn't have the option.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    read_by = {name: READ_BY[name] for name in given if name in READ_BY}
    method = given.get("method") or _method_of(list(read_by.values()), decoding.method)
    if method == "greedy" and "method" not in given and given.get("n_best", 1) > 1:
        method = "beam"
    for name, methods in read_by.items():
        if method not in methods:
            others = " and ".join(methods)
            raise UserError(
                f"{name} is an option of method {others}, but the method is {method}; leave one of them out."
            )
    options = decoding.model_dump(exclude={"valid_examples", "max_new_tokens"}) | given | {"method": method}
    longest = given.get("max_new_tokens", decoding.max_new_tokens or max_target_length)
    return DecodingSettings(**(options | {"max_new_tokens": min(longest, max_target_length)}))


def _method_of(readers: list[tuple[str, ...]], of_run: str) -> str:
    """The method that has all of these options: the run's if possible, otherwise the first; the run's if none has."""
    able = [method for method in (of_run, *METHODS) if all(method in methods for methods in readers)]
    return able[0] if able else readers[0][0]
