"""Decoders as the Hub has them, but tiny: weights, configuration and tokenizer in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from vaak.tasks.lm.model import AnyLanguageModel

VOCAB_SIZE = 320
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GLM4_MOE = {
    "intermediate_size": 48,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "partial_rotary_factor": 1.0,
    "num_mtp_layers": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SIZES, "intermediate_size": 48}),
    "llama, llama3": ("Llama", {**SIZES, "intermediate_size": 48, "head_dim": 16, "rope_parameters": LLAMA3}),
    "llama, yarn": (
        "Llama",
        {
            **SIZES,
            "intermediate_size": 48,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
            "max_position_embeddings": 128,
        },
    ),
    "qwen3": ("Qwen3", {**SIZES, "intermediate_size": 48, "head_dim": 16}),
    "qwen2": ("Qwen2", {**SIZES, "intermediate_size": 48}),
    "mistral": ("Mistral", {**SIZES, "intermediate_size": 48, "sliding_window": None}),
    "qwen3_moe": ("Qwen3Moe", {**SIZES, **EXPERTS, "intermediate_size": 48, "head_dim": 8}),
    "glm4_moe": ("Glm4Moe", {**SIZES, **GLM4_MOE}),
    "gpt2": ("GPT2", GPT2),
    "gpt2, erf": ("GPT2", {**GPT2, "n_inner": 48, "activation_function": "gelu"}),
}
"""Those that become ours."""
_MORE = {**SIZES, "intermediate_size": 48, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_GEMMA = {**_MORE, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
_MHA = {name: value for name, value in _MORE.items() if name != "num_key_value_heads"}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases": ("Llama", {**_MORE, "attention_bias": True}),
    "mistral, sliding window": ("Mistral", {**_MORE, "sliding_window": 4}),
    "gemma": ("Gemma", {**_MORE, "head_dim": 8}),
    "gemma2": ("Gemma2", _GEMMA),
    "gemma3_text": ("Gemma3Text", _GEMMA),
    "olmo": ("Olmo", _MORE),
    "olmo2": ("Olmo2", _MORE),
    "phi3": ("Phi3", _MORE),
    "gpt_neox": ("GPTNeoX", _MHA),
    "qwen3_moe, dense layers": ("Qwen3Moe", {**_MORE, **EXPERTS, "head_dim": 8, "mlp_only_layers": [0]}),
    "glm4_moe, half rotary": ("Glm4Moe", {**_MORE, **GLM4_MOE, "partial_rotary_factor": 0.5}),
    "mixtral": ("Mixtral", {**_MORE, "num_local_experts": 4}),
    "smollm3": ("SmolLM3", _MORE),
    "stablelm": ("StableLm", _MORE),
    "granite": ("Granite", {**_MORE, "logits_scaling": 4.0}),
    "cohere": ("Cohere", _MORE),
    "opt": ("OPT", {**_MHA, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
}
"""Those that stay transformers' own modules."""


def write_folder(folder: Path, kind: str, seed: int = 0, **others: Any) -> Any:
    """A tiny model of transformers with a tokenizer that has a single special token."""
    name, sizes = (MODELS | OTHERS)[kind]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": VOCAB_SIZE, **sizes, **others})
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    with torch.no_grad():  # biases and gains that matter
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for buffer in (one for key, one in model.named_buffers() if key.endswith("e_score_correction_bias")):
            buffer += 0.1 * torch.randn_like(buffer)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer(eos="<|endoftext|>", bos="<|endoftext|>")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    return model


def begin_texts(folder: Path, token: str) -> None:
    """Have the tokenizer in a folder put a special token before every text, as those of Llama and Gemma do."""
    path = str(folder / "tokenizer.json")
    backend = Backend.from_file(path)
    special = [(token, backend.token_to_id(token))]
    backend.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=special)
    backend.save(path)


def byte_tokenizer(**roles: str) -> Any:
    """A tokenizer of transformers with a token for each byte, after those of its ``roles``."""
    special = list(dict.fromkeys(roles.values()))
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = 256 + len(special)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["राम घर जाता है।"], trainer)
    names = {f"{role}_token": token for role, token in roles.items()}
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, **names)


def assert_joined_rows_are_right(model: AnyLanguageModel) -> None:
    """Rows join and leave, and each keeps the scores of its context alone."""
    # Here: contracts of other tasks, which this module makes bases for, hold without this one.
    from vaak.tasks.lm.predict import WITHOUT_END, RowDecoder

    reader = RowDecoder(model, [[1, 2, 3]], WITHOUT_END)
    joining = {2: [[4, 5, 6, 7, 8, 9, 10], [7]], 5: [[8]], 9: [[1] * 4, [2] * 3]}
    with torch.inference_mode():
        for step in range(14):
            if step in joining:
                assert reader.can_join
                reader.join(joining[step])
            if step in (4, 8, 11):
                reader.select(range(1, len(reader.contexts)))
            logits = reader.next_logits()
            for row, context in enumerate(reader.contexts):
                alone = RowDecoder(model, [context], WITHOUT_END).next_logits()[0]
                torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-5)
            reader.append([(step + row) % 20 for row in range(len(reader.contexts))])
