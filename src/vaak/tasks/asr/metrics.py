"""Metrics of speech recognition: sums over the whole set, divided once.

loss         nats per target token, the end included, each predicted given the true tokens before it
accuracy     tokens whose most probable prediction is right / tokens
wer, cer     errors of transcripts / words or characters of the references, under data.normaliser
wer/GROUP    the same of each group, where there are several

hallucinated_words   words heard in recordings without speech, whose references have no word; errors of wer, too
without_speech       the number of these recordings; neither is given where there are none

routing_entropy   with experts: nats of the gate's distribution, per utterance
expert_use/E      utterances that chose the expert / utterances
expert_weight/E   mean weight of the expert in the utterances that chose it; not given where none did
dead_experts      experts that none chose
expert_wer/E      wer of the utterances whose first choice the expert is

Not every utterance needs to be transcribed (data.decoding.valid_examples).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, send
from vaak.core.errors import optional_import
from vaak.core.summaries import ExampleLog, make_summary
from vaak.core.task import Meters
from vaak.nn.lora_experts import count_uses
from vaak.scoring.normalisers import Normaliser
from vaak.scoring.word_errors import count_errors
from vaak.tasks.base import compute_means

# At the top of the module, so that a run says it before it trains.
with optional_import("the task asr requires jiwer", "asr"):
    import jiwer  # noqa: F401

EXPERT_WEIGHT = "expert_weight"
HALLUCINATED, WITHOUT_SPEECH = "hallucinated_words", "without_speech"
Transcribe = Callable[..., list[str]]


class AsrMeters(Meters):
    """Error rates of the model's transcripts; a kind of model adds what it has of true ones."""

    def __init__(
        self,
        protocol: dict[str, str],
        normalise: Normaliser,
        transcribe: Transcribe,
        groups: Sequence[str],
        audio: Sequence[Callable[[], bytes]] = (),
    ) -> None:
        """``transcribe(model, encoded)`` gives a text for each row of encoded audio; ``groups`` are all that there are.

        ``protocol`` has the conditions; both sides are compared as ``normalise`` has them. ``audio`` reads the audio of
        the first utterances, as WAV.
        """
        self._log, self._audio = ExampleLog("wer"), audio
        self.protocol, self.groups, self._transcribe = {**protocol, "normaliser": normalise.name}, groups, transcribe
        self._normalise = normalise
        self._sums: dict[str, float] = {}

    def add(self, found: Iterable[tuple[str, float, float]]) -> None:
        """Add sums and counts by name."""
        for name, total, number in found:
            for key, value in ((f"{name} sum", total), (f"{name} count", number)):
                self._sums[key] = self._sums.get(key, 0.0) + value

    def transcripts(self, model: nn.Module, encoded: Any, batch: Batch) -> list[str]:
        """Return the transcript of each row of encoded audio, rows of ``batch``."""
        return self._transcribe(model, encoded)

    def errors(
        self, model: nn.Module, batch: Batch, encoded: Any, gate: Tensor | None = None, weights: Tensor | None = None
    ) -> Iterator[tuple[str, float, float]]:
        """Names of rates, with errors and what they are divided by, of each row that is transcribed.

        With the ``gate``'s logits and the ``weights`` of all rows, also how these were routed.
        """
        experts = None if weights is None else weights.argmax(1).tolist()
        rows = [row for row, is_one in enumerate(batch.extra["transcribed"]) if is_one]
        places = send(torch.tensor(rows, dtype=torch.long), batch["targets"].device)
        # The states of the encoder are there already, for the loss: nothing is encoded twice.
        texts = self.transcripts(model, encoded.rows(places), batch) if rows else []
        for row, text in zip(rows, texts, strict=True):
            reference, hypothesis = self._normalise(batch.extra["texts"][row]), self._normalise(text)
            counts = count_errors(reference, hypothesis)
            # A single group would only repeat the whole.
            names = ["wer", *([f"wer/{batch.extra['groups'][row]}"] if len(self.groups) > 1 else ())]
            if experts is not None:
                names.append(f"expert_wer/{experts[row]}")
            for name in names:
                yield name, counts.word_errors, counts.words
            yield "cer", counts.character_errors, counts.characters
            if not counts.words:
                yield HALLUCINATED, counts.word_errors, 1.0
            group = str(batch.extra["groups"][row]) if len(self.groups) > 1 else ""
            index = batch.indices[row][0] if batch.indices else row
            about: dict[str, Any] = {"name": batch.extra["names"][row], **({"group": group} if group else {})}
            about |= {"reference": reference, "hypothesis": hypothesis}
            about |= {} if experts is None else {"expert": experts[row]}
            about |= {"audio": f"utterance-{index + 1}"} if index < len(self._audio) else {}
            sums = counts.word_errors, counts.words
            self._log.add(index, counts.word_errors, sums, reference, about, group)
        yield from _routed(gate, weights)

    def seen(self) -> dict[str, list[Any]]:
        return self._log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return make_summary("wer", seen)

    def audio(self) -> dict[str, bytes]:
        """Return the first utterances."""
        return {f"utterance-{number}": read() for number, read in enumerate(self._audio, 1)}

    def sums(self) -> dict[str, float]:
        return self._sums

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        found = compute_means(sums)
        if HALLUCINATED in found:
            found |= {HALLUCINATED: sums[f"{HALLUCINATED} sum"], WITHOUT_SPEECH: sums[f"{HALLUCINATED} count"]}
        uses = [value for name, value in found.items() if name.startswith("expert_use/")]
        return {**found, "dead_experts": float(uses.count(0.0))} if uses else found


def _routed(gate: Tensor | None, weights: Tensor | None) -> Iterator[tuple[str, float, float]]:
    """Return sums over rows of how much the experts are used, and of how sure the gate is."""
    if gate is None or weights is None:
        return
    number = float(len(gate))
    yield "routing_entropy", float(-(gate.softmax(-1) * gate.log_softmax(-1)).sum()), number
    for name, times in count_uses(weights).items():
        yield name, float(times), number
    for expert, of_rows in enumerate(weights.float().unbind(1)):
        chosen = float((of_rows > 0).sum())
        if chosen:
            yield f"{EXPERT_WEIGHT}/{expert}", float(of_rows.sum()), chosen
