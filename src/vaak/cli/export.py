"""``vaak export``, ``vaak publish``: a trained model for other software, and for the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import AsJson, TrustCode, Weights, WhichWeights, complete_runs, require_run, run_argument
from vaak.core.errors import UserError
from vaak.core.storage.files import scratch_folder

if TYPE_CHECKING:
    from vaak.config.tasks import ExportFormat
    from vaak.runs.open_run import OpenedRun


def _known_formats() -> list[str]:
    """Return the formats of all tasks, for completion."""
    from vaak.config.tasks import TASKS

    return sorted({name for spec in TASKS.values() for name in spec.exports})


ChosenFormat = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="hf: for transformers; onnx: for onnxruntime; peft: low-rank adapters alone; mixture: "
        "all experts with their gate; ct2: for CTranslate2 and faster-whisper; "
        "gguf: for llama.cpp; sherpa-onnx: for sherpa-onnx; dcp: for torch.distributed.checkpoint; "
        "or a format of your own task.",
        autocompletion=_known_formats,
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help="Type of the weights, by its name in the format (ct2: int8, …; gguf: q8_0, …; sherpa-onnx: int8)."
    ),
]
License = Annotated[str | None, typer.Option(help="Licence of the model, for its card (apache-2.0, …).")]
DataLicenses = Annotated[
    list[str] | None, typer.Option(help="Licence of data that it was trained on, for its card; may be repeated.")
]
Languages = Annotated[
    list[str] | None, typer.Option(help="A language of the model (hi, en, …), for its card; may be repeated.")
]


def export(
    run: Annotated[Path, run_argument("A run (its best checkpoint) or a checkpoint.")],
    format: ChosenFormat = "hf",
    output: Annotated[Path | None, typer.Option(help="The folder to write; default: RUN/export/FORMAT.")] = None,
    quantization: Quantization = None,
    expert: Annotated[int | None, typer.Option(help="For a mixture of experts: the expert to write, from 0.")] = None,
    expert_weight: Annotated[
        float | None,
        typer.Option(
            help="Scale of the exported expert; default: its mean gate weight over the validation utterances "
            "routed to it."
        ),
    ] = None,
    vocoder: Annotated[
        str | None,
        typer.Option(help="For sherpa-onnx TTS: the vocoder to bundle (default: data.speaking.vocoder)."),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(help="For sherpa-onnx TTS: a text file whose words are added to the lexicon."),
    ] = None,
    license: License = None,
    data_license: DataLicenses = None,
    language: Languages = None,
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Convert a run for use in other software, with a model card (README.md).

    Example: vaak export runs/quickstart --format hf --output quickstart-hf
    """
    from vaak.runs.open_run import open_run

    opened = open_run(run, device="cpu", weights=weights, trust_code=trust_code)
    declared = _require_format(opened, format, quantization)
    if expert is not None and getattr(opened.experiment.model, "experts", None) is None:
        raise UserError("--expert: this model is not a mixture of experts; leave it out")
    if expert is None and expert_weight is not None:
        raise UserError("--expert-weight requires --expert: give both, or leave it out")
    chosen: dict[str, Any] = {}
    if expert is not None:
        if "expert" not in declared.options:
            raise UserError(f"--expert: --format {format} writes the whole mixture; {_advise(opened, 'expert')}")
        known = opened.task.expert_weight(expert, opened.checkpoint) if expert_weight is None else expert_weight
        chosen = {"expert": expert, "weight": known}
    further = {name: one for name, one in (("vocoder", vocoder), ("words", words)) if one is not None}
    for name in further:
        if name not in declared.options:
            raise UserError(f"--{name}: --format {format} doesn't take it; {_advise(opened, name)}")
    folder = output or opened.directory / "export" / format
    typed = {} if quantization is None else {"quantization": quantization}
    _write(opened, format, folder, {**chosen, **typed, **further}, (license, data_license, language), folder.name)
    if as_json:
        print(json.dumps({"folder": str(folder), **chosen, **typed}))
    else:
        about = f": expert {expert}, its change multiplied by {chosen['weight']:.4g}" if chosen else ""
        print(f"exported {opened.checkpoint} to {folder}{about}")


def _advise(opened: OpenedRun, option: str) -> str:
    """Return the remedy for an option that the chosen format doesn't take."""
    from vaak.runs.use import available_formats, declared_formats

    formats = declared_formats(opened.task)
    taking = [name for name in available_formats(opened.task) if option in formats[name].options]
    return f"leave it out, or use {' or '.join(taking)}" if taking else "leave it out"


def publish(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run (its best checkpoint), a checkpoint, or a folder of vaak export.", autocompletion=complete_runs
        ),
    ],
    name: Annotated[str, typer.Argument(help="The repository on the Hugging Face Hub: NAME or OWNER/NAME.")],
    format: ChosenFormat = "hf",
    quantization: Quantization = None,
    license: License = None,
    data_license: DataLicenses = None,
    language: Languages = None,
    yes: Annotated[bool, typer.Option("--yes", help="Upload it; without this, the files are only listed.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Make the repository public; default: private.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Add to an existing repository.")] = False,
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Upload a run with its model card to the Hugging Face Hub, or list what would be uploaded.

    Example: vaak publish runs/quickstart my-model --license apache-2.0 --yes
    """
    if not run.exists():
        require_run(run)

    from vaak.core.machine import format_bytes
    from vaak.runs import hub

    hub.require_name(name)
    is_exported = hub.is_exported(run)
    with scratch_folder("publish") as temporary:
        folder = run if is_exported else temporary / Path(name).name
        if not is_exported:
            from vaak.runs.open_run import open_run

            opened = open_run(run, device="cpu", weights=weights, trust_code=trust_code)
            _require_format(opened, format, quantization)
            typed = {} if quantization is None else {"quantization": quantization}
            _write(opened, format, folder, typed, (license, data_license, language), name)
        files = hub.list_files(folder)
        card = (folder / "README.md").read_text(encoding="utf-8")
        seen = "public" if public else "private"
        if not as_json:
            width = max(map(len, files))
            print(f"{name} ({seen})")
            print("".join(f"  {file:{width}}  {format_bytes(size):>10}\n" for file, size in files.items()), end="")
            print(f"  {'':{width}}  {format_bytes(sum(files.values())):>10}\n\nREADME.md:\n{card}")
        url = hub.send(folder, name, public=public, update=update) if yes else None
    if as_json:
        about = {"repository": name, "visibility": seen, "files": files, "card": card, "sent": yes, "url": url}
        print(json.dumps(about, ensure_ascii=False))
    else:
        print(f"sent to {url}" if yes else "Nothing was sent; --yes sends it.")


def _require_format(opened: OpenedRun, format: str, quantization: str | None) -> ExportFormat:
    """Return a format of the run's task. Raises UserError if it can't be written, or not with such weights."""
    from vaak.runs.use import declared_formats, require_format, require_quantization

    require_format(opened.task, format)
    declared = declared_formats(opened.task)[format]
    if quantization is not None:
        require_quantization(format, declared, quantization)
    return declared


def _write(
    opened: OpenedRun,
    format: str,
    folder: Path,
    options: Mapping[str, Any],
    said: tuple[str | None, list[str] | None, list[str] | None],
    name: str,
) -> None:
    """Write ``folder`` with a card, completely or not at all.

    ``said`` are the licence, those of the data, the languages; ``name`` is the card's own.
    """
    from vaak.core.storage.files import whole_folder
    from vaak.nn.lora import merged
    from vaak.runs.use import declared_formats, find_writer

    with whole_folder(folder, named=True) as made:
        # Writers name it in what they write.
        is_unmerged = declared_formats(opened.task)[format].is_unmerged
        find_writer(opened.task, format)(opened.model if is_unmerged else merged(opened.model), made, **options)
        # An adapter's writer makes the card itself, which says how the adapter is loaded.
        if not (made / "README.md").exists():
            _write_card(opened, format, made, (options.get("quantization"), *said), name)


def _write_card(
    opened: OpenedRun,
    format: str,
    folder: Path,
    said: tuple[str | None, str | None, list[str] | None, list[str] | None],
    name: str,
) -> None:
    """Write the card of the export in ``folder``; ``said`` holds the type of weights, and the options of ``_write``."""
    from vaak.core.storage.files import write_text
    from vaak.engine.checkpoint.names import parse_step
    from vaak.report.model_card import AboutExport, model_card

    quantization, license, data_licenses, languages = said
    facts = AboutExport(
        format,
        parse_step(opened.checkpoint),
        name,
        sorted(path.name for path in folder.iterdir()),
        license,
        tuple(data_licenses or ()),
        tuple(languages or ()),
        quantization,
        opened.experiment.spec,
    )
    write_text(folder / "README.md", model_card(opened.directory, facts))
