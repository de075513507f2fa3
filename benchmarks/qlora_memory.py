"""The memory that a base in four bits takes while a run begins: bytes a parameter, held and at the peak.

    python benchmarks/qlora_memory.py [WIDTH LAYERS]      default 2048 20: a made Llama of 1.1 billion parameters

A Llama of random numbers is written in bf16, in files of 256 MB, as on the Hub. Then a process of its own reads it as
``model.pretrained`` with ``model.lora.base_dtype: nf4``, twice: the second time from what the first kept. Numbers are
resident memory beyond what the process had before, with the pages of files that it reads at the moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCABULARY, SHARD_BYTES = 32_000, 256_000_000


def write_base(folder: Path, width: int, layers: int) -> None:
    """Write a made Llama with a tokenizer of bytes."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    inner = width * 11 // 4
    config: Any = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, tie_word_embeddings=True,
    )  # fmt: skip
    config.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate([*letters, "</s>"])}, []))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)
    square, wide = (width, width), (inner, width)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        own = f"model.layers.{layer}."
        shapes |= {f"{own}self_attn.{part}_proj.weight": square for part in "qkvo"}
        shapes |= {f"{own}mlp.{part}_proj.weight": wide for part in ("gate", "up")}
        shapes |= {f"{own}mlp.down_proj.weight": (width, inner)}
        shapes |= {f"{own}{norm}.weight": (width,) for norm in ("input_layernorm", "post_attention_layernorm")}
    shard, number, files = dict[str, Any](), 1, dict[str, str]()
    for name, shape in shapes.items():
        shard[name] = torch.randn(shape).mul_(0.02).to(torch.bfloat16)
        if sum(one.nbytes for one in shard.values()) > SHARD_BYTES or name == [*shapes][-1]:
            file = f"model-{number:05d}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            files |= dict.fromkeys(shard, file)
            shard, number = {}, number + 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def read_status(field: str) -> int:
    """Return a number of bytes in this process's status, such as VmRSS or VmHWM (the most until now)."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def measure(source: Path, prepared: Path) -> dict[str, float]:
    """Read the base in this process; return its parameters, seconds, and bytes a parameter."""
    import torch

    from vaak.nn.config import LoraConfig
    from vaak.nn.nf4 import num_weights
    from vaak.tasks.lm.config import LanguageModelConfig
    from vaak.tasks.lm.model import LanguageModel, add_adapters
    from vaak.tasks.lm.pretrained import load_model, save_base

    torch.set_num_threads(1)
    lora = LoraConfig(base_dtype="nf4")
    own = LanguageModelConfig(pretrained=str(source), lora=lora)
    save_base(str(source), prepared, 512)
    torch.manual_seed(0)
    add_adapters(LanguageModel(LanguageModelConfig(d_model=64, num_layers=1), 8), lora)  # packages are imported
    before, began = read_status("VmRSS"), time.perf_counter()
    model = add_adapters(load_model(str(source), prepared, own, VOCABULARY), lora)
    seconds = time.perf_counter() - began
    number = num_weights(model.parameters())
    held, most = read_status("VmRSS") - before, read_status("VmHWM") - before
    return {"parameters": number, "seconds": seconds, "held": held / number, "peak": most / number}


def main() -> None:
    """Write a base, and read it twice, each time in a new process."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), Path(sys.argv[3]))))
        return
    width, layers = map(int, sys.argv[1:3] or ("2048", "20"))
    with tempfile.TemporaryDirectory() as folder:
        source, prepared = Path(folder) / "base", Path(folder) / "prepared"
        source.mkdir()
        prepared.mkdir()
        write_base(source, width, layers)
        for what in ("quantised", "read as kept"):
            command = [sys.executable, __file__, "--measure", str(source), str(prepared)]
            last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            found = json.loads(last)
            print(
                f"{what}: {found['parameters'] / 1e6:,.0f} million parameters in {found['seconds']:.1f} s; "
                f"{found['held']:.2f} bytes a parameter held, {found['peak']:.2f} at the peak"
            )


if __name__ == "__main__":
    main()
