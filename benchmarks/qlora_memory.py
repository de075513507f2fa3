"""The memory that a base in four bits takes while a run begins: bytes a parameter, held and at the peak.

    python benchmarks/qlora_memory.py [TASK WIDTH LAYERS]      default lm 2048 20: a made Llama of 1.1 billion

TASK is lm (a Llama, Vaak's own network), asr (a Whisper), classification (a BERT), both transformers' networks, or
seq2seq (a T5, Vaak's own). A model of random numbers is written in bf16, in files of 256 MB, as on the Hub. Then a
separate process reads it as a run with ``base_dtype: nf4`` adapters does, twice: the second time from the cache that
the first wrote. Numbers are the memory that the process gains, sampled every 5 ms; ``with files`` adds the pages of the
files that are being read, which the system reclaims when it needs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY, SHARD_BYTES = 32_000, 256_000_000


def make_config(task: str, width: int, layers: int) -> Any:
    """Return the sizes of a base, as transformers has them."""
    import transformers

    heads, common = width // 64, {"vocab_size": VOCABULARY}
    if task == "asr":
        sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (
            ("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))}  # fmt: skip
        return transformers.WhisperConfig(**common, d_model=width, **sides, pad_token_id=0)
    if task == "seq2seq":
        return transformers.T5Config(
            **common,
            d_model=width,
            d_ff=4 * width,
            num_heads=heads,
            num_layers=layers,
            d_kv=64,
            decoder_start_token_id=0,
        )
    sizes: dict[str, Any] = {**common, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if task == "classification":
        return transformers.BertConfig(**sizes, intermediate_size=4 * width)
    return transformers.LlamaConfig(
        **sizes, intermediate_size=width * 11 // 4, num_key_value_heads=heads, tie_word_embeddings=True
    )


CLASSES = {
    "lm": "AutoModelForCausalLM",
    "asr": "WhisperForConditionalGeneration",
    "classification": "BertModel",
    "seq2seq": "T5ForConditionalGeneration",
}


def write_base(folder: Path, task: str, width: int, layers: int) -> None:
    """Write a made model with a tokenizer of bytes."""
    import transformers
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    config, auto = make_config(task, width, layers), getattr(transformers, CLASSES[task])
    config.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate([*letters, "</s>"])}, []))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)
    with torch.device("meta"):
        model: nn.Module = auto.from_config(config) if task == "lm" else auto(config)
    shard, number, files, seen = dict[str, Any](), 1, dict[str, str](), set[int]()
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if id(tensor) not in seen:
            shard[name] = torch.randn(tensor.shape).mul_(0.02).to(torch.bfloat16)
        seen.add(id(tensor))
        if sum(one.nbytes for one in shard.values()) > SHARD_BYTES or name == [*tensors][-1]:
            file = f"model-{number:05d}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            files |= dict.fromkeys(shard, file)
            shard, number = {}, number + 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def read_status(field: str) -> int:
    """Return a number of bytes in this process's status, such as VmRSS or VmHWM (the most until now)."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def read_base(task: str, source: str, prepared: Path) -> nn.Module:
    """Return the model of a run with the base in four bits."""
    from vaak.nn.config import LoraConfig
    from vaak.nn.lora import add_lora, keep_token_vectors_in_bf16
    from vaak.tasks.quantised import Frozen

    lora = LoraConfig(base_dtype="nf4", targets=("q_proj", "v_proj") if task == "asr" else ("query", "value"))
    frozen = Frozen(prepared, lora)
    if task == "asr":
        from vaak.tasks.asr.config import WhisperLoraConfig
        from vaak.tasks.asr.whisper.model import AsrModel
        from vaak.tasks.asr.whisper.network import loaded_whisper

        return AsrModel(loaded_whisper(source, None, None, frozen), WhisperLoraConfig(base_dtype="nf4"))
    if task == "classification":
        from vaak.tasks.classification.config import ClassifierConfig
        from vaak.tasks.classification.pretrained import Pretrained

        options = ClassifierConfig(pretrained_model=source, lora=lora)
        return add_lora(Pretrained.load(source, VOCABULARY, options, frozen), lora)
    if task == "seq2seq":
        from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig
        from vaak.tasks.seq2seq.pretrained import load_model

        own = Seq2SeqConfig(pretrained=source, lora=lora)
        model = add_lora(load_model(source, prepared, own, Seq2SeqDataConfig(), VOCABULARY), lora)
        keep_token_vectors_in_bf16([model.target_embedding])
        return model
    from vaak.tasks.lm import pretrained as of_lm
    from vaak.tasks.lm.config import LanguageModelConfig
    from vaak.tasks.lm.model import add_adapters

    of_lm.save_base(source, prepared, 512)
    options_lm = LanguageModelConfig(pretrained=source, lora=lora)
    return add_adapters(of_lm.load_model(source, prepared, options_lm, VOCABULARY), lora)


def measure(task: str, source: Path, small: Path, prepared: Path) -> dict[str, float]:
    """Read the base in this process; return its parameters, seconds, and bytes a parameter."""
    from vaak.nn.nf4 import num_weights
    from vaak.tasks.kept_base import save_config
    from vaak.tasks.pretrained import load_config

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        # Packages are imported, and what they keep is there, before memory is read.
        save_config(load_config("base", str(small)), Path(folder))
        read_base(task, str(small), Path(folder))
    save_config(load_config("base", str(source)), prepared)
    before, began = {field: read_status(field) for field in ("RssAnon", "VmRSS")}, time.perf_counter()
    ended, peak = threading.Event(), [before["RssAnon"]]

    def look() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], read_status("RssAnon"))

    thread = threading.Thread(target=look)
    thread.start()
    model = read_base(task, str(source), prepared)
    seconds = time.perf_counter() - began
    ended.set()
    thread.join()
    number = num_weights(model.parameters())
    found = {"held": read_status("RssAnon"), "peak": peak[0], "with_files": read_status("VmHWM")}
    of_process = {"held": "RssAnon", "peak": "RssAnon", "with_files": "VmRSS"}
    each = {name: (value - before[of_process[name]]) / number for name, value in found.items()}
    return {"parameters": number, "seconds": seconds, **each}


def main() -> None:
    """Write a base, and read it twice, each time in a new process."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], *map(Path, sys.argv[3:]))))
        return
    task, width, layers = sys.argv[1:4] or ("lm", "2048", "20")
    with tempfile.TemporaryDirectory() as folder:
        source, small, prepared = (Path(folder) / name for name in ("base", "small", "prepared"))
        for path in (source, small, prepared):
            path.mkdir()
        write_base(source, task, int(width), int(layers))
        write_base(small, task, 64, 1)
        for what in ("quantised", "read as kept"):
            command = [sys.executable, __file__, "--measure", task, str(source), str(small), str(prepared)]
            last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            found = json.loads(last)
            print(
                f"{task}, {what}: {found['parameters'] / 1e6:,.0f} million parameters in {found['seconds']:.1f} s; "
                f"{found['held']:.2f} bytes a parameter held, {found['peak']:.2f} at the peak, "
                f"{found['with_files']:.2f} with files"
            )


if __name__ == "__main__":
    main()
