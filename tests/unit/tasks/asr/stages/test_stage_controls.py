"""Controls of ``moe-asr``: as many parameters, the same utterances, right rates and differences, and one verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_listener
import tiny_mixture
from vaak.config.base import from_options
from vaak.core.errors import DataError
from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.run import PipelinePlan, Request
from vaak.runs.open_run import open_run
from vaak.scoring.word_errors import score_texts
from vaak.tasks.asr.config import ExpertsConfig
from vaak.tasks.asr.stages.clusters import Clusters
from vaak.tasks.asr.stages.comparison import RateDifference, compare_systems, judge, markdown
from vaak.tasks.asr.stages.controls import count_parameters
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.pipeline import PIPELINE
from vaak.tasks.asr.stages.runs import make_task
from vaak.tasks.asr.whisper.model import AsrModel

Command = Callable[..., tuple[int, str, str]]
OF_MIXTURE = ["embeddings", "clusters", "gate", "experts", "joint"]
OF_RANDOM = ["random_clusters", "random_gate", "random_experts", "random_joint"]
TEXTS = ["base_texts", "one_lora_texts", "random_texts", "mixture_texts"]


@pytest.fixture(scope="module")
def given(corpus: Path, whisper_folder: Path) -> dict[str, Any]:
    data = {"group": "accent", "max_duration": tiny_listener.SECONDS}
    return tiny_mixture.options(
        corpus,
        whisper_folder,
        controls=True,
        bootstraps=0,
        gating_epochs=1,
        expert_epochs=1,
        asr_epochs=1,
        data={**data, "decoding": {"max_new_tokens": 4, "batch_size": 2}},
    )


@pytest.fixture(scope="module")
def finished(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline, then with its controls; tests don't change it."""
    folder = tmp_path_factory.mktemp("controls") / "run"
    assert [row.stage for row in tiny_mixture.run({**given, "controls": False}, folder)] == OF_MIXTURE
    rows = tiny_mixture.run(given, folder)
    controls = ["parameters", "one_lora", *OF_RANDOM, *TEXTS, "comparison"]
    expected = {**dict.fromkeys(OF_MIXTURE, "up to date"), **dict.fromkeys(controls, "run")}
    assert {row.stage: row.state for row in rows} == expected
    return folder


def trained(run: Path) -> int:
    """The parameters that a run trains."""
    return sum(one.numel() for one in open_run(run, device="cpu").model.parameters() if one.requires_grad)


@pytest.mark.slow
def test_one_lora_has_as_many_parameters_as_gate_and_experts(finished: Path) -> None:
    about = read_json(finished / "parameters" / "parameters.json")
    mixture, one = trained(finished / "joint" / "run"), trained(finished / "one_lora" / "run")
    assert (about["mixture"], about["one_lora"]) == (mixture, one)
    assert about["experts"] + about["gate"] == mixture == trained(finished / "random_joint" / "run")
    assert mixture <= one < mixture + one // about["rank"], "one rank less would be fewer"
    systems = read_json(finished / "comparison" / "comparison.json")["systems"]
    assert [system["parameters"] for system in systems.values()] == [0, one, mixture, mixture]


@pytest.mark.parametrize(("rank", "num_experts", "hidden"), [(1, 2, 4), (3, 5, 16)])
def test_sizes_are_those_of_the_model(
    rank: int, num_experts: int, hidden: int, whisper_folder: Path, tmp_path: Path
) -> None:
    from vaak.tasks.asr.config import WhisperLoraConfig
    from vaak.tasks.asr.whisper.network import loaded_whisper

    experts = ExpertsConfig(num_experts=num_experts, rank=rank, gate_width=hidden, targets=("q_proj", "fc1"))
    model = {"base": str(whisper_folder), "experts": experts.model_dump(mode="json")}
    found = count_parameters(make_task({"task": "asr", "model": model}, tmp_path))
    lora = WhisperLoraConfig(rank=found["rank"], targets=experts.targets)

    def number(*added: Any) -> int:
        model = AsrModel(loaded_whisper(str(whisper_folder), tiny_listener.SECONDS), *added)
        return sum(one.numel() for one in model.parameters() if one.requires_grad)

    assert (found["mixture"], found["one_lora"]) == (number(None, experts), number(lora))


@pytest.mark.slow
def test_one_lora_is_trained_as_long_on_the_same_utterances(finished: Path) -> None:
    def prepared(run: Path) -> list[str]:
        utterances = open_run(run, device="cpu").task.prepared.utterances("train")
        return sorted(utterances.cuts[int(place)].id for place in utterances.used)

    lists = [*(finished / "experts" / "lists").glob("expert-*-train.jsonl")]
    of_experts = sorted(json.loads(line)["id"] for path in lists for line in path.read_text().splitlines())
    assert prepared(finished / "one_lora" / "pretraining") == of_experts
    assert prepared(finished / "one_lora" / "run") == prepared(finished / "joint" / "run")
    about, joint = read_json(finished / "one_lora" / "one_lora.json"), read_json(finished / "joint" / "joint.json")
    assert about["steps"] == joint["steps"]
    experts = read_json(finished / "experts" / "experts.json")["experts"]
    systems = read_json(finished / "comparison" / "comparison.json")["systems"]
    assert systems["mixture"]["steps"] == joint["steps"] + sum(one["steps"] for one in experts)
    assert systems["one_lora"]["steps"] == about["steps"] + about["pretraining_steps"]


@pytest.mark.slow
def test_the_second_training_of_one_lora_begins_with_the_first(given: dict[str, Any], tmp_path: Path) -> None:
    """At almost no rate it stays what it was."""
    tiny_mixture.run({**given, "asr_lr": 1e-9}, tmp_path / "run", only="embeddings")
    for stage in ("clusters", "parameters", "one_lora"):
        tiny_mixture.run({**given, "asr_lr": 1e-9}, tmp_path / "run", only=stage)
    first, second = (
        open_run(tmp_path / "run" / "one_lora" / name, device="cpu").model.state_dict()
        for name in ("pretraining", "run")
    )
    assert first.keys() == second.keys()
    moved = {name for name in first if name.endswith("lora_B.default.weight") and first[name].abs().max() > 1e-3}
    assert moved, "the first has learned something"
    assert max(float((first[name] - second[name]).abs().max()) for name in first) < 1e-6


@pytest.mark.slow
def test_random_clusters_are_as_many_of_equal_size_and_have_a_mixture_of_their_own(finished: Path) -> None:
    own, random = (Clusters.read(finished / name) for name in ("clusters", "random_clusters"))
    sizes = random.quality["sizes"]
    assert (random.num_clusters, max(sizes) - min(sizes) <= 1) == (own.num_clusters, True)
    assert random.labels.keys() == own.labels.keys()
    names = {path.name: path.stem for path in (finished / "random_experts" / "lists").glob("*-train.jsonl")}
    for expert, name in enumerate(sorted(names)):
        lines = (finished / "random_experts" / "lists" / name).read_text().splitlines()
        assert {random.labels.get(json.loads(line)["id"], expert) for line in lines} == {expert}


@pytest.mark.slow
def test_transcripts_are_what_each_system_recognises_in_test(finished: Path, corpus: Path) -> None:
    entries = [json.loads(line) for line in (corpus / "test.jsonl").read_text().splitlines()]
    places = {"mixture_texts": "joint", "one_lora_texts": "one_lora", "random_texts": "random_joint"}
    for stage, system in places.items():
        lines = [json.loads(line) for line in (finished / stage / "transcripts.jsonl").read_text().splitlines()]
        assert [(one["reference"], one["speaker"], one["group"]) for one in lines] == [
            (one["text"], one["speaker"], one["accent"]) for one in entries
        ]
        opened = open_run(finished / system / "run", device="cpu")
        files = [corpus / one["audio"] for one in entries]
        assert [one["text"] for one in lines] == [one.text for one in opened.task.predict(opened.model, files)]


@pytest.mark.slow
def test_a_cut_stage_of_transcripts_resumes_after_whole_batches(
    finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    stage = tmp_path / "run" / "mixture_texts"
    lines = (stage / "transcripts.jsonl").read_text().splitlines(keepends=True)
    (stage / "manifest.json").unlink()
    (stage / "transcripts.jsonl").unlink()
    kept = [line.replace('"text": "', '"text": "kept ') for line in lines[:3]]  # a batch of two, and one of the next
    (stage / "part.jsonl").write_text("".join(kept) + lines[3][:10])
    states = {row.stage: row.state for row in tiny_mixture.run(given, tmp_path / "run")}
    assert (states.pop("mixture_texts"), states.pop("comparison"), set(states.values())) == (
        "resumed", "run", {"up to date"},
    )  # fmt: skip
    assert (stage / "transcripts.jsonl").read_text().splitlines(keepends=True) == [*kept[:2], *lines[2:]]
    assert not (stage / "part.jsonl").exists()


def digests(folder: Path) -> dict[str, str]:
    """Return the hashes of each stage's outputs, as later stages compare them."""
    stages = [stage for stage in PIPELINE.stages if (folder / stage.name).exists()]
    return {stage.name: stage.digest(read_json(folder / stage.name / "manifest.json")["outputs"]) for stage in stages}


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    ["one_lora/pretraining/checkpoints/step-*", "one_lora/run/checkpoints/step-*", "random_joint/run/metrics*"],
)
def test_a_killed_control_resumes_to_the_same_bits(
    moment: str, finished: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    stage = moment.partition("/")[0]
    names = [one.name for one in PIPELINE.stages]
    for name in names[names.index(stage) :]:
        shutil.rmtree(folder / name)
    assert tiny_mixture.run_and_kill(given, folder, lambda: any(folder.glob(moment)))
    assert not (folder / stage / "manifest.json").exists()
    folder = folder.rename(tmp_path / "moved")
    states = {row.stage: row.state for row in tiny_mixture.run(given, folder)}
    assert (states[stage], states["comparison"]) == ("resumed", "run")
    assert digests(folder) == digests(finished)


@pytest.mark.slow
def test_the_table_is_in_the_log_in_json_and_in_the_folder(
    finished: Path, given: dict[str, Any], vaak: Command, tmp_path: Path
) -> None:
    found = read_json(finished / "comparison" / "comparison.json")
    (tmp_path / "options.json").write_text(json.dumps(given))
    arguments = ("--config", tmp_path / "options.json", "--output-dir", finished, "--resume")
    code, out, err = vaak("pipeline", "moe-asr", *arguments, "--json")
    assert (code, {row["state"] for row in json.loads(out)["stages"]}) == (0, {"up to date"}), err
    assert json.loads(out)["stages"][-1]["report"] == found
    assert found["sentence"] in (finished / "comparison" / "comparison.md").read_text()
    for place in (finished / "results.md", finished / "pipeline.log"):
        assert all(line in place.read_text() for line in found["lines"]), place


def test_controls_are_on_in_full_and_off_in_quick_and_random_clusters_have_none() -> None:
    def stages(**given: Any) -> set[str]:
        made = from_options(PIPELINE.options, {"whisper_model": "v2", **given}, PIPELINE.name)
        return {stage.name for stage in PIPELINE.asked_for(made)}

    of_lora = {"parameters", "one_lora", "base_texts", "one_lora_texts", "mixture_texts", "comparison"}
    everything = {*OF_MIXTURE, *of_lora, *OF_RANDOM, "random_texts"}
    assert stages(mode="full") == stages(mode="quick", controls=True) == everything
    assert stages(mode="quick") == stages(mode="full", controls=False) == set(OF_MIXTURE)
    assert stages(algorithm="random") == {*OF_MIXTURE, *of_lora}
    assert stages(skip_pretraining=True, num_experts=2) == {"joint", *of_lora}


@pytest.mark.slow
def test_controls_are_forecast(given: dict[str, Any], finished: Path, tmp_path: Path) -> None:
    made: Any = from_options(PIPELINE.options, dict(given), PIPELINE.name)
    for folder in (tmp_path / "run", finished):
        plan = PipelinePlan(
            PIPELINE, made, folder, Request(resume=True, first="embeddings" if folder == finished else None)
        )
        planned: dict[str, Any] = {row.stage: it for row, it in plan.forecast()}
        assert all(it.seconds and it.certainty for it in planned.values())
        both = planned["experts"].seconds + planned["joint"].seconds
        assert planned["random_experts"] == planned["experts"]
        assert planned["one_lora"].seconds == pytest.approx(both, abs=5.1), "but for starting one run less"


SAID = ["so it is", "not so", "it is not", "never", "is it so"]


def write_transcripts(folder: Path, wrong: Callable[[str, int], bool], **changes: Any) -> Path:
    """Transcripts of 12 speakers with 5 utterances each; an utterance is entirely wrong where ``wrong`` says so."""
    folder.mkdir()
    lines = []
    for speaker in range(12):
        for place, text in enumerate(SAID):
            name = f"s{speaker:02}"
            line = {"id": f"{name}-{place}", "reference": text, "group": "odd" if speaker % 2 else "even"}
            heard = " ".join("x" for _ in text.split()) if wrong(name, place) else text
            lines.append({**line, "speaker": name, **changes, "text": heard})
    (folder / "transcripts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = {"split": "test", "normaliser": "basic", "decoding": "greedy", "parameters": 5, "steps": 7}
    write_json(folder / "transcripts.json", about)
    return folder


def below(limit: int) -> Callable[[str, int], bool]:
    """Wrong are the first ``limit`` utterances of each speaker."""
    return lambda _, place: place < limit


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {
        "base": write_transcripts(tmp_path / "base", lambda speaker, place: True),
        "one_lora": write_transcripts(tmp_path / "one_lora", lambda speaker, place: speaker < "s05" and place < 4),
        "mixture": write_transcripts(tmp_path / "mixture", lambda speaker, place: speaker < "s03" or place == 2),
    }


def transcripts_of(folder: Path) -> tuple[list[dict[str, str]], dict[str, str]]:
    lines = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    return lines, {line["id"]: line["text"] for line in lines}


def test_rates_are_those_of_score_texts_and_differences_of_whole_speakers(folders: Mapping[str, Path]) -> None:
    found = compare_systems(folders)
    assert (found["intervals_over"], found["numbers"]["total"]) == ("speakers", 12)
    errors: dict[str, np.ndarray] = {}
    for name, folder in folders.items():
        lines, texts = transcripts_of(folder)
        references, groups, speakers = (
            {line["id"]: line[key] for line in lines} for key in ("reference", "group", "speaker")
        )
        scores = score_texts(references, texts, groups, speakers=speakers).to_json()
        assert {key: found["systems"][name][key] for key in ("total", "groups")} == {
            key: scores[key] for key in ("total", "groups")
        }
        table = np.zeros((12, 2))
        for line in lines:
            number = len(line["reference"].split())
            table[int(line["speaker"][1:])] += (number * (line["text"] != line["reference"]), number)
        errors[name] = table
    drawn = np.random.default_rng(7).integers(12, size=(20_000, 12))
    rates = {name: table[drawn].sum(1) for name, table in errors.items()}
    for control in ("base", "one_lora"):
        about = found["differences"][control]["total"]
        wer = {name: table.sum(0) for name, table in errors.items()}
        expected = 100 * (wer["mixture"][0] / wer["mixture"][1] - wer[control][0] / wer[control][1])
        assert about["points"] == pytest.approx(expected)
        samples = 100 * (rates["mixture"][:, 0] / rates["mixture"][:, 1] - rates[control][:, 0] / rates[control][:, 1])
        assert about["interval"] == pytest.approx(tuple(np.quantile(samples, (0.025, 0.975))), abs=1.5)
    odd = {name: table[1::2].sum(0) for name, table in errors.items()}
    points = 100 * (odd["mixture"][0] / odd["mixture"][1] - odd["base"][0] / odd["base"][1])
    assert found["differences"]["base"]["groups"]["odd"]["points"] == pytest.approx(points)
    shown = "\n".join(found["lines"])
    for system in found["systems"].values():
        assert f"{100 * system['total']['wer']:.2f} [" in shown
    assert "over 12 speakers" in found["lines"][0]
    assert f"{found['differences']['base']['total']['points']:+.2f}" in markdown(found)


def test_without_speakers_intervals_are_over_utterances_and_say_so(tmp_path: Path) -> None:
    folders = {
        name: write_transcripts(tmp_path / name, below(limit), speaker=None)
        for name, limit in {"base": 4, "mixture": 3}.items()
    }
    found = compare_systems(folders)
    assert (found["intervals_over"], found["numbers"]["total"]) == ("utterances", 60)
    assert "the data name no speakers" in found["lines"][1]
    assert "over 60 utterances" in found["sentence"]
    lines, texts = transcripts_of(folders["mixture"])
    scores = score_texts({line["id"]: line["reference"] for line in lines}, texts)
    assert tuple(found["systems"]["mixture"]["total"]["wer_interval"]) == scores.total.wer_interval


def test_one_speaker_has_no_interval_and_decides_nothing(tmp_path: Path) -> None:
    found = compare_systems(
        {
            name: write_transcripts(tmp_path / name, below(limit), speaker="Ann")
            for name, limit in {"base": 5, "mixture": 0}.items()
        }
    )
    assert found["differences"]["base"]["total"] == {"points": -100.0, "interval": None}
    assert found["verdict"] == "can't be told apart"
    assert "1 speaker " in "\n".join(found["lines"])


def test_other_utterances_are_not_compared(folders: Mapping[str, Path]) -> None:
    lines = (folders["base"] / "transcripts.jsonl").read_text().splitlines(keepends=True)
    (folders["base"] / "transcripts.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match="have other utterances"):
        compare_systems(folders)


BETTER, WORSE, SAME = (
    RateDifference(-3.0, (-5.0, -1.0)),
    RateDifference(2.0, (0.5, 3.5)),
    RateDifference(-1.0, (-2.5, 0.25)),
)
MEASURE = "in points of WER with 95 % intervals over"


@pytest.mark.parametrize(
    ("differences", "number", "verdict", "sentence"),
    [
        (
            {"base": BETTER, "one_lora": BETTER, "random": BETTER},
            40,
            "help",
            "The experts help: the mixture is better than the base (-3.00 [-5.00, -1.00]), one LoRA (-3.00 [-5.00, "
            f"-1.00]) and random clusters (-3.00 [-5.00, -1.00]), {MEASURE} 40 speakers.",
        ),
        (
            {"base": BETTER, "one_lora": WORSE, "random": SAME},
            40,
            "don't help",
            "The experts don't help: the mixture is worse than one LoRA (+2.00 [+0.50, +3.50]), "
            f"{MEASURE} 40 speakers.",
        ),
        (
            {"base": BETTER, "one_lora": SAME, "random": BETTER},
            40,
            "can't be told apart",
            f"The mixture can't be told apart from one LoRA (-1.00 [-2.50, +0.25]), {MEASURE} 40 speakers.",
        ),
        (
            {"base": BETTER},
            5,
            "can't be told apart",
            "The mixture can't be told apart from the base (-3.00 [-5.00, -1.00]): "
            f"{MEASURE} 5 speakers, of which at least 6 are needed to judge others.",
        ),
    ],
)
def test_the_sentence_follows_from_the_intervals(
    differences: dict[str, RateDifference], number: int, verdict: str, sentence: str
) -> None:
    assert judge(differences, number, "speakers") == (verdict, sentence)


def test_controls_by_default_follow_the_mode() -> None:
    assert [MoeOptions(mode=mode).has_controls for mode in ("full", "quick")] == [True, False]
