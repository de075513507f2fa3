"""``vaak data``: list, download and prepare corpora for which Lhotse has a recipe; simulate and check data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from vaak.cli.config import AsJson, OptionalArguments, TrustCode, files_and_overrides
from vaak.cli.data.check import check
from vaak.cli.data.simulate import simulate

app = typer.Typer(
    help="List, download, prepare, simulate and check data.",
    epilog="Example: vaak data preprocess configs/quickstart.yml --output prepared",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(simulate)
app.command()(check)

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
    """List, download, prepare, simulate and check data."""


@app.command(name="list")
def list_recipes(
    corpus_dir: CorpusDir = "./data", output_dir: OutputDir = "./manifests", as_json: AsJson = False
) -> None:
    """List the recipes: which can be downloaded, which corpora are on disk, which are prepared.

    Example: vaak data list --corpus-dir /corpora
    """
    from pathlib import Path

    from vaak.audio.corpora.recipe_corpus import DONE
    from vaak.audio.corpora.recipes import recipes

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "download": bool(recipe.downloads),
            "on_disk": (Path(corpus_dir) / name).is_dir(),
            "prepared": (Path(output_dir) / name / DONE).is_file(),
            "options": list(recipe.options),
        }
        for name, recipe in recipes().items()
    ]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        marks = [mark for mark in ("download", "on_disk", "prepared") if row[mark]]
        print(f"{row['name']:<{width}}  {', '.join(marks).replace('_', ' ')}".rstrip())


@app.command()
def get(name: Name, options: Options = None, corpus_dir: CorpusDir = "./data", as_json: AsJson = False) -> None:
    """Download a corpus. Run again, an interrupted download continues.

    Example: vaak data get librispeech dataset_parts=mini_librispeech
    """
    from pathlib import Path

    from vaak.audio.corpora.recipe_corpus import get_corpus

    found = get_corpus(name, Path(corpus_dir).expanduser() / name, _values(options))
    print(json.dumps({"name": name, "folder": str(found)}) if as_json else f"{name} is in {found}")


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
    from vaak.audio.corpora.recipe_corpus import output_folder, prepare_corpus, write_splits
    from vaak.audio.corpora.recipes import recipe_named
    from vaak.core.errors import UserError

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
    from vaak.config.load import load
    from vaak.runs.folder.user_code import demand_trust
    from vaak.runs.start import prepare as prepare_run

    files, overrides = files_and_overrides([*(arguments or ()), *(config or ())])
    if input_dir is not None:
        overrides.append(f"data.corpus.train={json.dumps(_files_in(input_dir))}")
    if output_dir is not None:
        overrides.append(f"data.cache_dir={json.dumps(output_dir)}")
    loaded = load(files, overrides, trust_code=trust_code)
    demand_trust(loaded)
    folder = prepare_run(loaded)
    print(json.dumps({"folder": str(folder)}) if as_json else f"prepared data are in {folder}")


def _files_in(folder: str) -> list[str]:
    """A pattern for the files of each ending in a folder. Raises UserError where there are none."""
    from pathlib import Path

    from vaak.core.errors import UserError

    if not Path(folder).is_dir():
        raise UserError(f"--input-dir: no such folder: {folder}")
    visible = [path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith(".")]
    if not visible:
        raise UserError(f"--input-dir: {folder} has no files (those in folders below it aren't read)")
    return sorted({str(path.with_name(f"*{path.suffix}")) for path in visible})


def _values(options: list[str] | None) -> dict[str, Any]:
    """``key=value`` with the value read as YAML. Raises UserError for anything else."""
    from vaak.config.yaml.reader import read_value
    from vaak.config.yaml.tree import to_plain
    from vaak.core.errors import UserError

    values = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{text!r} is not of the form key=value")
        values[key] = to_plain(read_value(value, key))
    return values
