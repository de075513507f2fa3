"""``vaak data``: list, download and prepare corpora for which Lhotse has a recipe; simulate conversations."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from vaak.cli.config import AsJson
from vaak.cli.data.simulate import simulate

app = typer.Typer(help="List, download, prepare and simulate data.", no_args_is_help=True, add_completion=False)
app.command()(simulate)

Name = Annotated[str, typer.Argument(help="The name of a recipe (see vaak data list).")]
Options = Annotated[list[str] | None, typer.Argument(metavar="[key=value…]", help="Further arguments of the recipe.")]
CorpusDir = Annotated[str, typer.Option("--corpus-dir", help="Folder of the corpora, with one folder for each.")]
OutputDir = Annotated[str, typer.Option("--output-dir", help="Folder of manifests, with one folder for each corpus.")]


@app.callback()
def data() -> None:
    """List, download, prepare and simulate data."""


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
def get(name: Name, options: Options = None, corpus_dir: CorpusDir = "./data") -> None:
    """Download a corpus. Run again, an interrupted download continues.

    Example: vaak data get librispeech dataset_parts=mini_librispeech
    """
    from pathlib import Path

    from vaak.audio.corpora.recipe_corpus import get_corpus

    found = get_corpus(name, Path(corpus_dir).expanduser() / name, _values(options))
    print(f"{name} is in {found}")


@app.command()
def prepare(
    name: Name, options: Options = None, corpus_dir: CorpusDir = "./data", output_dir: OutputDir = "./manifests"
) -> None:
    """Write the manifests of a corpus that is on disk. Training does this too when it needs them.

    Example: vaak data prepare ami mic=sdm --corpus-dir /corpora
    """
    from vaak.audio.config import AudioConfig, DatasetConfig
    from vaak.audio.corpora.recipe_corpus import prepare_corpus

    audio = AudioConfig(corpus_dir=corpus_dir, output_dir=output_dir)
    for part, path in prepare_corpus(DatasetConfig(name=name, options=_values(options)), audio).items():
        with open(path, "rb") as lines:
            print(f"{part:<16} {sum(1 for _ in lines):>9,} cuts  {path}")


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
