"""``vaak data``: list, download, prepare, simulate, segment, clean and check data.

Corpora are those for which Lhotse has a recipe; ``preprocess`` and ``check`` are of the data of a configuration.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import (
    Arguments,
    AsJson,
    Delimiter,
    Encoding,
    OptionalArguments,
    Quotes,
    TrustCode,
    dialect_said,
    files_and_overrides,
    load_trusted,
)
from vaak.cli.tasks.align import segment
from vaak.core.errors import UserError
from vaak.core.left_out import count_endings, files_to_json, noting_files
from vaak.core.names import list_names, nearest_name
from vaak.core.storage.files import scratch_folder
from vaak.report.tables import aligned

if TYPE_CHECKING:
    from vaak.audio.config import DatasetConfig
    from vaak.audio.simulation.folder import Written
    from vaak.config.load import Loaded
    from vaak.core.left_out import SplitContents


class Split(StrEnum):
    """The split whose speakers talk."""

    train = "train"
    valid = "valid"
    test = "test"


def simulate(
    out: Annotated[Path, typer.Argument(help="A new or empty folder, or one to continue.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE… key=value…]", help="YAML files and options that override them; default: built-in voices."
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="The split whose speakers talk.")] = Split.test,
    number: Annotated[int | None, typer.Option(min=1, help="Number of conversations; default: as in the YAML.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The name of a dataset, if the YAML has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write simulated conversations as audio with RTTM, a manifest and Lhotse's cuts.

    The same options give the same bits. An interrupted simulation continues when it is run again.

    Example: vaak data simulate conversations --number 20 datasets.0.conversations.beta=1
    """
    import vaak.audio.simulation
    from vaak.config.load import load

    files, overrides = files_and_overrides(arguments or [])
    loaded = load(files or [Path(vaak.audio.simulation.__path__[0]) / "built_in_voices.yml"], overrides)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with noting_files() as noted:
        written, num_speakers, contents = _simulated(loaded, _dataset(loaded, dataset), out, split.value, number)
    if as_json:
        about = {"number": written.number, "new": written.new, "seconds": round(written.seconds, 3)}
        read = {"data": {split.value: contents.to_json()}, "files": files_to_json(noted)}
        print(json.dumps({"folder": str(out), **about, "speakers": num_speakers, **read}, ensure_ascii=False))
        return
    print(contents.describe(split.value))
    minutes = f"{written.seconds / 60:.1f} minutes"
    print(f"{written.number} conversations, {minutes}, of {num_speakers} speakers in {out} ({written.new} new)")


def _simulated(
    loaded: Loaded, dataset: DatasetConfig, out: Path, split: str, number: int | None
) -> tuple[Written, int, SplitContents]:
    """Return counts of what was written, of speakers in the split, and of its recordings read and left out.

    ``number`` conversations of speakers of the ``split``, or as many as ``dataset`` says, are written to ``out``;
    ``loaded`` is the configuration.
    """
    from vaak.audio.config import ConversationsConfig
    from vaak.audio.corpora.corpus import AudioCorpus
    from vaak.audio.cuts.store import write_cuts
    from vaak.audio.simulation.conversations import CutUtterances, SimulatedConversations
    from vaak.audio.simulation.folder import require_room, write_conversations
    from vaak.core.progress import progress

    audio: Any = loaded.experiment.global_config
    options = dataset.conversations or ConversationsConfig()
    # By speakers, as where the YAML has conversations: those of a split must be strangers to the others.
    if "split_by" not in dataset.model_fields_set:
        dataset = dataset.model_copy(update={"split_by": "speaker"})
    if number is not None:
        options = options.model_copy(update={split: number})
    require_room(out)
    with scratch_folder("simulate") as folder:
        corpus = AudioCorpus(dataset, audio)
        store = write_cuts(folder, corpus.cuts(split))
        contents = corpus.statistics[split].contents("utterances")
        utterances = CutUtterances(store, audio, find_speech=dataset.find_speech)
        source = SimulatedConversations(utterances, options, split)
        with progress("conversations", len(source.durations), audio.progress_bar) as advance:
            seed = loaded.experiment.training.random_seed
            return write_conversations(source, out, seed=seed, advance=advance), len(source.speakers), contents


def _dataset(loaded: Loaded, name: str | None) -> DatasetConfig:
    """The dataset of that name, or the only one. Raises UserError if there is none or the choice is not clear."""

    datasets = loaded.experiment.datasets
    there: dict[str, DatasetConfig] = {one.name: one for one in datasets if hasattr(one, "conversations")}
    if not there:
        raise UserError(f"the YAML of task {loaded.experiment.task} names no audio under datasets")
    if name is None and len(there) == 1:
        return next(iter(there.values()))
    if name not in there:
        what = "there are several datasets" if name is None else f"unknown dataset {name}{nearest_name(name, there)}"
        raise UserError(f"{what}; --dataset takes one of {', '.join(there)}")
    return there[name]


def check(
    arguments: Arguments,
    trust_code: TrustCode = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FOLDER: write the YAML to start from to this file.")
    ] = None,
    delimiter: Delimiter = None,
    quotes: Quotes = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Check the data of a configuration, or report what a folder contains.

    For a configuration, every example is read, and problems are listed by example: unreadable data, NaN, and whatever
    the task looks for, such as clipping, silence and gaps in audio. For a FOLDER, the layout is recognised, and within
    a minute its contents are summarised: hours, speakers, texts, overlaps between splits, unreadable files, and a YAML
    to start from.

    The exit code is 2 if there are problems, otherwise 0, even with warnings.

    Example: vaak data check configs/diarization/quickstart.yml; vaak data check cv-corpus-21.0-2025-03-14/hi
    """
    # A recipe's name has no ending, and a YAML is a configuration: any other file is data.
    if len(arguments) == 1 and (Path(arguments[0]).is_dir() or Path(arguments[0]).suffix not in (".yml", ".yaml", "")):
        _check_folder(Path(arguments[0]), output, as_json, dialect_said(delimiter, quotes, encoding))
        return
    _require_none(output, dialect_said(delimiter, quotes, encoding))
    files, overrides = files_and_overrides(arguments)

    from vaak.config.load import load
    from vaak.runs.preflight.doctor.data import check_data

    loaded = load(files, overrides, trust_code=trust_code)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    splits: dict[str, int] = {}
    # Only JSON needs them all.
    rows: list[dict[str, str]] = []
    counts: Counter[str] = Counter()
    for split in check_data(loaded):
        splits[split.name] = split.num_examples
        if not as_json:
            print(f"{split.name}: {split.num_examples:,} examples", flush=True)
        for finding in split.findings:
            counts[finding.mark] += 1
            if as_json:
                rows.append({"split": split.name, **asdict(finding)})
            else:
                example = f"{finding.example}: " if finding.example else ""
                print(f"  {finding.mark:<8} {finding.kind:<12} {example}{finding.message}", flush=True)
    problems = counts["problem"]
    if as_json:
        print(json.dumps({"usable": not problems, "splits": splits, "findings": rows}, ensure_ascii=False))
    else:
        print(f"{_number(problems, 'problem')}, {_number(counts['warning'], 'warning')}")
    if problems:
        raise typer.Exit(2)


def _require_none(output: Path | None, dialect: dict[str, str]) -> None:
    """Raise UserError for options that are for a folder."""
    if output is not None:
        raise UserError("--output is for a folder: vaak data check FOLDER --output FILE")
    for name in dialect:
        raise UserError(f"--{name} is for a folder; a YAML says it of each corpus: dialect: {{{name}: …}}")


def _check_folder(folder: Path, output: Path | None, as_json: bool, dialect: dict[str, str]) -> None:
    """Print a summary of a folder, and write a YAML to start from. Exits with 2 where something can't be read."""
    from vaak.core.storage.files import write_text
    from vaak.report.corpora import render_lines, to_json
    from vaak.runs.preflight.doctor.devices import devices_here
    from vaak.runs.preflight.doctor.folder import survey_folder
    from vaak.runs.starter import starter

    found = survey_folder(folder, dialect=dialect)
    if not as_json:
        for one in found:
            print("\n".join(render_lines(one, folder)), end="\n\n")
    is_usable = any(one.problem is None and one.splits for one in found)
    text = starter(found, devices_here()[0], folder=folder) if is_usable else ""
    if output is not None and text:
        try:
            write_text(output, text)
        except OSError as error:
            raise UserError(f"--output {output} can't be written: {error.strerror or error}") from error
    if as_json:
        print(json.dumps({"corpora": [to_json(one) for one in found], "yaml": text}, ensure_ascii=False))
    else:
        print(f"wrote {output}" if output and text else text and f"To begin with (--output FILE writes it):\n\n{text}")
    if any(one.problem or any(split.broken for split in one.splits.values()) for one in found):
        raise typer.Exit(2)


def _number(number: int, of: str) -> str:
    return f"{number:,} {of}{'' if number == 1 else 's'}"


app = typer.Typer(
    help="List, download, prepare, simulate, clean and check data.",
    epilog="Example: vaak data preprocess configs/quickstart.yml --output prepared",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(simulate)
app.command()(check)
app.command()(segment)
Name = Annotated[str, typer.Argument(help="The name of a recipe (see vaak data list).")]
Options = Annotated[list[str] | None, typer.Argument(metavar="[key=value…]", help="Further arguments of the recipe.")]
FolderAndOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FOLDER] [key=value…]", help="ljspeech: the folder; further arguments of the recipe."),
]
CorpusDir = Annotated[str, typer.Option("--corpus-dir", help="Folder of the corpora, with one folder for each.")]
OutputDir = Annotated[
    str, typer.Option("--output", "--output-dir", help="Folder of manifests, with one folder for each corpus.")
]


@app.callback()
def data() -> None:
    """List, download, prepare, simulate, segment, clean and check data."""


@app.command(name="list")
def list_recipes(
    corpus_dir: CorpusDir = "./data", output_dir: OutputDir = "./manifests", as_json: AsJson = False
) -> None:
    """List the recipes: which can be downloaded, which corpora are on disk, which are prepared.

    Example: vaak data list --corpus-dir /corpora
    """
    from pathlib import Path

    from vaak.audio.corpora.lhotse_manifests import CUTS_FILE
    from vaak.audio.corpora.recipes import recipes

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "download": bool(recipe.downloads),
            "on_disk": (Path(corpus_dir) / name).is_dir(),
            "prepared": (Path(output_dir) / name / CUTS_FILE).is_file(),
            "options": list(recipe.options),
        }
        for name, recipe in recipes().items()
    ]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    marks = {"download": "download", "on_disk": "on disk", "prepared": "prepared"}
    cells = [(row["name"], ", ".join(said for key, said in marks.items() if row[key])) for row in rows]
    print("\n".join(aligned(cells)))


@app.command()
def get(name: Name, options: Options = None, corpus_dir: CorpusDir = "./data", as_json: AsJson = False) -> None:
    """Download a corpus; an interrupted download continues when it is run again.

    Example: vaak data get librispeech dataset_parts=mini_librispeech
    """
    from pathlib import Path

    from vaak.audio.corpora.lhotse_manifests import get_corpus

    with noting_files() as noted:
        found = get_corpus(name, Path(corpus_dir).expanduser() / name, _values(options))
    endings = count_endings(path for path in found.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not endings:
        raise UserError(f"{name}: nothing was downloaded to {found}: give other options, or another recipe")
    if as_json:
        print(json.dumps({"name": name, "folder": str(found), "there": endings, "files": files_to_json(noted)}))
        return
    print(f"{name} is in {found}: {list_names(f'{number:,} {ending}' for ending, number in endings.items())}")


@app.command()
def prepare(
    name: Name,
    options: FolderAndOptions = None,
    corpus_dir: CorpusDir = "./data",
    output_dir: OutputDir = "./manifests",
    alignments: Annotated[
        str | None, typer.Option(help="ljspeech: folder of alignments; default: FOLDER/TextGrid, if there is one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the manifests of a corpus that is on disk. Training does this too when it needs them.

    ljspeech FOLDER is any corpus with metadata.csv and wavs (type: ljspeech in a YAML), split by the hash of names.

    Example: vaak data prepare ami mic=sdm --corpus-dir /corpora
    """
    from vaak.audio.config import AudioConfig, DatasetConfig
    from vaak.audio.corpora.corpus import AudioCorpus
    from vaak.audio.corpora.lhotse_manifests import output_folder, prepare_corpus, write_splits
    from vaak.audio.corpora.recipes import recipe_named

    audio = AudioConfig(corpus_dir=corpus_dir, output_dir=output_dir)
    if name == "ljspeech" and options and "=" not in options[0]:
        folder, *others = options
        if others:
            raise UserError(f"ljspeech FOLDER takes no options, so {others[0]} is unexpected")
        dataset = DatasetConfig(name=name, type="ljspeech", corpus_dir=folder, alignments=alignments)
        made = write_splits(AudioCorpus(dataset, audio), output_folder(dataset, audio))
    elif alignments is not None:
        raise UserError("--alignments is an option of vaak data prepare ljspeech FOLDER")
    else:
        made = prepare_corpus(DatasetConfig(name=recipe_named(name).name, options=_values(options)), audio)
    parts = []
    for part, path in made.items():
        with open(path, "rb") as lines:
            parts.append({"part": part, "cuts": sum(1 for _ in lines), "file": str(path)})
    if as_json:
        print(json.dumps(parts, ensure_ascii=False))
        return
    for one in parts:
        print(f"{one['part']:<16} {one['cuts']:>9,} cuts  {one['file']}")


@app.command()
def clean(
    output: Annotated[Path, typer.Argument(help="A new or empty folder for the shards.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…", help="Files, patterns, folders or hf:DATASET, each with an optional @WEIGHT."
        ),
    ],
    text_column: Annotated[str, typer.Option(help="Column or key of the text.")] = "text",
    document: Annotated[
        str, typer.Option(help="For plain text, the unit that counts as a document: line, paragraph or file.")
    ] = "line",
    near_duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="Similarity of near duplicates of an earlier document; 0 keeps them.")
    ] = 0.8,
    language: Annotated[list[str] | None, typer.Option(help="Keep this language (hi, en, …); may be repeated.")] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Files of an evaluation set to look for in the text; may be repeated.")
    ] = None,
    overlap: Annotated[
        int, typer.Option(min=1, help="--against: number of consecutive words that count as an overlap.")
    ] = 13,
    drop_contaminated: Annotated[bool, typer.Option(help="--against: leave out documents that overlap.")] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, help="Weights of sources by size to the power 1/T; 1: unchanged.")
    ] = None,
    shard_megabytes: Annotated[int, typer.Option(min=1, help="Size of a shard in MiB.")] = 256,
    as_json: AsJson = False,
) -> None:
    """Write the text of several sources as shards to train on: without duplicates, filtered, mixed by weights.

    Exact and near duplicates, other languages and empty documents are left out; overlaps with evaluation sets are
    counted. Sources are read twice, as streams: memory doesn't grow with the text.

    Example: vaak data clean shards "news/*.txt@2" web.parquet@1 --language hi --against test.txt
    """
    from vaak.text.corpora.cleaning import CleaningOptions, parse_source, to_json
    from vaak.text.corpora.cleaning import clean as clean_text

    if document not in ("line", "paragraph", "file"):
        raise UserError(f"--document: {document} is unknown; expected line, paragraph or file")
    options = CleaningOptions(
        text_column=text_column,
        document=document,
        near_duplicates=near_duplicates or None,
        languages=tuple(language or ()),
        against=tuple(against or ()),
        overlap=overlap,
        drop_contaminated=drop_contaminated,
        temperature=temperature,
        shard_megabytes=shard_megabytes,
    )
    with noting_files() as noted:
        report = clean_text([parse_source(one, options) for one in sources], output, options)
    if as_json:
        print(json.dumps(to_json(report) | {"files": files_to_json(noted)}, ensure_ascii=False))
        return
    for name, counts in report.documents.items():
        left = ", ".join(f"{number:,} {reason}" for reason, number in counts.items() if number and reason != "kept")
        number = report.num_files.get(name)
        read = f"{number:,} files, " if number is not None and number > 1 else ""
        print(f"{name}: {read}{counts['kept']:,} documents kept{f'; left out: {left}' if left else ''}")
        print(f"  {report.written[name]:,} characters written (each document {report.repeats[name]:g} times)")
    if report.evaluated:
        percent = 100 * report.hit / report.evaluated
        print(f"evaluation documents that are in the text: {report.hit:,} of {report.evaluated:,} ({percent:.1f} %)")
    repeated = ", deduplicate: false" if any(one > 1 for one in report.repeats.values()) else ""
    print(f"{_number(report.shards, 'shard')}: data: {{corpus: {{train: [{output}/*.jsonl]{repeated}}}}}")


@app.command()
def preprocess(
    arguments: OptionalArguments = None,
    input_dir: Annotated[
        str | None, typer.Option("--input-dir", help="Read the files of this folder: they are data.corpus.train.")
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option("--output", "--output-dir", help="data.cache_dir: prepared data that runs share."),
    ] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="A further YAML; may be repeated.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Prepare the data that YAML files describe (tokenizer, tokens, manifests, features), without training.

    Training with the same files then finds them.

    Example: vaak data preprocess configs/quickstart.yml --output prepared
    """
    files, overrides = files_and_overrides([*(arguments or ()), *(config or ())])

    from vaak.runs.start import prepare as prepare_run

    if input_dir is not None:
        if not Path(input_dir).is_dir():
            raise UserError(f"--input-dir: no such folder: {input_dir}")
        visible = [path for path in Path(input_dir).iterdir() if path.is_file() and not path.name.startswith(".")]
        if not visible:
            raise UserError(f"--input-dir: {input_dir} has no files (those in folders below it aren't read)")
        # One for each ending.
        patterns = sorted({str(path.with_name(f"*{path.suffix}")) for path in visible})
        overrides.append(f"data.corpus.train={json.dumps(patterns)}")
    if output_dir is not None:
        overrides.append(f"data.cache_dir={json.dumps(output_dir)}")
    loaded = load_trusted(files, overrides, trust_code)
    if "task" not in loaded.given:
        task = loaded.experiment.task
        print(f"task: {task}, by the keys of the configuration; task=… prepares for another", file=sys.stderr)
    folder = prepare_run(loaded)
    print(json.dumps({"folder": str(folder)}) if as_json else f"prepared data are in {folder}")


def _values(options: list[str] | None) -> dict[str, Any]:
    """``key=value`` with the value read as YAML. Raises UserError for anything else."""
    from vaak.config.yaml.text import read_value

    values = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{text!r} is not of the form key=value")
        values[key] = read_value(value, key)
    return values
