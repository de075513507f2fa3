"""Inputs that users got wrong, for every command: each ends with one line that says what is wrong and exit code 2.

A name in braces is one of the files that ``write_files`` makes, or one of the runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

LONG = "x" * 300


@dataclass(frozen=True)
class Bad:
    """A command line, a pattern that its message has, and where it runs (command_server.py)."""

    line: str
    says: str
    circumstances: tuple[str, ...] = ()
    own_place: str = "stderr"
    """``stdout`` for vaak doctor, whose report is the message."""

    @property
    def name(self) -> str:
        return " ".join([*self.circumstances, self.line])


def write_texts(folder: Path) -> None:
    """Texts of every kind that isn't what a command expects; ``folder`` has ``lm.yml`` already."""
    good = (folder / "lm.yml").read_text()
    texts = {
        "empty": "",
        "comment.yml": "# nothing\n",
        "list.yml": "- task: lm\n",
        "tab.yml": "task: lm\nmodel:\n\td_model: 3\n",
        "open_bracket.yml": "task: lm\nmodel: {d_model: 3\n",
        "two.yml": "task: lm\n---\ntask: lm\n",
        "no_task.yml": "name: something\n",
        "other_task.yml": "task: speech\n",
        "unknown_key.yml": good + "modle: {d_model: 3}\n",
        "wrong_type.yml": good.replace("d_model: 32", "d_model: large"),
        "twice.yml": good + "task: lm\n",
        "cycle.yml": "extends: cycle.yml\n",
        "gone_base.yml": "extends: gone.yml\n",
        "no_data.yml": good.replace("train.txt", "gone.txt"),
        "prose.txt": "not a list of segments\n",
        "short.rttm": "SPEAKER a 1 0.0\n",
        "letters.rttm": "SPEAKER a 1 zero one <NA> <NA> Ann <NA> <NA>\n",
        "negative.rttm": "SPEAKER a 1 -3.0 1.0 <NA> <NA> Ann <NA> <NA>\n",
        "nan.rttm": "SPEAKER a 1 nan 1.0 <NA> <NA> Ann <NA> <NA>\n",
        "good.rttm": "SPEAKER a 1 0.0 1.0 <NA> <NA> Ann <NA> <NA>\n",
        "other.rttm": "SPEAKER b 1 0.0 1.0 <NA> <NA> Ann <NA> <NA>\n",
        "good.uem": "a 1 0.0 1.0\n",
        "backwards.uem": "a 1 2.0 1.0\n",
        "not_audio.wav": "not a recording\n",
        "empty.wav": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "latin1.yml").write_bytes("task: lm\nname: café\n".encode("latin-1"))
    (folder / "latin1.txt").write_bytes("café\n".encode("latin-1"))
    (folder / "latin1.rttm").write_bytes("SPEAKER a 1 0 1 <NA> <NA> Zoë <NA> <NA>\n".encode("latin-1"))
    (folder / "utf16.yml").write_text(good, encoding="utf-16")
    (folder / "full").symlink_to("/dev/full")  # so that a command that replaces its output replaces only this
    (folder / "directory").mkdir()
    (folder / "directory.yml").mkdir()


def write_files(folder: Path) -> None:
    """Those texts, recordings, what may not be read, and damaged runs; ``folder`` has ``lm.yml`` and runs already."""
    write_texts(folder)
    good = (folder / "lm.yml").read_text()
    soundfile.write(folder / "good.wav", 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    (folder / "cut.flac").write_bytes(_flac(folder)[:700])
    (folder / "secret").mkdir(mode=0)
    (folder / "secret.yml").write_text(good)
    (folder / "secret.yml").chmod(0)
    (folder / "secret.rttm").write_text((folder / "good.rttm").read_text())
    (folder / "secret.rttm").chmod(0)
    _damaged_runs(folder)


def _flac(folder: Path) -> bytes:
    path = folder / "whole.flac"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    return path.read_bytes()


def _damaged_runs(folder: Path) -> None:
    """Copies of the language model's run, each damaged in its own way."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder / "run_lm", folder / name, symlinks=True))

    best = "checkpoints/step-00000008"
    (copy("no_manifest") / best / "MANIFEST.json").unlink()
    (copy("empty_manifest") / best / "MANIFEST.json").write_text("")
    weights = copy("cut_weights") / best / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (copy("gone_weights") / best / "model.safetensors").unlink()
    (copy("bad_state") / best / "state.json").write_text("{")
    shutil.rmtree(copy("no_checkpoints") / "checkpoints")
    (copy("empty_config") / "config.yml").write_text("")
    (copy("binary_config") / "config.yml").write_bytes(b"\xff\xfe\x00")
    prepared = copy("no_tokenizer") / "prepared"
    for path in prepared.rglob("tokenizer.json"):
        path.unlink()
    for path in (copy("old_tokens") / "prepared").glob("*/store.json"):
        path.write_text(path.read_text().replace("vaak tokens 2", "vaak tokens 1"))
    (folder / "secret_run").mkdir()
    shutil.copytree(folder / "run_lm", folder / "secret_run" / "run", symlinks=True)
    (folder / "secret_run").chmod(0)
    other = copy("other_kind") / best / "MANIFEST.json"
    other.write_text(json.dumps({"files": []}))


CONFIG_COMMANDS = (
    "train",
    "find-batch-size",
    "find-lr",
    "check-gradients",
    "config check",
    "config show",
    "config schema",
    "model show",
    "data simulate out",
    "data check",
    "doctor",
)
BAD_CONFIGURATIONS = {
    "gone.yml": "gone.yml.*(No such file|exist)",
    "directory.yml": "directory.yml.*directory",
    f"{LONG}.yml": "too long",
    "empty": "empty",
    "binary": "UTF-8|YAML",
    "latin1.yml": "latin1.yml:2.*UTF-8",
    "utf16.yml": "UTF-8",
    "tab.yml": "tab.yml:3.*tab",
    "open_bracket.yml": "not valid YAML",
    "two.yml": "a second YAML document",
    "unknown_key.yml": "modle.*unknown",
    "wrong_type.yml": "large.*expected",
    "twice.yml": "given twice",
    "cycle.yml": "cycle",
    "gone_base.yml": "gone.yml does not exist",
    "/dev/zero": "/dev/zero.*not a file",
    "lm.yml model.d_model": "model.d_model=VALUE",
}
RUN_COMMANDS = {
    "eval": "",
    "predict": "text",
    "generate": "text",
    "translate": "text",
    "diarize": "good.wav",
    "tune": "",
    "export": "",
    "classify": "text",
    "speak": "text --output out.wav",
    "transcribe": "good.wav",
    "lm-eval": "--tasks endings.yaml",
}
BAD_RUNS = {
    "gone": "gone.*(not a run|exist)",
    "directory": "not a run",
    "empty": "not a run",
    LONG: "too long",
    "empty_config": "empty",
    "binary_config": "UTF-8",
    "no_checkpoints": "checkpoint",
    "no_manifest": "MANIFEST.json",
    "empty_manifest": "MANIFEST.json|damaged",
    "other_kind": "MANIFEST.json|damaged",
    "cut_weights": "model.safetensors",
    "gone_weights": "model.safetensors",
}
BAD_VALUES = {
    "train lm.yml": {
        "model.d_model=0": "d_model",
        "model.d_model=-4": "d_model",
        "model.d_model=nan": "d_model",
        "model.d_model=33": "num_heads",
        "model.d_model=": "d_model",
        "model.dropout=3.0": "dropout.*below 1",
        "model.dropout=1.5": "dropout.*below 1",
        "model.num_heads=[2]": "num_heads",
        "model.attention_type=sparse": "attention_type",
        "training.batch_size=0": "batch_size",
        "training.batch_size=2.5": "batch_size",
        "training.epochs=ten": "epochs",
        "training.max_steps=-1": "max_steps",
        "training.optimizer.lr=inf": "lr",
        "training.optimizer.lr=-1": "lr",
        "training.optimizer.lr=abc": "lr",
        "training.optimizer.type=adm": "did you mean adam",
        "training.scheduler.type=cos": "scheduler",
        "training.device=gpu": "device",
        "training.device=cuda": "cuda|CUDA",
        "training.mixed_precision=fp8": "mixed_precision",
        "training.random_seed=-1": "random_seed",
        "training.random_seed=1.5": "random_seed",
        "data.max_length=0": "max_length",
        "data.tokenizer.vocab_size=3": "vocab_size",
        "data.tokenizer.vocab_size=huge": "vocab_size",
        "data.corpus.train=gone.txt": "gone.txt",
        "data.corpus.train=[]": "train",
        "data.corpus.train=[empty]": "empty",
        "data.corpus.train=[latin1.txt]": "latin1.txt.*UTF-8",
        "data.corpus.train=[binary]": "binary",
        "data.corpus.train=[/dev/zero]": "/dev/zero",
        f"data.corpus.train=[{LONG}.txt]": "too long|exist",
        "data.tokenizer.path=gone.json": "gone.json",
        f"name={LONG}": "shorten it",
        f"run_dir={LONG}": "too long",
        "run_dir=empty": "empty",
        "run_dir=full": "full",
        "run_dir=/proc/run": "/proc/run",
        "name=": "name",
        "name=a/b": "name",
        "training.checkpoint.resume=gone": "gone",
        "training.checkpoint.init_from=gone": "gone",
        "training.checkpoint.save_dir=empty": "empty",
        "--resume gone": "gone",
        "--try --resume auto": "--try can't be combined with --resume",
        "=3": "key.path=value",
        "a..b=3": "key.path=value",
        "model.d_model": "=",
        "model={": "YAML",
        "extends=x": "extends",
        "task=lm2": "task",
    },
    "generate run_lm text": {
        "--temperature -1": "temperature",
        "--temperature nan": "temperature",
        "--temperature hot": "temperature",
        "--top-k -1": "top.k",
        "--top-p 2": "top.p",
        "--top-p nan": "top.p",
        "--repetition-penalty 0": "repetition",
        "--repetition-penalty nan": "repetition",
        "--max-new-tokens -1": "max.new.tokens",
        "--samples 0": "samples",
        "--seed abc": "seed",
        "--device gpu": "device",
        "--device cuda": "cuda|CUDA",
        "--weights average": "average",
        "--weights best": "weights",
        "--temprature 1": "No such option.*--temperature",
        "more": "more",
    },
    "translate run_seq": {
        "": "text",
        "gone.txt": "gone.txt does not exist",
        "latin1.txt": "latin1.txt:1.*UTF-8",
        "directory/": "directory",
        "text --beam-size 0": "beam.size",
        "text --beam-size 1e9": "beam.size",
        "text --n-best 7": "n.best",
        "text --output gone/out.txt": "gone",
        "text --output directory": "directory",
        "text --output full": "No space",
        "text --attention gone/a.html": "gone",
        f"text --output {LONG}": "too long",
        "text --device gpu": "device",
    },
    "diarize run_dia": {
        "gone.wav": "gone.wav",
        "directory": "directory",
        "not_audio.wav": "not_audio.wav",
        "empty.wav": "empty.wav",
        "cut.flac": "cut.flac",
        "/dev/zero": "/dev/zero",
        f"{LONG}.wav": "too long|exist",
        "good.wav --threshold 2": "threshold",
        "good.wav --threshold nan": "threshold",
        "good.wav --num-speakers 0": "num_speakers",
        "good.wav --num-speakers two": "num.speakers",
        "good.wav --window -1": "window",
        "good.wav --reference gone.rttm": "gone.rttm",
        "good.wav --reference empty": "empty",
        "good.wav --reference binary": "binary",
        "good.wav --reference good.rttm": "none of these recordings",
        "good.wav --uem good.uem": "--reference",
        "good.wav --output empty/out": "empty",
        "good.wav --output full": "full",
        f"good.wav --output {LONG}": "too long",
        "good.wav whole.flac --picture one.png": "picture.*folder",
        "good.wav --picture empty/x": "empty",
    },
    "eval run_lm": {
        "--split gone": "gone",
        "--split ''": "split",
        "--device gpu": "device",
        "--output-dir empty": "empty",
        f"--output-dir {LONG}": "too long",
        "--output-dir /proc/x": "/proc/x",
        "gone.yml": "gone.yml",
        "model.d_model=64": "d_model",
        "model.d_model": "=",
        "data.corpus.valid=[gone.txt]": "gone.txt",
        "data.corpus.valid=[empty]": "empty",
        "task=seq2seq": "task",
    },
    "verify": {"gone": "not a run", "directory": "not a run", f"{LONG}": "too long"},
    "report": {
        "gone": "not a run",
        "directory": "not a run",
        f"{LONG}": "too long",
        "run_lm gone": "gone.*not a run",
        "run_lm --output report.txt": "html",
        "": "--runs-dir",
        "run_lm --watch --output page.html": "--output",
        "run_lm --watch --port 70000": "port",
        "run_lm --output gone/report.html": "gone",
        f"run_lm --output {LONG}.html": "too long",
    },
    "launch slurm": {
        "gone.yml": "gone.yml",
        "lm.yml model.d_mdel=3": "d_mdel",
        "lm.yml --nodes 0": "nodes",
        "lm.yml --sbatch gpu": "isn't an option of sbatch",
        "lm.yml --output gone/job": "gone",
        f"lm.yml --output {LONG}": "too long",
    },
    "launch sky": {
        "gone.yml": "gone.yml",
        "lm.yml": "upload_to",
        "lm.yml training.checkpoint.upload_to=bucket": "upload_to",
        "lm.yml training.checkpoint.upload_to=s3://b/r --mount data": "FOLDER=URL",
        "lm.yml training.checkpoint.upload_to=s3://b/r --secret a-b": "name of a variable",
        "lm.yml training.checkpoint.upload_to=s3://b/r --extras gone": "gone",
        "lm.yml training.checkpoint.upload_to=s3://b/r": "not below the working folder",  # a link that leads out of it
    },
    "launch ray": {"gone.yml": "gone.yml", "lm.yml --processes 1 --min-processes 2": "min-processes"},
    "bisect": {
        "gone run_lm": "not a run",
        "run_lm directory": "not a run",
        "run_lm run_lm": "the same run",
        "run_lm": "RUN_B",
    },
    "fork": {"gone --step 3": "not a run", "directory --step 3": "not a run", f"{LONG} --step 3": "too long"},
    "replay": {"gone --step 3": "not a run", "directory --step 3": "not a run", f"{LONG} --step 3": "too long"},
    "replay run_lm": {
        "": "--step",
        "--step 0": "step",
        "--step 99": "step 99|99",
        "--step x": "step",
        "--step 3 --output-dir empty": "empty",
        "--step 3 --device gpu": "device",
    },
    "eval": {"old_tokens": "vaak tokens 1.*delete .*old_tokens/prepared", "no_tokenizer": "tokenizer.json"},
    "generate": {"no_tokenizer text": "tokenizer.json"},
    "predict": {"no_tokenizer text": "tokenizer.json"},
    "export": {"no_tokenizer": "tokenizer.json"},
    "tune run_dia": {"--split test": "test", "--split gone": "gone", "--device gpu": "device"},
    "tune run_lm": {"": "diarization"},
    "classify run_lm text": {"": "requires a run of task classification"},
    "speak run_lm text --output out.wav": {"": "tts"},
    "transcribe run_lm good.wav": {"": "asr"},
    "align run_lm good.wav prose.txt": {"": "ctc"},
    "align run_lm good.wav gone.txt": {"": "gone.txt"},
    "data segment run_lm good.wav prose.txt --output out.jsonl": {"": "ctc"},
    "lm-eval run_seq --tasks endings.yaml": {"": "requires a run of task lm"},
    "translate run_lm text": {"": "seq2seq"},
    "generate run_seq text": {"": "requires a run of task lm"},
    "diarize run_lm good.wav": {"": "diarization"},
    "export run_lm": {
        "--format mixture": "mixture",
        "--quantization int8": "--format hf has no type 'int8'; leave it out",
        "--format ct2 --quantization int3": "--format ct2 has no type 'int3'; did you mean 'int8'?",
        "--output empty": "empty",
        "--output /proc/x": "/proc/x",
        f"--output {LONG}": "too long",
    },
    "export run_dia": {"": "can't be exported"},
    "publish gone me/name": {"": "gone"},
    "publish directory me/name": {"": "not a run"},
    "publish run_lm": {
        "me/": "can't be the name of a repository",
        "a/b/c": "can't be the name",
        "me/n --format mixture": "mixture",
    },
    "check-gradients lm.yml": {
        "--tolerance -1": "tolerance",
        "--tolerance nan": "tolerance",
        "--tolerance 0": "tolerance",
        "--rows 0": "rows",
        "--rows x": "rows",
    },
    "find-lr lm.yml": {
        "--num-iter 0": "at least 10",
        "--start-lr 0": "start.lr",
        "--start-lr nan": "start.lr",
        "--end-lr 1e-9": "end.lr",
        "--end-lr inf": "end.lr",
        "--output-dir empty": "empty",
        f"--output-dir {LONG}": "too long",
    },
    "find-batch-size lm.yml": {
        "--limit lots": "--limit",
        "--limit -1GiB": "limit",
        "--limit nan": "--limit",
        "--limit 1": "fits in memory",
        "--up-to 0": "up.to",
    },
    "config schema": {"--task gone": "gone", "--task ''": "task"},
    "config show": {"": "no configuration file", "--all l": "--all l"},
    "data simulate": {
        "": "out|OUT",
        "empty": "empty",
        "out --number 0": "number",
        "out --number x": "number",
        "out --split dev": "split",
        "out --dataset gone": "gone",
        "out lm.yml": "no audio",
        "directory_with_files": "directory_with_files",
        "/proc/x": "/proc/x",
        LONG: "too long",
    },
    "data get": {"": "name|NAME", "gone_corpus": "gone_corpus", "yesno x": "key=value"},
    "data prepare": {
        "gone_corpus": "gone_corpus",
        "yesno": "yesno",
        "librispeech --corpus-dir empty": "empty",
        "ami mic=xyz": "mic|ami",
    },
    "runs": {"empty": "not a (folder|directory)", "clean empty": "not a folder", f"{LONG}": "too long"},
    "score der good.rttm": {
        "": "HYP",
        "gone.rttm": "gone.rttm",
        "binary": "binary",
        "prose.txt": "prose.txt:1",
        "short.rttm": "short.rttm:1",
        "letters.rttm": "letters.rttm:1",
        "negative.rttm": "negative.rttm:1",
        "nan.rttm": "nan.rttm:1",
        "latin1.rttm": "latin1.rttm:1.*UTF-8",
        "directory": "directory",
        "other.rttm": "recording",
        "/dev/zero": "/dev/zero",
        f"{LONG}": "too long",
        "good.rttm --uem good.rttm": "good.rttm:1: this is a line of an RTTM",
        "good.rttm --uem backwards.uem": "backwards.uem:1",
        "good.rttm --uem gone.uem": "gone.uem",
        "good.rttm --uem empty": "empty is empty",
        "good.rttm --collar -1": "collar",
        "good.rttm --collar nan": "collar",
        "good.rttm --collar wide": "collar",
        "good.rttm --skip": "No such option",
    },
    "score cpwer good.rttm": {
        "": "HYP",
        "good.rttm": "good.rttm: nobody says anything",
        "prose.txt": "good.rttm: nobody says anything",
    },
    "score der empty": {"good.rttm": "empty is empty", "empty": "empty is empty"},
    "": {"--nope": "No such option", "trian": "train", "''": "command"},
}
COMMANDS = (
    *("train", "runs", "export run_lm", "doctor", "data list", "find-lr lm.yml", "model show lm.yml", "tune run_dia"),
)


def _elsewhere() -> Iterator[Bad]:
    """Yield bad input that depends on the folder in which a command runs."""
    for line in ("train {lm.yml}", "config check lm.yml", "data simulate out", "doctor lm.yml"):
        yield Bad(line, "working folder|current folder|lm.yml|runs", ("deleted folder",))
    for line in (
        "train secret.yml",
        "train lm.yml run_dir=secret/run",
        "train lm.yml",
        "train lm.yml data.corpus.train=[secret.yml]",
        "eval secret_run/run",
        "eval run_lm --output-dir secret/out",
        "predict secret_run/run text",
        "runs secret_run",
        "score der secret.rttm good.rttm",
        "score der good.rttm secret.rttm",
        "score der secret good.rttm",
        "export run_lm --output secret/out",
        "find-lr lm.yml --output-dir secret/x --num-iter 10",
        "data simulate secret/out --number 1",
        "translate run_seq text --output secret/out",
        "diarize run_dia good.wav --output secret/out",
        "diarize run_dia secret",
        "report run_lm --output secret/report.html",
        "config check secret.yml",
        "model show secret.yml",
        "replay run_lm --step 3 --output-dir secret/out",
    ):
        yield Bad(line, "[Pp]ermission|not readable", ("without privileges",))
    printing = ("config show lm.yml", "runs", "eval run_lm", "score der good.rttm good.rttm", "--help")
    for line in printing:
        yield Bad(line, "standard output.*can't be written: No space", ("full stdout",))


def all_cases() -> list[Bad]:
    """Every bad input."""
    found = []
    for command in CONFIG_COMMANDS:
        for files, says in BAD_CONFIGURATIONS.items():
            if (command, files) == ("data check", "directory.yml"):
                says = "directory.yml is empty"  # a folder is looked into
            reports = command == "doctor" and "=" not in says  # without an override there is nothing to report on
            found.append(Bad(f"{command} {files}", says, own_place="stdout" if reports else "stderr"))
    for command, rest in RUN_COMMANDS.items():
        found += [Bad(f"{command} {run} {rest}", says) for run, says in BAD_RUNS.items()]
    for command, values in BAD_VALUES.items():
        found += [Bad(f"{command} {value}", says) for value, says in values.items()]
    found += [Bad(f"{command} --nope", "No such option.*--nope") for command in COMMANDS]
    return [*found, *_elsewhere()]
