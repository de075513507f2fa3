"""Stages that write down what a system recognises, so that systems are compared on the same utterances.

The system is the run of the stage that has the role ``system``; without one, the base as it is. The utterances are
those of test, where the data have it and the mode is full; else those of valid, which have chosen the checkpoints, too.

transcripts.jsonl    a line for each utterance: id, reference, text, group, speaker (null where the data have none)
transcripts.json     which split, how texts are compared, how many parameters were trained, in how many steps
part.jsonl           what a stage that was cut has so far
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.out_of_memory import is_the_machines_fault
from vaak.core.progress import progress
from vaak.core.storage.files import write_json, write_text
from vaak.pipeline.stage import Work
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import Values, base_for, data_of, precision_of, prepared_task

log = logging.getLogger("vaak")

TEXTS, ABOUT, PART = "transcripts.jsonl", "transcripts.json", "part.jsonl"
SYSTEM = "system"


def transcripts(work: Work) -> dict[str, Any]:
    """The stage's body."""
    from vaak.text.scoring.word_errors import score_texts

    task, model, trained = _system(work)
    split = "test" if work.options.mode == "full" and "test" in task.prepared.about["statistics"] else "valid"
    lines = list(_transcribed(work, task, model, split))
    unread = [line for line in lines if "reason" in line]
    for line in unread:
        log.warning("%s can't be read and is left out: %s", line["id"], line["reason"])
    kept = [line for line in lines if "reason" not in line]
    about = {"split": split, "normaliser": task.data.normaliser, "decoding": task.data.decoding.method, **trained}
    write_text(work.folder / TEXTS, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
    write_json(work.folder / ABOUT, about)
    (work.folder / PART).unlink(missing_ok=True)
    references, texts = ({line["id"]: line[key] for line in kept} for key in ("reference", "text"))
    scores = score_texts(references, texts, normaliser_name=about["normaliser"])
    return {"wer": scores.total.wer, "utterances": len(kept)}


def _system(work: Work) -> tuple[Any, Any, Values]:
    """The task and the model of what is compared, and how much of it was trained."""
    options: MoeOptions = work.options
    if SYSTEM in work.inputs:
        from vaak.runs.open_run import open_run

        opened = open_run(work.inputs[SYSTEM] / "run", device=options.device, trust_code=True)
        parameters = sum(one.numel() for one in opened.model.parameters() if one.requires_grad)
        return opened.task, opened.model, {"parameters": parameters, "steps": sum(map(_steps, _runs(work)))}
    from vaak.engine.distributed.launcher import pick_device

    own = {name: one for name, one in options.asr_config.items() if name not in ("model", "training")}
    values = {**data_of(options, "joint"), "model": {"base": base_for(work)}}
    task = prepared_task(values, work.folder / "data", own)
    return task, task.model().to(pick_device(options.device)).eval(), {"parameters": 0, "steps": 0}


def _runs(work: Work) -> Iterator[Path]:
    """All runs that a system was trained in."""
    for folder in {work.inputs[SYSTEM], work.inputs.get("experts", work.inputs[SYSTEM])}:
        yield from (path.parent for path in folder.glob("*/checkpoints"))


def _steps(run: Path) -> int:
    """The steps that a run has trained."""
    from vaak.engine.checkpoint.files import pointed
    from vaak.engine.checkpoint.names import step_of

    last = pointed(run / "checkpoints", "last")
    return 0 if last is None else step_of(last) or 0


def _transcribed(work: Work, task: Any, model: Any, split: str) -> Iterator[Values]:
    """A line for each utterance of a split; one that can't be read has a ``reason``, where it may be skipped."""
    dataset, transcriber, part = task.dataset(split), task.transcriber(model), work.folder / PART
    done, size = _lines_of(part), transcriber.decoding.batch_size
    done = done[: len(done) // size * size]  # texts of a batch are computed together
    write_text(part, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in done))
    yield from done
    with (
        part.open("a", encoding="utf-8") as file,
        progress(f"transcribing {split}", len(dataset.utterances)) as advance,
    ):
        advance(len(done))
        for first in range(len(done), len(dataset.utterances), size):
            batch = _read(dataset, range(first, min(first + size, len(dataset.utterances))), task.data.on_bad_example)
            found = _with_texts(batch, transcriber, precision_of(work.options))
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
            file.flush()
            advance(len(found))
            yield from found


def _lines_of(path: Path) -> list[Values]:
    """The whole lines of a file; none where there is no file."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _read(dataset: Any, places: range, on_bad: str) -> list[tuple[Values, Any]]:
    """Utterances as lines without their text, each with its features; None for one that can't be read."""
    import numpy as np

    found: list[tuple[Values, Any]] = []
    for place in places:
        cut = dataset.utterances.cuts[int(dataset.utterances.used[place])]
        try:
            one = dataset.example(place, np.random.default_rng(0))  # nothing is drawn
        except Exception as error:
            if on_bad != "skip" or is_the_machines_fault(error):
                raise
            found.append(({"id": cut.id, "reason": f"{type(error).__name__}: {error}"}, None))
            continue
        about = {"id": cut.id, "reference": one.text, "group": one.group}
        found.append(({**about, "speaker": cut.supervisions[0].speaker or None}, one.features))
    return found


def _with_texts(batch: list[tuple[Values, Any]], transcriber: Any, precision: str) -> list[Values]:
    """The lines of a batch, with what is recognised in the features."""
    import numpy as np
    import torch

    features = [own for _, own in batch if own is not None]
    device, kind = next(transcriber.model.parameters()).device, {"fp16": torch.float16, "bf16": torch.bfloat16}
    with torch.autocast(device.type, kind.get(precision), enabled=precision in kind):
        texts = iter(transcriber.texts(np.stack(features)) if features else ())
    return [line if own is None else {**line, "text": next(texts)} for line, own in batch]
