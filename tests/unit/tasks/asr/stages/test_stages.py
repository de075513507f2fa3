"""The stages of ``moe-asr`` on tones use each other's outputs, and survive kills, damage and bad data."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import tiny_listener
import tiny_mixture
from vaak.audio.audio_file import AudioFile
from vaak.config.base import from_options
from vaak.core.storage.files import read_json, share_blocks
from vaak.data.plan import sample_size
from vaak.pipeline import rows as rows_of_keys
from vaak.pipeline.jobs import Jobs
from vaak.pipeline.rows import PipelineRowStore
from vaak.pipeline.run import PipelinePlan, Request
from vaak.runs.open_run import open_run
from vaak.tasks.asr.stages.clusters import Clusters
from vaak.tasks.asr.stages.forecasts import KEPT_CHECKPOINTS, PASSES, STARTING
from vaak.tasks.asr.stages.gate_task import held_out
from vaak.tasks.asr.stages.mixture import load_gate, measure_calibration, probabilities
from vaak.tasks.asr.stages.pipeline import PIPELINE, extract_embeddings
from vaak.tasks.asr.whisper.features import SAMPLING_RATE, WhisperFeatures
from vaak.tasks.asr.whisper.network import loaded_whisper

Command = Callable[..., tuple[int, str, str]]
ALMOST_NO_STEP = 1e-9
"""A learning rate so low that joint training leaves weights as they were."""


@pytest.fixture(scope="module", autouse=True)
def small_shards() -> Iterator[None]:
    """Five embeddings in a file, so that a few utterances make several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_of_keys, "ROWS_PER_SHARD", 5)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones, with one utterance alone in its group."""
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    lines[3]["accent"] = "rare"
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def given(corpus: Path, whisper_folder: Path) -> dict[str, Any]:
    return tiny_mixture.options(corpus, whisper_folder, asr_lr=ALMOST_NO_STEP)


@pytest.fixture(scope="module")
def finished(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages, not interrupted; tests don't change it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    states = [row.state for row in tiny_mixture.run(given, folder)]
    assert states == ["run"] * 5
    return folder


def draw_sample(name: str, corpus: Path) -> np.ndarray:
    with AudioFile(corpus / f"{name}.wav", SAMPLING_RATE, "mix") as file:
        samples: np.ndarray = file.read(0, file.duration)
    return samples


def test_an_embedding_is_the_mean_of_what_the_encoder_makes(finished: Path, corpus: Path, whisper_folder: Path) -> None:
    store = PipelineRowStore(finished / "embeddings" / "rows")
    mapping = read_json(finished / "embeddings" / "mapping.json")
    assert len(store) == 14 == len(mapping), "60 % of 24"
    whisper = loaded_whisper(str(whisper_folder), tiny_listener.SECONDS).eval()
    features = WhisperFeatures(80, tiny_listener.SECONDS)
    for place, name in enumerate(store.keys[:3]):
        made = torch.from_numpy(features(draw_sample(name, corpus)))[None]
        with torch.inference_mode():
            expected = whisper.model.encoder(made).last_hidden_state.mean(1)[0]
        torch.testing.assert_close(torch.from_numpy(store.row(name)), expected, rtol=1e-5, atol=1e-5)
        assert mapping[name]["file"] == "rows/rows-00000.bin"
        assert mapping[name]["row"] == place
    groups = [one["group"] for one in mapping.values()]
    assert set(groups) <= {"low", "high", "rare"}


def test_the_gate_says_how_well_it_knows_the_clusters(finished: Path) -> None:
    about = read_json(finished / "gate" / "gate.json")
    sizes = Clusters.read(finished / "clusters").quality["sizes"]
    assert about["held_out"] == sum(max(1, round(size / 5)) for size in sizes if size > 2)
    assert about["trained_on"] + about["held_out"] == 14
    table = np.array(about["confusion"])
    assert table.sum() == about["held_out"]
    assert table.trace() / table.sum() == pytest.approx(about["accuracy"])
    assert (table + about["confusion_train"]).sum(1).tolist() == sizes
    assert sum(one["count"] for one in about["calibration"]["bins"]) == about["held_out"]


def test_an_expert_gets_its_cluster_and_what_the_gate_gives_it(finished: Path) -> None:
    clusters, gate = Clusters.read(finished / "clusters"), load_gate(finished / "gate")
    about = read_json(finished / "experts" / "experts.json")["experts"]
    seen: dict[str, list[str]] = {"train": [], "valid": []}
    rows = {split: PipelineRowStore(finished / "experts" / "rows" / split) for split in seen}
    for expert in range(2):
        for split, names in seen.items():
            lines = (finished / "experts" / "lists" / f"expert-{expert}-{split}.jsonl").read_text().splitlines()
            own = [json.loads(line)["id"] for line in lines]
            if about[expert]["validated_on"] == "own" or split == "train":
                assert len(own) == about[expert][split]
                names += own
            for name in own if split == "train" or about[expert]["validated_on"] == "own" else ():
                if name in clusters.labels:
                    assert clusters.labels[name] == expert
                else:
                    assert probabilities(gate, rows[split].row(name)[None]).argmax() == expert
    assert sorted(seen["train"]) == sorted(f"train{number}" for number in range(24))
    assert sorted(seen["valid"]) == sorted(f"valid{number}" for number in range(6))
    assert set(rows["train"].keys) == set(seen["train"]) - set(clusters.labels)


def test_the_base_is_on_disk_once_for_all_experts_and_once_for_joint_training(finished: Path) -> None:
    of_experts = [*(finished / "experts").glob("expert-*/checkpoints/step-*/frozen.safetensors")]
    assert len({path.parents[2] for path in of_experts}) == 2
    files = {path.stat().st_ino for path in of_experts}
    joint = [*(finished / "joint").rglob("frozen*.safetensors")]
    assert {path.name for path in joint} == {"frozen.safetensors"}, "its base gives it, so there is no second copy"
    if share_blocks(of_experts[0], finished / "shared"):
        pytest.skip("blocks are shared here, which file sizes don't tell")
    assert (len(files), len({path.stat().st_ino for path in joint})) == (1, 1)
    size, disk = of_experts[0].stat().st_size, read_json(finished / "experts" / "manifest.json")["disk_bytes"]
    unshared = sum(path.stat().st_size for path in (finished / "experts").rglob("*") if path.is_file())
    assert unshared - disk == pytest.approx((len(of_experts) - 1) * size, abs=size / 10)


def test_joint_training_begins_with_the_gate_and_the_adapters(finished: Path) -> None:
    checkpoints = finished / "joint" / "run" / "checkpoints"
    weights = load_file(checkpoints / (checkpoints / "best").read_text().strip() / "model.safetensors")
    layers = 0
    for expert in range(2):
        for name, one in load_file(
            finished / "experts" / "adapters" / str(expert) / "adapter_model.safetensors"
        ).items():
            layer, _, which = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
            found = weights[f"whisper.{layer}.{which.lower()}"][expert]
            torch.testing.assert_close(found, one, rtol=0, atol=1e-6)
            layers += 1
    assert layers == 2 * 2 * 5, "two experts, two matrices, q_proj of one layer of the encoder, four of the decoder"
    for name, one in load_file(finished / "gate" / "gate.safetensors").items():
        torch.testing.assert_close(weights[f"gate.{name}"], one, rtol=0, atol=1e-6)
    about, clusters = read_json(finished / "joint" / "joint.json"), Clusters.read(finished / "clusters")
    store = PipelineRowStore(finished / "embeddings" / "rows")
    chosen = probabilities(load_gate(finished / "gate"), store.matrix()).argmax(1)
    assert about["agreement"] == pytest.approx(np.mean(chosen == [clusters.labels[name] for name in store.keys]))
    assert sum(about["use"]) == pytest.approx(1)
    assert about["dead_experts"] == about["use"].count(0.0)
    assert {"val_wer", "val_wer/high", "val_expert_use/1"} <= about["figures"].keys()


@pytest.mark.parametrize(
    ("base", "name"), [("v2", "openai/whisper-large-v2"), ("v3", "openai/whisper-large-v3"), ("relative", None)]
)
def test_an_adapter_names_its_base_as_peft_finds_it(
    base: str, name: str | None, finished: Path, whisper_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whisper_folder.parent)
    name, base = (name, base) if name else (str(whisper_folder.resolve()), whisper_folder.name)
    opened: Any = open_run(finished / "experts" / "expert-0", device="cpu")
    opened.task.options = opened.task.options.model_copy(update={"base": base})
    opened.task.export_peft(opened.model, tmp_path / "peft")
    assert read_json(tmp_path / "peft" / "adapter_config.json")["base_model_name_or_path"] == name


@pytest.mark.parametrize("pooling", ["flatten", pytest.param("none", marks=pytest.mark.slow)])
def test_states_that_are_not_pooled_give_the_same_means(
    pooling: str, finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    for only in ("embeddings", "clusters", "gate"):
        tiny_mixture.run({**given, "pooling": pooling}, tmp_path / "run", only=only)
    assert "embeddings of 14 utterances will take 0.1 MiB on disk" in (tmp_path / "run/pipeline.log").read_text()
    store, before = PipelineRowStore(tmp_path / "run/embeddings/rows"), PipelineRowStore(finished / "embeddings/rows")
    assert store.shape == ((40, 32) if pooling == "none" else (1280,))
    means = store.matrix().reshape(14, 40, 32).mean(1)
    np.testing.assert_allclose(means, before.matrix(), atol=1e-5)


def test_without_pretraining_gate_and_experts_begin_from_nothing(given: dict[str, Any], tmp_path: Path) -> None:
    options = {**given, "skip_pretraining": True, "num_experts": 3, "top_k": 2, "balancing_bias": 0.001}
    rows = tiny_mixture.run(options, tmp_path)
    assert [(row.stage, row.state) for row in rows] == [("joint", "run")]
    about = read_json(tmp_path / "joint" / "joint.json")
    assert (len(about["use"]), about["agreement"]) == (3, None)
    assert sum(about["use"]) == pytest.approx(2), "each utterance has two"


def test_the_function_of_the_other_pipeline_embeds(corpus: Path, given: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "data"
    for split, folder in {"train": "Train", "valid": "Dev"}.items():
        shutil.copytree(corpus, root / folder, ignore=shutil.ignore_patterns("*.jsonl"))
        shutil.copy(corpus / f"{split}.jsonl", root / folder)
    values = {
        "data_config_override": {"dataset_root": str(root), "split": "Train", "percent": 50, "seed": 1},
        "whisper_model": given["whisper_model"],
        "data": given["data"],
        "output_dir": str(tmp_path / "made"),
        "mapping_path": str(tmp_path / "copies" / "mapping.json"),
        "overwrite": True,
    }
    (tmp_path / "embeddings.json").write_text(json.dumps(values))
    path = extract_embeddings(tmp_path / "embeddings.json")
    assert path == tmp_path / "copies" / "mapping.json"
    assert len(read_json(path)) == 12
    store = tmp_path / "made" / "embeddings" / "rows" / "rows-00000.bin"
    files = {(path.parent / one["file"]).resolve() for one in read_json(path).values()}
    assert files == set(store.parent.glob("rows-*.bin"))
    before = store.stat().st_mtime_ns
    extract_embeddings(tmp_path / "embeddings.json")
    assert store.stat().st_mtime_ns > before, "overwrite: they are recomputed"
    (tmp_path / "embeddings.json").write_text(json.dumps({**values, "overwrite": False}))
    before = store.stat().st_mtime_ns
    extract_embeddings(tmp_path / "embeddings.json")
    assert store.stat().st_mtime_ns == before


MOMENTS = {
    "embeddings": "embeddings/rows/rows-*.bin",
    "clusters": "clusters/begun.json",
    "gate": "gate/run/checkpoints/step-*",
    "experts": "experts/expert-0/checkpoints/step-*",
    "joint": "joint/run/checkpoints/step-*",
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", MOMENTS)
def test_a_killed_stage_resumes_to_the_same_bits(
    stage: str, finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    """Also where the pipeline's folder was moved in between."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in list(MOMENTS)[list(MOMENTS).index(stage) :]:
        shutil.rmtree(folder / name)
    assert tiny_mixture.run_and_kill(given, folder, lambda: any(folder.glob(MOMENTS[stage])))
    assert not (folder / stage / "manifest.json").exists()
    folder = folder.rename(tmp_path / "moved")
    made = {path: path.stat().st_mtime_ns for path in folder.glob("*/rows/rows-*.bin")}
    states = {row.stage: row.state for row in tiny_mixture.run(given, folder)}
    before = list(MOMENTS).index(stage)
    expected = ["up to date"] * before + ["resumed"] + ["run"] * (4 - before)
    assert list(states.values()) == expected
    assert made == {path: path.stat().st_mtime_ns for path in made}, "existing files aren't recomputed"
    assert tiny_mixture.outputs(folder) == tiny_mixture.outputs(finished)


def test_a_damaged_output_is_found_and_recomputed(finished: Path, given: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    gate, rows = folder / "gate" / "gate.safetensors", folder / "embeddings" / "rows" / "rows-00000.bin"
    gate.write_bytes(gate.read_bytes()[:-1] + b"!")
    rows.unlink()
    states = {row.stage: row.state for row in tiny_mixture.run(given, folder)}
    assert states == {
        **dict.fromkeys(("clusters", "experts", "joint"), "up to date"),
        **dict.fromkeys(("embeddings", "gate"), "repaired"),
    }
    assert tiny_mixture.outputs(folder) == tiny_mixture.outputs(finished)


def test_what_was_derived_from_a_run_is_derived_again_without_training(
    finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    lost = ["gate/gate.json", "experts/adapters/1/adapter_config.json", "experts/initial", "joint/joint.json"]
    for path in map(folder.joinpath, lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = [*folder.glob("*/*/checkpoints/step-*/model.safetensors"), *folder.glob("experts/lists/*")]
    written = {path: path.stat().st_mtime_ns for path in kept}
    states = {row.stage: row.state for row in tiny_mixture.run(given, folder)}
    done, again = dict.fromkeys(("embeddings", "clusters"), "up to date"), ("gate", "experts", "joint")
    assert states == done | dict.fromkeys(again, "repaired")
    assert tiny_mixture.outputs(folder) == tiny_mixture.outputs(finished)
    assert written == {path: path.stat().st_mtime_ns for path in kept}
    assert not (folder / "set-aside").exists()


@pytest.mark.parametrize("which", ["best", pytest.param("all", marks=pytest.mark.slow)])
def test_a_damaged_best_checkpoint_is_trained_again_from_the_one_before(
    which: str, finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    checkpoints = folder / "joint" / "run" / "checkpoints"
    best = checkpoints / (checkpoints / "best").read_text().strip()
    for path in [best] if which == "best" else checkpoints.glob("step-*"):
        (path / "model.safetensors").write_bytes(b"no tensors")
    states = {row.stage: row.state for row in tiny_mixture.run(given, folder)}
    assert states == dict.fromkeys(("embeddings", "clusters", "gate", "experts"), "up to date") | {"joint": "repaired"}
    assert tiny_mixture.outputs(folder) == tiny_mixture.outputs(finished)


def test_another_way_of_decoding_leaves_the_embeddings_and_what_follows_from_them(
    finished: Path, given: dict[str, Any]
) -> None:
    other = {**given, "data": {**given["data"], "decoding": {"max_new_tokens": 5}, "cache_dir": "elsewhere"}}
    made: Any = from_options(PIPELINE.options, other, PIPELINE.name)
    rows = [row for row, _ in PipelinePlan(PIPELINE, made, finished, Request(resume=True)).forecast()]
    assert [row.state for row in rows] == ["done"] * 3 + ["starts"] * 2
    assert {row.why for row in rows[3:]} == {"data.decoding.max_new_tokens was 4, is 5 now"}


def test_fewer_utterances_than_experts(finished: Path, given: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    many = {**given, "num_experts": 30}
    tiny_mixture.run(many, tmp_path / "run", only="clusters")
    assert Clusters.read(tmp_path / "run" / "clusters").num_clusters == 7, "half as many as there are utterances"
    with pytest.raises(Exception, match="14 rows can't make 30 clusters: use more data or a lower --num-experts"):
        tiny_mixture.run({**many, "reduce_experts": False}, tmp_path / "run", only="clusters")


def test_noise_ends_in_clusters_or_in_a_line(given: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shutil.copytree(corpus, tmp_path / "noise")
    for path in sorted((tmp_path / "noise").glob("*.wav")):
        soundfile.write(path, 0.1 * rng.standard_normal(4000), tiny_listener.RATE)
    noisy = {**given, "datasets": [tiny_listener.make_dataset_from(tmp_path / "noise")], "algorithm": "hdbscan"}
    for only in ("embeddings", "clusters"):
        tiny_mixture.run(noisy, tmp_path / "run", only=only)
    about = read_json(tmp_path / "run" / "clusters" / "clusters.json")
    assert about["num_clusters"] >= 2
    assert about["quality"]["problems"], "such clusters are called degenerate"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("audio", "gone.wav"),
        ("text", "train.csv:2: the column text is missing, the transcript; there are audio, accent (columns)"),
        ("group", "data.group: no utterance of train has a label 'accent'"),
        ("unreadable", "train5"),
        ("weights", "has no weights; expected model.safetensors and config.json"),
        ("network", "the Hugging Face Hub has no such model or can't be reached"),
        ("disk", "free some space, then add --resume"),
    ],
)
def test_bad_data_is_one_line(
    case: str, message: str, given: dict[str, Any], corpus: Path, vaak: Command, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shutil.copytree(corpus, tmp_path / "data")
    values = {**given, "datasets": [tiny_listener.make_dataset_from(tmp_path / "data")]}
    manifest = tmp_path / "data" / "train.jsonl"
    match case:
        case "audio":
            manifest.write_text(manifest.read_text().replace("train5.wav", "gone.wav"))
        case "text" | "group":
            columns = {"text": "audio,accent\ntrain0.wav,low\n", "group": "audio,text\ntrain0.wav,ba\n"}
            (tmp_path / "data" / "train.csv").write_text(columns[case])
            values["datasets"][0]["train"] = [str(tmp_path / "data" / "train.csv")]
        case "unreadable":
            (tmp_path / "data" / "train5.wav").write_bytes(b"RIFF")
        case "weights":
            (tmp_path / "empty").mkdir()
            values["whisper_model"] = str(tmp_path / "empty")
        case "network":
            values["whisper_model"] = "nobody/whisper-of-no-one"
        case "disk":
            monkeypatch.setattr(rows_of_keys, "write_bytes", full)
    (tmp_path / "options.json").write_text(json.dumps(values))
    arguments = ("pipeline", "moe-asr", "--config", tmp_path / "options.json", "--output-dir", tmp_path / "run")
    code, out, err = vaak(*arguments, "--only", "embeddings")
    assert (code, "Traceback" in out + err) == (2, False), err
    assert message in err.splitlines()[-1], err
    if case == "disk":
        monkeypatch.undo()
        assert vaak(*arguments, "--only", "embeddings")[0] == 0, "it resumes with the prepared data"


@pytest.fixture
def torn(given: dict[str, Any], corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """Options with an utterance of train and one of valid whose audio ends in its middle, and is to be skipped."""
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    for split in ("train", "valid"):
        samples, rate = soundfile.read(data / f"{split}1.wav")
        soundfile.write(data / f"{split}1.flac", samples, rate)
        content = (data / f"{split}1.flac").read_bytes()
        (data / f"{split}1.flac").write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        manifest = data / f"{split}.jsonl"
        manifest.write_text(manifest.read_text().replace(f"{split}1.wav", f"{split}1.flac"))
    skipped = {"data": {**given["data"], "on_bad_example": "skip"}, "embedding_percent": 100.0}
    return {**given, **skipped, "datasets": [tiny_listener.make_dataset_from(data)]}


def left_out(folder: Path, name: str = "left_out.jsonl") -> list[str]:
    return [json.loads(line)["name"] for line in (folder / name).read_text().splitlines()]


def test_what_cannot_be_read_is_skipped_where_the_options_say_so(torn: dict[str, Any], tmp_path: Path) -> None:
    (row,) = tiny_mixture.run(torn, tmp_path / "run", only="embeddings")
    assert row.figures["left out"] == 1
    assert left_out(tmp_path / "run" / "embeddings") == ["train1"]
    assert {"train0", "train2"} < read_json(tmp_path / "run" / "embeddings" / "mapping.json").keys()
    assert "train1" not in PipelineRowStore(tmp_path / "run" / "embeddings" / "rows")
    failing = {**torn, "data": {**torn["data"], "on_bad_example": "fail"}}
    with pytest.raises(Exception, match="train1"):
        tiny_mixture.run(failing, tmp_path / "other", only="embeddings")


def test_what_the_data_lack_is_listed_with_the_embeddings(torn: dict[str, Any], tmp_path: Path) -> None:
    manifest = tmp_path / "data" / "train.jsonl"
    manifest.write_text(manifest.read_text().replace("train5.wav", "gone.wav").replace("train7.wav", "odd.wav"))
    (tmp_path / "data" / "odd.wav").write_bytes(b"RIFF")
    (row,) = tiny_mixture.run(torn, tmp_path / "run", only="embeddings")
    assert row.figures == {"utterances": 21, "left out": 3, "MiB": 0.0}
    assert left_out(tmp_path / "run" / "embeddings") == ["gone.wav", "odd.wav", "train1"]
    assert not {"train5", "train7"} & read_json(tmp_path / "run" / "embeddings" / "mapping.json").keys()


def test_stages_that_train_are_forecast_from_the_embeddings(
    finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(finished / "embeddings", tmp_path / "run" / "embeddings")
    made: Any = from_options(PIPELINE.options, dict(given), PIPELINE.name)
    plan = PipelinePlan(PIPELINE, made, tmp_path / "run", Request(resume=True))
    planned = {row.stage: it for row, it in plan.forecast()}
    took, number = read_json(finished / "embeddings" / "manifest.json"), tiny_listener.NUM_UTTERANCES
    each = took["seconds"] / took["figures"]["utterances"]
    learning = PASSES * each * 2 * (number["train"] + number["valid"])
    assert planned["experts"].seconds == pytest.approx(made.experts * STARTING + learning)
    checkpoints = finished / "joint" / "run" / "checkpoints"
    best = checkpoints / (checkpoints / "best").read_text().strip()
    changes, frozen = ((best / f"{part}.safetensors").stat().st_size for part in ("model", "frozen"))
    assert planned["joint"].disk_bytes == pytest.approx(frozen + KEPT_CHECKPOINTS * changes, rel=0.25)
    assert all(planned[stage].certainty and planned[stage].memory_bytes for stage in ("gate", "experts", "joint"))


def test_stages_are_forecast_before_anything_has_run(finished: Path, given: dict[str, Any], tmp_path: Path) -> None:
    made: Any = from_options(PIPELINE.options, dict(given), PIPELINE.name)
    planned: dict[str, Any] = {
        row.stage: it for row, it in PipelinePlan(PIPELINE, made, tmp_path / "run", Request()).forecast()
    }
    known = {
        row.stage: it
        for row, it in PipelinePlan(PIPELINE, made, finished, Request(resume=True, first="embeddings")).forecast()
    }
    assert planned.keys() == known.keys()
    for stage in planned:
        assert planned[stage].seconds, stage
        assert planned[stage].certainty, stage
    for stage in ("embeddings", "experts", "joint"):
        assert planned[stage].disk_bytes == known[stage].disk_bytes
    number = tiny_listener.NUM_UTTERANCES
    embedded = sample_size(number["train"], made.embedding_percent, None)
    read = (planned["joint"].seconds - STARTING) / planned["embeddings"].seconds
    assert read == pytest.approx(PASSES * 2 * (number["train"] + number["valid"]) / embedded)


@pytest.mark.slow
def test_later_stages_leave_it_out_too(torn: dict[str, Any], tmp_path: Path) -> None:
    assert [row.state for row in tiny_mixture.run(torn, tmp_path / "run")] == ["run"] * 5
    assert left_out(tmp_path / "run" / "experts", "left_out-valid.jsonl") == ["valid1"]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_processes_embed_to_the_same_bits(executor: Any, finished: Path, given: dict[str, Any], tmp_path: Path) -> None:
    if executor == "ray":
        pytest.importorskip("ray")
    tiny_mixture.run(given, tmp_path / "run", only="embeddings", jobs=Jobs(executor, 2))
    found = [sorted((folder / "embeddings" / "rows").glob("rows-*.bin")) for folder in (finished, tmp_path / "run")]
    assert [path.read_bytes() for path in found[0]] == [path.read_bytes() for path in found[1]] != []


def full(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_calibration_is_the_distance_of_confidence_from_accuracy() -> None:
    chances = np.array([[0.95, 0.05], [0.95, 0.05], [0.4, 0.6], [0.55, 0.45]])
    found = measure_calibration(chances, np.array([0, 1, 1, 0]))
    # two rows at 0.95, half right; one each at 0.6 and 0.55, right
    assert found["error"] == pytest.approx((2 * 0.45 + 0.4 + 0.45) / 4)
    assert [one["count"] for one in found["bins"]] == [0, 0, 0, 0, 0, 1, 1, 0, 0, 2]


def test_a_fifth_of_each_cluster_validates_and_none_of_tiny_ones() -> None:
    clusters = np.repeat([0, 1, 2], [20, 2, 3])
    names = [str(number) for number in range(25)]
    held = held_out(names, clusters, 1)
    assert np.bincount(clusters[held], minlength=3).tolist() == [4, 0, 1]
    assert held.tolist() == held_out(names, clusters, 1).tolist() != held_out(names, clusters, 2).tolist()
