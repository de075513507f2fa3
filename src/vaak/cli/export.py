"""``vaak export``: a trained model for other software."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.arguments import AsJson, TrustCode, Weights, WhichWeights
from vaak.core.errors import UserError


class Format(StrEnum):
    """The available formats."""

    hf = "hf"
    onnx = "onnx"
    peft = "peft"
    mixture = "mixture"
    ct2 = "ct2"
    gguf = "gguf"
    sherpa_onnx = "sherpa-onnx"


def export(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    format: Annotated[
        Format,
        typer.Option(
            help="hf: for transformers; onnx: for onnxruntime; peft: low-rank adapters alone; mixture: "
            "all experts with their gate; ct2: for CTranslate2 and faster-whisper; "
            "gguf: for llama.cpp; sherpa-onnx: for sherpa-onnx."
        ),
    ] = Format.hf,
    output: Annotated[Path | None, typer.Option(help="The folder to write; default: RUN/export/FORMAT.")] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Type of the weights, by its name in the format (ct2: int8, …; gguf: q8_0, …; sherpa-onnx: int8)."
        ),
    ] = None,
    expert: Annotated[int | None, typer.Option(help="Of a mixture of experts, the one to write, from 0.")] = None,
    expert_weight: Annotated[
        float | None,
        typer.Option(
            help="What the change of --expert is multiplied by; default: the mean weight that the gate gives it in the "
            "validation utterances that chose it."
        ),
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence of the model, for its card (apache-2.0, …).")] = None,
    data_license: Annotated[
        list[str] | None, typer.Option(help="Licence of data that it was trained on, for its card; may be repeated.")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="A language of the model (hi, en, …), for its card; may be repeated.")
    ] = None,
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Write a run for other software, with a model card (README.md).

    Example: vaak export runs/quickstart --format hf --output quickstart-hf
    """
    from vaak.core.storage.files import write_text
    from vaak.engine.checkpoint.names import step_of
    from vaak.nn.lora import merged
    from vaak.report.model_card import AboutExport, model_card
    from vaak.runs.open_run import open_run
    from vaak.tasks.base import demand_format, demand_quantization, writer_of

    if quantization is not None:
        demand_quantization(format.value, quantization)
    opened = open_run(run, device="cpu", weights=weights, trust_code=trust_code)
    demand_format(opened.task, format.value)
    if expert is not None and getattr(opened.experiment.model, "experts", None) is None:
        raise UserError("--expert: this model is not a mixture of experts; leave it out")
    if expert is None and expert_weight is not None:
        raise UserError("--expert-weight is of one expert: give --expert, too, or leave it out")
    if expert is not None and format in (Format.onnx, Format.mixture):
        raise UserError(f"--expert: --format {format.value} writes the whole mixture; leave it out, or use hf or peft")
    chosen: dict[str, Any] = {}
    if expert is not None:
        known = opened.task.expert_weight(expert, opened.checkpoint) if expert_weight is None else expert_weight
        chosen = {"expert": expert, "weight": known}
    folder = output or opened.directory / "export" / format.value
    model = opened.model if format in (Format.peft, Format.mixture) else merged(opened.model)
    typed = {} if quantization is None else {"quantization": quantization}
    getattr(opened.task, writer_of(format.value))(model, folder, **chosen, **typed)
    card = folder / "README.md"
    if not card.exists():  # an adapter's says how it is loaded
        facts = AboutExport(
            format.value,
            step_of(opened.checkpoint),
            folder.name,
            sorted(path.name for path in folder.iterdir()),
            license,
            tuple(data_license or ()),
            tuple(language or ()),
            quantization,
        )
        write_text(card, model_card(opened.directory, facts))
    if as_json:
        print(json.dumps({"folder": str(folder), **chosen, **typed}))
    else:
        about = f": expert {expert}, its change multiplied by {chosen['weight']:.4g}" if chosen else ""
        print(f"exported {opened.checkpoint} to {folder}{about}")
