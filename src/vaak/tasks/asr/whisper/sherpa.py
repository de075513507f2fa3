"""A Whisper as ONNX files for sherpa-onnx's ``OfflineRecognizer.from_whisper``.

encoder.onnx   mel (1, bin, frame) -> n_layer_cross_k, n_layer_cross_v (layer, 1, position, width); sizes and special
               tokens as metadata
decoder.onnx   tokens (1, token), in_n_layer_self_k_cache, …_v_cache (layer, 1, context, width), what the encoder gave,
               offset (1,) of the first token -> logits (1, token, vocab), out_n_layer_self_k_cache, …_v_cache
tokens.txt     the bytes of a token in base 64, and its number, in each line

The features of sherpa-onnx begin where Whisper's have their middle, 12.5 ms later, so that a doubtful word may differ;
it writes at most 6 tokens for each second. It fills audio up with zeros after it has normalised the features: a Whisper
was trained on silence, which is put in their place here. Frames beyond ``data.max_duration`` are cut off. What is never
written has ``MASKED_LOGIT`` less.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaak.core.storage.files import whole_folder, write_text
from vaak.nn.lora import merged
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, quantize, write_onnx
from vaak.tasks.asr.export import MASKED_LOGIT
from vaak.tasks.asr.vocabulary import NO_TIMES, Vocabulary
from vaak.tasks.asr.whisper.predict import WhisperTranscriber
from vaak.text.tokenizer import BYTES

SILENCE_BELOW_MAXIMUM = 2.0
"""How far the silence of Whisper's features is below their maximum: 8 in the logarithm, divided by 4."""
CACHES = ("in_n_layer_self_k_cache", "in_n_layer_self_v_cache")
CROSS = ("n_layer_cross_k", "n_layer_cross_v")


def encoded(whisper: Any, mel: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of each of the decoder's layers for features ``(1, bin, frame)`` of any length."""
    encoder = whisper.model.encoder
    length = 2 * encoder.embed_positions.weight.shape[0]
    padding = mel.new_zeros(1, mel.shape[1], length)
    mel, silence = torch.cat([mel, padding], 2)[:, :, :length], mel.flatten().amax(0) - SILENCE_BELOW_MAXIMUM
    # Frames of zeros in every bin are padding, by sherpa-onnx or by the line above.
    mel = torch.where((mel == 0).all(1, keepdim=True), silence, mel)
    hidden = torch.nn.functional.gelu(encoder.conv1(mel))
    hidden = torch.nn.functional.gelu(encoder.conv2(hidden)).transpose(1, 2) + encoder.embed_positions.weight
    for layer in encoder.layers:
        found = layer(hidden, None)
        hidden = found[0] if isinstance(found, tuple) else found
    states = encoder.layer_norm(hidden)
    attention = [layer.encoder_attn for layer in whisper.model.decoder.layers]
    keys, values = [one.k_proj(states) for one in attention], [one.v_proj(states) for one in attention]
    return torch.stack(keys), torch.stack(values)


def attend(attention: Any, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention of ``x (1, token, width)`` to ``keys`` and ``values (1, key, width)``, projected already."""

    def heads(one: Tensor) -> Tensor:
        parts: Tensor = one.unflatten(2, (attention.num_heads, -1))
        return parts.transpose(1, 2)

    scores = heads(attention.q_proj(x) * attention.scaling) @ heads(keys).transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    mixed: Tensor = attention.out_proj((scores.softmax(-1) @ heads(values)).transpose(1, 2).flatten(2))
    return mixed


def decoded(
    whisper: Any, tokens: Tensor, caches: tuple[Tensor, Tensor], cross: tuple[Tensor, Tensor], offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits after each of ``tokens``, which begin at place ``offset``, and the caches with them."""
    decoder, number = whisper.model.decoder, tokens.shape[1]
    places = offset + torch.arange(number, device=tokens.device)
    hidden = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[places]
    # The caches are as long as the longest text from the beginning; places after a token hold nothing yet.
    mask = torch.arange(caches[0].shape[2])[None] <= places[:, None]
    keys, values = list[Tensor](), list[Tensor]()
    for number_of_layer, layer in enumerate(decoder.layers):
        x, attention = layer.self_attn_layer_norm(hidden), layer.self_attn
        new = (attention.k_proj(x), attention.v_proj(x))
        index = places[None, :, None].expand(1, -1, x.shape[2])
        own = [cache[number_of_layer].scatter(1, index, one) for cache, one in zip(caches, new, strict=True)]
        keys.append(own[0])
        values.append(own[1])
        hidden = hidden + attend(attention, x, own[0], own[1], mask)
        x = layer.encoder_attn_layer_norm(hidden)
        hidden = hidden + attend(layer.encoder_attn, x, cross[0][number_of_layer], cross[1][number_of_layer])
        x = layer.final_layer_norm(hidden)
        hidden = hidden + layer.fc2(layer.activation_fn(layer.fc1(x)))
    logits: Tensor = whisper.proj_out(decoder.layer_norm(hidden))
    return logits, torch.stack(keys), torch.stack(values)


def write_whisper_sherpa(transcriber: WhisperTranscriber, folder: Path, quantization: str | None) -> None:
    """Write ``folder``, completely or not at all, low-rank adapters merged.

    With ``quantization`` int8, there are files with weights of matrices in 8 bits, too. Raises UserError as
    ``write_onnx`` does, and if the folder has something in it.
    """
    vocabulary = transcriber.vocabulary
    whole: Any = merged(transcriber.model.whisper).cpu().eval()
    config, ids = whole.config, vocabulary.ids
    none = torch.zeros(ids.size)
    lowered = none.index_fill(0, torch.tensor(ids.never, dtype=torch.long), -MASKED_LOGIT)
    first = none.index_fill(0, torch.tensor(ids.never_first, dtype=torch.long), -MASKED_LOGIT)

    def decode(given: Any, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        logits, keys, values = decoded(given, tokens, (rest[0], rest[1]), (rest[2], rest[3]), rest[4])
        # sherpa-onnx calls with offset 0 for the prompt alone, so those logits are of the first token of the text.
        return logits + lowered + first * (rest[4] == 0), keys, values

    def inputs(seed: int, frames: int, number: int, offset: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        mel = torch.randn(1, config.num_mel_bins, frames, generator=generator)
        shape = (config.decoder_layers, 1, config.max_target_positions, config.d_model)
        caches = {name: torch.randn(shape, generator=generator) for name in CACHES}
        with torch.no_grad():
            cross = dict(zip(CROSS, encoded(whole, mel), strict=True))
        tokens = torch.randint(ids.size, (1, number), generator=generator)
        return {"mel": mel}, {"tokens": tokens, **caches, **cross, "offset": torch.tensor([offset])}

    # A prompt at the beginning, a single token after a cache, as in every later step, and several within a text: a
    # graph that was fixed to one of these shapes fails with the others.
    given = [inputs(0, 120, 4, 0), inputs(1, 30, 1, 4), inputs(2, 200, 3, 2)]
    mels, states = [one for one, _ in given], [other for _, other in given]
    encoder = OnnxModule(
        ExportWrapper(whole, encoded),
        mels[0],
        {"mel": {2: "frame"}},
        CROSS,
        mels[1:],
        make_metadata(config, vocabulary),
    )
    outputs = ("logits", *(name.replace("in_", "out_", 1) for name in CACHES))
    decoder = OnnxModule(ExportWrapper(whole, decode), states[0], {"tokens": {1: "token"}}, outputs, states[1:])
    with whole_folder(folder) as made:
        for name, exported in (("encoder", encoder), ("decoder", decoder)):
            write_onnx(made / f"{name}.onnx", exported)
            if quantization is not None:
                quantize(made / f"{name}.onnx", made / f"{name}.int8.onnx")
        write_text(made / "tokens.txt", "".join(f"{name} {number}\n" for number, name in written_tokens(vocabulary)))


def make_metadata(config: Any, vocabulary: Vocabulary) -> dict[str, str]:
    """Return the metadata in which sherpa-onnx reads a model's sizes and special tokens."""
    special = {token.content: number for number, token in vocabulary.backend.get_added_tokens_decoder().items()}
    # sherpa-onnx adds <|notimestamps|> itself.
    prompt, end = [one for one in vocabulary.ids.prompt if one != special[NO_TIMES]], vocabulary.ids.end
    languages = vocabulary.named_languages
    is_multilingual = len(prompt) > 1
    found = {
        "model_type": "whisper",
        "version": "1",
        "n_mels": config.num_mel_bins,
        "n_audio_ctx": config.max_source_positions,
        "n_audio_state": config.d_model,
        "n_audio_head": config.encoder_attention_heads,
        "n_audio_layer": config.encoder_layers,
        "n_vocab": config.vocab_size,
        "n_text_ctx": config.max_target_positions,
        "n_text_state": config.d_model,
        "n_text_head": config.decoder_attention_heads,
        "n_text_layer": config.decoder_layers,
        "sot_sequence": ",".join(map(str, prompt)),
        "all_language_tokens": ",".join(map(str, languages.values())),
        "all_language_codes": ",".join(languages),
        "sot": prompt[0],
        "sot_index": 0,
        "eot": end,
        "blank_id": (vocabulary.encode("a b")[1:2] or [end])[0],
        "is_multilingual": int(is_multilingual),
        "no_speech": special.get("<|nospeech|>", special.get("<|nocaptions|>", end)),
        "non_speech_tokens": "",
        "transcribe": special.get("<|transcribe|>", end),
        "translate": special.get("<|translate|>", end),
        "sot_prev": special.get("<|startofprev|>", end),
        "sot_lm": special.get("<|startoflm|>", end),
        "no_timestamps": special[NO_TIMES],
    }
    return {name: str(value) for name, value in found.items()}


def written_tokens(vocabulary: Vocabulary) -> list[tuple[int, str]]:
    """Return the number of each token that is text, with its bytes in base 64."""
    added = vocabulary.backend.get_added_tokens_decoder()
    names = [(number, vocabulary.backend.id_to_token(number)) for number in range(vocabulary.ids.size)]
    return [
        (number, base64.b64encode(name.encode() if number in added else bytes(BYTES[one] for one in name)).decode())
        for number, name in names
        if name and vocabulary.is_text(number)
    ]
