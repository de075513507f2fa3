"""How much data each stage reads, the presets for GPUs, names of the pipeline that this one replaces, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from tiny_whisper import write_whisper
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.voices import LANGUAGES
from vaak.cli.pipeline import read_values
from vaak.config.base import from_options
from vaak.config.load import load_layers
from vaak.core.errors import DataError, UserError
from vaak.tasks.asr.stages.clusters import expected_sizes, few_utterances
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.pipeline import PIPELINE, translate_options
from vaak.tasks.asr.stages.runs import (
    DIGIT_VOICES,
    base_values,
    get_precision,
    make_data_section,
    make_task,
    make_training_section,
)

PRESETS = Path(__file__).parents[5] / "configs" / "pipelines" / "moe-asr"
READING = ("embeddings", "experts", "joint")
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("given", "percents", "most"),
    [
        ({}, (5, 15, 100), (None, None, None)),
        ({"data_percent": 10}, (0.5, 1.5, 10), (None, None, None)),
        ({"data_percent": 50}, (2.5, 7.5, 50), (None, None, None)),
        ({"data_percent": 100}, (5, 15, 100), (None, None, None)),
        ({"mode": "quick"}, (100, 100, 100), (10, 5, 5)),
        ({"embedding_percent": 10, "data_percent": 50, "embedding_samples": 7}, (5, 7.5, 50), (7, None, None)),
        ({"mode": "quick", "expert_samples": 8}, (100, 100, 100), (10, 8, 5)),
    ],
)
def test_each_stage_reads_its_part_of_the_data(given: dict[str, Any], percents: Any, most: Any, tmp_path: Path) -> None:
    options = MoeOptions(**given, dataset_root=tmp_path)
    parts = [options.get_data_share(stage) for stage in READING]
    assert [part.percent for part in parts] == pytest.approx(percents)
    assert tuple(part.most for part in parts) == most
    data = [make_data_section(options, stage)["data"] for stage in READING]
    assert [(one["percent"], one["max_samples"], one["sampling_seed"]) for one in data] == [(*one, 42) for one in parts]


@pytest.mark.parametrize(
    ("name", "numbers", "precision"),
    [
        ("a100-40gb", (512, 4, 2, 8, 4, 2, 5), "fp16"),
        ("a100-80gb", (1024, 8, 4, 8, 4, 2, 5), "fp16"),
        ("h100-80gb", (2048, 12, 8, 4, 8, 2, 5), "fp16"),
        ("production", (512, 4, 2, 8, 4, 5, 10), "fp16"),
        ("h200", (4096, 24, 16, 2, 12, 2, 5), "bf16"),
    ],
)
def test_presets_reach_the_runs(name: str, numbers: tuple[int, ...], precision: str) -> None:
    options = from_options(MoeOptions, read_values(PIPELINE, PRESETS / f"{name}.yml"), name)
    runs = {stage: make_training_section(options, stage, "val_wer") for stage in ("gate", "experts", "joint")}
    joint = runs["joint"]
    found = (
        *(run["batch_size"] for run in runs.values()),
        joint["gradient_accumulation_steps"],
        joint["performance"]["num_workers"],
        joint["validation"]["interval_epochs"],
        joint["checkpoint"]["interval_epochs"],
    )
    assert (options.mode, found, joint["mixed_precision"]) == ("full", numbers, precision)
    assert options.draw is (name != "production")


@pytest.mark.parametrize("path", sorted(PRESETS.iterdir()), ids=lambda path: path.stem)
def test_every_preset_is_options_that_the_command_takes(path: Path, vaak: Any, tmp_path: Path) -> None:
    asked = ("--mode", "quick", "--config", path)
    code, out, err = vaak("pipeline", "moe-asr", "--dry-run", *asked, "--output-dir", tmp_path / "run")
    assert (code, "has not run yet" in out) == (0, True), err


def test_a_preset_is_found_by_its_name(vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("pipeline", "moe-asr", "--dry-run", "--mode", "quick", "--config")
    code, out, err = vaak(*asked, "pipelines/moe-asr/a100-40gb")
    assert (code, "has not run yet" in out) == (0, True), err
    code, _, err = vaak(*asked, "pipelines/moe-asr/a100-40")
    assert (code, err.strip()) == (2, "pipelines/moe-asr/a100-40: can't be read: No such file or directory")


def test_a_device_reaches_the_runs_and_is_no_reason_to_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    options = MoeOptions(mode="quick", whisper_model="scratch", device="cpu")
    runs = [
        base_values(options)["training"],
        *(make_training_section(options, stage, "val_wer") for stage in ("gate", "joint")),
    ]
    assert [run["device"] for run in runs] == ["cpu"] * 3
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [run["mixed_precision"] for run in runs[2:]] == ["no"]
    assert (get_precision(MoeOptions(device="cpu")), get_precision(MoeOptions(device="cuda"))) == ("no", "fp16")
    assert not any("device" in stage.options for stage in PIPELINE.stages)


def test_a_base_never_hears_the_accents_that_are_adapted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = MoeOptions(mode="quick", whisper_model="scratch")
    base, joint = base_values(options), make_data_section(options, "joint")
    assert base["datasets"] == joint["datasets"], "the same voices"
    heard, adapted = (set(one["data"]["groups"]) for one in (base, joint))
    assert not heard & adapted
    assert heard | adapted == set(LANGUAGES)
    assert base["data"]["max_duration"] == joint["data"]["max_duration"] == 4
    own = MoeOptions(mode="quick", whisper_model="scratch", dataset_root=tmp_path, data={"max_duration": 6})
    assert base_values(own)["data"]["max_duration"] == make_data_section(own, "joint")["data"]["max_duration"] == 6


def test_early_stopping_and_the_best_are_by_wer_or_by_loss() -> None:
    for best_by in ("wer", "loss"):
        options = MoeOptions(best_by=best_by)
        for stage in ("gate", "experts", "joint"):
            assert make_training_section(options, stage, f"val_{best_by}")["early_stopping"]["patience"] == 5


def test_the_json_of_the_other_pipeline_gives_options(tmp_path: Path) -> None:
    given = {
        "data_config_path": "Config/dataloader_config.json",
        "data_mode": "default",
        "data_config_override": {
            "dataset_root": "Data/extracted_data", "split": "Train", "percent": 10, "sampling": "stratified", "seed": 7,
            "max_samples": None, "modes": {},
        },
        "whisper_model": "v2",
        "output_dir": "Data/embeddings/whisper_v2_embeddings",
        "mapping_path": "Data/embeddings/whisper_v2_embeddings/mapping.json",
        "overwrite": True,
        "clustering_algorithm": "spectral",
        "plot": "pca",
    }  # fmt: skip
    (tmp_path / "embeddings.json").write_text(json.dumps(given))
    values = read_values(PIPELINE, tmp_path / "embeddings.json")
    assert values.pop("output_dir") == given["output_dir"], "where the command runs it"
    options = from_options(MoeOptions, values, "")
    found = (
        options.dataset_root,
        options.embedding_percent,
        options.seed,
        options.embedding_samples,
        options.algorithm,
    )
    assert found == (Path("Data/extracted_data"), 10, 7, None, "spectral")
    assert (options.whisper_model, options.plot_method) == ("v2", "pca")
    for key, value in {"sampling": "random", "split": "Dev", "modes": {"a": 1}}.items():
        with pytest.raises(UserError, match=f"data_config_override.{key}"):
            translate_options({"data_config_override": {key: value}})
    with pytest.raises(UserError, match="data_config_override: unknown 'precent'; did you mean 'percent'"):
        translate_options({"data_config_override": {"precent": 3}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--skip-pretraining",), "--skip-pretraining requires --num-experts: nothing else determines it"),
        (("--mode", "full"), "no data: give --dataset-root"),
        (("--dataset-root", "nowhere"), "--dataset-root: no such folder: nowhere"),
        (("--mode", "quick", "--data-percent", 10), "--data-percent has no effect in mode quick"),
        (("--fp16", "--bf16"), "--fp16 and --bf16 are both given"),
        (("--top-k", 9), "top_k (9) is more than num_experts (8)"),
        (("--metric", "cosine", "--hdbscan-algorithm", "prims_kdtree"), "can't use metric cosine"),
        (("--mode", "quick", "--skip-pretraining", "--num-experts", 2, "--only", "gate"), "stage gate is not part of"),
    ],
)
def test_mistakes_are_said_in_a_line(
    arguments: tuple[Any, ...], message: str, vaak: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = vaak("pipeline", "moe-asr", *arguments, "--dry-run")
    assert (code, message in err.splitlines()[-1], "Traceback" in err) == (2, True, False), err


def test_every_flag_of_the_other_pipeline_is_taken(
    vaak: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "Train").mkdir(parents=True)
    (tmp_path / "data" / "Train" / "train.jsonl").write_text("")
    code, out, err = vaak(
        *("pipeline", "moe-asr", "--dry-run", "--json", "--mode", "full", "--seed", 42, "--resume", "--no-plot"),
        *("--data-percent", 10, "--dataset-root", "data", "--whisper-model", "v3", "--num-experts", 8),
        *("--gating-batch-size", 512, "--expert-batch-size", 4, "--asr-batch-size", 2, "--num-workers", 4),
        *("--gradient-accumulation-steps", 8, "--no-fp16", "--eval-every-n-epochs", 2, "--save-every-n-epochs", 5),
        *("--clustering-algorithm", "hdbscan", "--min-cluster-size", 5, "--min-clusters", 8, "--min-samples", 5),
        *("--metric", "euclidean", "--allow-single-cluster", "--hdbscan-algorithm", "boruvka_kdtree"),
        *("--no-reduce-experts", "--min-experts", 2, "--max-retries", 5, "--reduce", "umap", "--reduce-dim", 50),
        *("--pooling", "flatten", "--plot-method", "umap", "--log-file", "training.log"),
    )
    assert code == 0, err
    stages = [row["stage"] for row in json.loads(out)]
    assert stages[:5] == ["embeddings", "clusters", "gate", "experts", "joint"], "the base isn't trained: it is v3"
    code, out, err = vaak("pipeline", "moe-asr", "--dry-run", "--json", "--mode", "quick", "--skip-pretraining",
                          "--num-experts", 8, "--fp16", "--algorithm", "spectral", "--plot", "pca")  # fmt: skip
    assert (code, [row["stage"] for row in json.loads(out)]) == (0, ["base", "joint"]), err


def test_a_dataset_is_the_same_after_the_options_were_stored() -> None:
    given = {"datasets": [{"type": "splits", "corpus_dir": "there", "split_by": "recording"}, {"corpus_dir": "here"}]}
    options: Any = from_options(PIPELINE.options, given, PIPELINE.name)
    again: Any = from_options(PIPELINE.options, options.model_dump(mode="json"), PIPELINE.name)
    for one in (options, again):
        first, second = make_data_section(one, "joint")["datasets"]
        assert first.items() >= given["datasets"][0].items()
        assert not {"seed", "say", "num_voices", "split_by"} & second.keys(), "what other types read isn't there"


def test_many_tiny_experts_are_named_before_and_when_they_are_trained() -> None:
    options = MoeOptions(num_experts=60, dataset_root="there")
    assert expected_sizes(options, [8, 20, 40]) == [24, 60, 120], "5 % are clustered, 15 % are trained on"
    assert expected_sizes(options.model_copy(update={"expert_samples": 34}), [8, 20, 40]) == [4, 10, 20]
    assert few_utterances([24] * 60).startswith(
        "60 of 60 experts have fewer than 50 utterances to train on (the fewest 24)"
    )
    assert few_utterances([50, 51]) == ""


def test_the_audio_of_links_is_read_where_it_is_named(
    tmp_path: Path, vaak: Callable[..., tuple[int, str, str]]
) -> None:
    """The advice of the error can be followed with the flag that it names, and nothing else."""
    store, root = tmp_path / "store", tmp_path / "data"
    for folder in (store, root / "Train", root / "Dev"):
        folder.mkdir(parents=True)
    for number, split in enumerate(("Train", "Dev")):
        write_audio(store / f"{number}.wav", 0.5, 16000)
        (root / split / f"{number}.wav").symlink_to(store / f"{number}.wav")
        (root / split / f"{number}.txt").write_text("one two")

    def read(**options: Any) -> list[Any]:
        task = make_task(
            make_data_section(MoeOptions(dataset_root=root, whisper_model="scratch", **options), "joint"), tmp_path
        )
        return [*AudioCorpus(task.datasets[0], task.audio).cuts("train")]

    with pytest.raises(DataError, match=r"is a link to .*which is refused") as refused:
        read()
    flag, named = str(refused.value).partition("in a pipeline: ")[2].strip(")").split(" ")
    assert (flag, len(read(audio_root=Path(named)))) == ("--audio-root", 1)
    code, _, errors = vaak("pipeline", "moe-asr", "--dataset-root", root, flag, named, "--dry-run")
    assert code == 0, errors


def test_a_base_that_reads_less_than_half_a_minute_decides_how_much_is_read(tmp_path: Path) -> None:
    """The maximum duration defaults to the base's window; a given one is kept."""
    short, usual = write_whisper(tmp_path / "short", seconds=4), write_whisper(tmp_path / "usual")
    for base, seconds in ((short, 4.0), (usual, 30.0)):
        options = MoeOptions(dataset_root=tmp_path, whisper_model=str(base))
        assert make_data_section(options, "joint")["data"]["max_duration"] == seconds
        loaded: Any = load_layers(
            [{"task": "asr", "name": "x", "model": {"base": str(base)}, "datasets": [DIGIT_VOICES]}]
        )
        assert loaded.experiment.data.max_duration == seconds
        said = [one for one in loaded.warnings if "max_duration" in one]
        assert said == ([f"data.max_duration: 4, which is what {base} reads at most"] if base == short else [])
    given = {"task": "asr", "model": {"base": str(short)}, "datasets": [DIGIT_VOICES], "data": {"max_duration": 2}}
    assert load_layers([given]).experiment.data.max_duration == 2
