"""Loads an exported mixture of experts (vaak export --format mixture) with transformers and safetensors alone."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCTC, WhisperForConditionalGeneration


def _load_base(source: str, about: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any]:
    options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True}
    if "blank" in about:  # an encoder with an output layer, which was trained
        head = {name: tensors[f"lm_head.{name}"] for name in ("weight", "bias")}
        options |= {"vocab_size": len(head["bias"]), "ignore_mismatched_sizes": True}
        model: Any = AutoModelForCTC.from_pretrained(source, **options)
        model.lm_head.load_state_dict(head)
        return model, model.base_model
    model = WhisperForConditionalGeneration.from_pretrained(source, **options)
    if "new_tokens" in about:  # the base has no rows for them; they were trained
        first, stop = about["new_tokens"]
        model.resize_token_embeddings(stop, mean_resizing=False)
        for name in (one for one in tensors if one.endswith(".new_rows")):
            model.get_submodule(name.removesuffix(".new_rows")).weight.data[first:stop] = tensors[name]
    encoder, table = model.model.encoder, model.model.encoder.embed_positions
    table.weight = torch.nn.Parameter(table.weight[: about["positions"]].detach().clone())
    table.num_embeddings = model.config.max_source_positions = encoder.max_source_positions = about["positions"]
    return model, encoder


def _weigh_experts(pooled: Tensor, tensors: dict[str, Tensor], about: dict[str, Any]) -> Tensor:
    """Return the weights of the experts ``(row, expert)`` that the gate computes from mean states ``(row, width)``."""
    weight, bias = ([tensors[f"gate.layers.{layer}.{name}"] for layer in (0, 1, 3)] for name in ("weight", "bias"))
    x = F.layer_norm(pooled, pooled.shape[-1:], weight[0], bias[0])
    x = torch.softmax(F.linear(F.gelu(F.linear(x, weight[1], bias[1])), weight[2], bias[2]), -1)
    # A bias that balances the experts chooses among them, but has no part in their weights.
    best = (x + tensors.get("gate.bias", 0)).argsort(dim=-1, descending=True, stable=True)[:, : about["top_k"]]
    weights: Tensor = torch.zeros_like(x).scatter(1, best, x.gather(1, best))
    return weights / weights.sum(-1, keepdim=True) if about["top_k"] > 1 else weights


def load_mixture(folder: str, base: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return a transformers model that chooses experts for each row it encodes, and the content of ``mixture.json``.

    ``base`` is the folder or Hub name of the base model, if it isn't the one that ``mixture.json`` names.
    """
    about = json.loads(Path(folder, "mixture.json").read_text())
    tensors, chosen = load_file(Path(folder, "mixture.safetensors")), list[Tensor]()
    model, encoder = _load_base(base or about["base"], about, tensors)

    # y = W x + scale · the sum over experts of weight · B A x
    def change(first: Tensor, second: Tensor) -> Any:
        def add(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not chosen:
                return output
            # With beams, a row of the encoder is several rows of the decoder.
            rows = chosen[0].repeat_interleave(len(output) // len(chosen[0]), 0)
            scale: float = about["scale"]
            return output + scale * torch.einsum("ne,eor,eri,nti->nto", rows, second, first, inputs[0])

        return add

    for name in about["layers"]:
        add = change(tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"])
        model.get_submodule(name).register_forward_hook(add)

    plain = encoder.forward

    # The mean of the base's states over real frames.
    def pool_states(features: Tensor, mask: Tensor | None) -> Tensor:
        states: Tensor = plain(features, attention_mask=mask).last_hidden_state
        if mask is None or "blank" not in about:
            return states.mean(1)
        real = model._get_feature_vector_attention_mask(states.shape[1], mask)[..., None]
        mean: Tensor = (states * real).sum(1) / real.sum(1)
        return mean

    def encode(features: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
        # While nothing is chosen, the hooks add nothing: the gate reads the base's own states.
        chosen.clear()
        chosen.append(_weigh_experts(pool_states(features, attention_mask), tensors, about))
        return plain(features, attention_mask=attention_mask, **options)

    encoder.forward = encode
    return model.eval(), about


@torch.no_grad()
def write_tokens(whisper: Any, about: dict[str, Any], features: Tensor) -> list[list[int]]:
    """Return the tokens of each row of features ``(row, bin, frame)``, by greedy search as in Vaak."""
    encoded = whisper.model.encoder(features)
    tokens = torch.tensor([about["prompt"]] * len(features))
    while tokens.shape[1] < about["longest"] and not (tokens == about["end"]).any(1).all():
        logits = whisper(encoder_outputs=encoded, decoder_input_ids=tokens).logits[:, -1]
        is_first = tokens.shape[1] == len(about["prompt"])
        logits[:, about["never"] + about["never_first"] * is_first] = -torch.inf
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    texts = [row[len(about["prompt"]) :].tolist() for row in tokens]
    return [row[: row.index(about["end"])] if about["end"] in row else row for row in texts]


@torch.no_grad()
def read_tokens(model: Any, about: dict[str, Any], samples: Tensor) -> list[list[int]]:
    """The tokens of each row of an encoder's samples ``(row, time)``: the most probable of each frame, once, no blanks.

    Rows of several lengths are to be given one by one.
    """
    logits = model(samples).logits
    logits[..., about["never"]] = -torch.inf
    best = [row.unique_consecutive().tolist() for row in logits.argmax(-1)]
    return [[token for token in row if token != about["blank"]] for row in best]
