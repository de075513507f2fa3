"""The acoustic model: shapes, durations, and rows that don't depend on what they are batched with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vaak.nn.config import ConvolutionalStackConfig
from vaak.nn.speech.alignment import forward_sum_loss
from vaak.nn.speech.flow_matching import Draws, row_draws
from vaak.tasks.tts.config import FlowMatchingConfig, PredictorConfig, TtsModelConfig
from vaak.tasks.tts.data import Normalisation
from vaak.tasks.tts.model import Controls, Inventory, Recording, Text, TtsModel

NUM_BINS = 6
SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


def make(num_speakers: int = 1, **options) -> TtsModel:
    torch.manual_seed(0)
    config = TtsModelConfig(
        **{
            "encoder": ConvolutionalStackConfig(**SIZES),
            "decoder": ConvolutionalStackConfig(**SIZES),
            "duration_predictor": PredictorConfig(width=8),
            **options,
        }
    )
    normalisation = Normalisation([-4.0] * NUM_BINS, [2.0] * NUM_BINS)
    model = TtsModel(config, Inventory(20, 0, num_speakers), normalisation)
    with torch.no_grad():  # as if trained: a few frames for each symbol
        model.duration_predictor.output.bias.fill_(1.5)
    return model.eval()


def text(*rows: list[int], speakers: list[int] | None = None) -> Text:
    longest = max(map(len, rows))
    symbols = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return Text(symbols, torch.tensor([len(row) for row in rows]), torch.tensor(speakers or [0] * len(rows)))


DECODERS: dict[str, dict[str, Any]] = {
    "transformer": {"pitch": True, "energy": True},
    "convolutions": {
        "encoder": ConvolutionalStackConfig(**SIZES, feed_forward_kernel=3),
        "decoder": ConvolutionalStackConfig(**SIZES, feed_forward_kernel=5),
    },
    "U-Net": {"decoder_type": "flow_matching", "pitch": True, "flow_matching": FlowMatchingConfig(width=16)},
    "field of a transformer": {
        "decoder_type": "flow_matching",
        "flow_matching": FlowMatchingConfig(vector_field="transformer"),
    },
}
decoders = pytest.mark.parametrize("options", DECODERS.values(), ids=list(DECODERS))


@decoders
def test_a_row_is_spoken_alike_whatever_it_is_batched_with(options: dict[str, Any]):
    model = make(**options)
    together = model.speak(text([3, 4, 5], [6, 7, 8, 9, 10, 11], [3, 4, 5]))
    alone = model.speak(text([3, 4, 5]))
    frames = int(alone.plan.frame_lengths[0])
    for row in (0, 2):
        assert together.plan.frame_lengths[row] == frames
        torch.testing.assert_close(together.mel[row, :frames], alone.mel[0], atol=1e-5, rtol=1e-5)


def test_frames_of_a_phoneme_differ_where_the_feed_forward_layer_sees_their_neighbours():
    """Without positions and neighbours, frames of one symbol are alike: attention alone has to tell them apart."""
    sizes = {**SIZES, "position_type": "none"}
    for kernel, alike in ((1, True), (3, False)):
        decoder = ConvolutionalStackConfig(**sizes, feed_forward_kernel=kernel)
        mel = make(decoder=decoder).speak(text([3, 4, 5])).mel[0]
        assert torch.allclose(mel[1], mel[2], atol=1e-5) == alike


def test_speech_ends_where_the_stop_head_says_and_only_in_the_last_pause():
    model = make()
    assert model.stop is not None
    rows = text([3, 4, 5], [6, 7, 8, 9, 10, 11])
    with torch.no_grad():
        model.stop.weight.zero_()
        model.stop.bias.fill_(-9.0)
        never = model.speak(rows).plan
        model.stop.bias.fill_(9.0)
        at_once = model.speak(rows).plan
    for row, length in enumerate((3, 6)):
        assert never.durations[row, length - 1] > 1
        assert torch.equal(at_once.durations[row, : length - 1], never.durations[row, : length - 1])
        assert at_once.durations[row, length - 1] == 1
    assert torch.equal(at_once.frame_lengths, at_once.durations.sum(1))
    assert torch.equal(never.frame_lengths, never.durations.sum(1))


@decoders
def test_the_same_text_always_sounds_the_same_and_another_speaker_not(options: dict[str, Any]):
    model = make(num_speakers=2, speaker_embedding=False, **options)
    first, again, other = (model.speak(text([3, 4, 5], speakers=[speaker])).mel for speaker in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (not model.config.matches_flows)  # other noise


def test_without_noise_flow_matching_begins_at_nothing():
    """One step of Euler's method from 0: the field there, at time 0."""
    model = make(**DECODERS["U-Net"])
    controls = Controls(num_steps=1, temperature=0.0)
    spoken = model.speak(text([3, 4, 5]), controls)
    with torch.no_grad():
        zeros = torch.zeros_like(spoken.mel)
        velocity = model.decoder(zeros, torch.zeros(1), spoken.plan.frames.clone(), spoken.plan.mask)
    torch.testing.assert_close(spoken.mel, velocity * 2.0 - 4.0)


def test_the_loss_of_flow_matching_is_that_of_its_formula():
    model = make(**(DECODERS["U-Net"] | {"pitch": False})).double()
    rows, durations = text([3, 4, 5], [6, 7]), torch.tensor([[2, 1, 3], [3, 1, 0]])
    mel, draws = torch.randn(2, 6, NUM_BINS).double(), row_draws([1, 2], [6, 4], NUM_BINS)
    draws = Draws(draws.noise.double(), draws.times.double())
    term = model(rows, Recording(mel, durations.sum(1), durations, draws=draws)).terms["flow"]
    total = torch.zeros(()).double()
    for row, frames in enumerate((6, 4)):
        one = text([3, 4, 5]) if row == 0 else text([6, 7])
        encoded = model.encoder(model.embedded(one), mask=one.mask)
        condition = encoded.repeat_interleave(durations[row, : one.symbols.shape[1]], 1)
        time, noise, target = draws.times[row], draws.noise[row, :frames], mel[row, :frames]
        x = (1 - (1 - 1e-4) * time) * noise + time * target
        velocity = model.decoder(x[None], time[None], condition, torch.ones(1, frames).bool())[0]
        total += (velocity - (target - (1 - 1e-4) * noise)).square().sum()
    assert term.per == "mel_bin"
    torch.testing.assert_close(term.total, total)


def test_semitones_raise_the_pitch_that_is_planned():
    model = make(**DECODERS["transformer"])
    assert model.adaptor is not None
    assert model.adaptor.pitch is not None
    with torch.no_grad():
        model.adaptor.pitch.predictor.output.bias[1] = 5.0  # everything is voiced
    usual, high = (model.speak(text([3, 4, 5]), Controls(pitch=pitch)) for pitch in (0.0, 3.0))
    torch.testing.assert_close(high.plan.pitch, usual.plan.pitch * 2 ** (3 / 12))
    assert torch.equal(high.plan.durations, usual.plan.durations)
    assert not torch.equal(high.mel, usual.mel)


def test_speed_divides_the_durations():
    model = make()
    six = text([3, 4, 5, 6, 7, 8])
    usual, fast = (int(model.speak(six, Controls(speed)).plan.frame_lengths[0]) for speed in (1.0, 2.0))
    assert usual == pytest.approx(6 * (torch.tensor(1.5).expm1().item()), rel=0.2)
    assert fast == pytest.approx(usual / 2, abs=1)


def test_however_fast_there_are_frames():
    spoken = make().speak(text([3]), Controls(speed=1000.0))
    assert spoken.mel.shape == (1, 2, NUM_BINS)


def test_spectrograms_have_the_scale_of_the_data():
    model = make()
    with torch.no_grad():
        model.mel.weight.zero_()
        model.mel.bias.fill_(1.0)
    torch.testing.assert_close(model.speak(text([3, 4])).mel.unique(), torch.tensor([-2.0]))
    torch.testing.assert_close(model.normalised(torch.tensor([-2.0])), torch.ones(NUM_BINS))


def test_speakers_sound_different_only_where_there_are_several():
    model = make(num_speakers=2)
    first, second = (model.speak(text([3, 4, 5], speakers=[speaker])).mel for speaker in (0, 1))
    assert first.shape != second.shape or not torch.equal(first, second)
    assert make(num_speakers=1).speakers is None
    assert make(num_speakers=2, speaker_embedding=False).speakers is None


def test_widths_may_differ():
    model = make(decoder=ConvolutionalStackConfig(**{**SIZES, "d_model": 8}))
    assert model.speak(text([3, 4])).mel.shape[2] == NUM_BINS


def test_learned_durations_give_each_symbol_a_frame_and_add_up():
    model = make(durations="learned")
    rows = text([3, 4, 5], [6, 7, 8, 9, 10])
    mel, lengths = torch.randn(2, 12, NUM_BINS), torch.tensor([9, 12])
    outputs = model(rows, Recording(mel, lengths))
    assert outputs.durations.sum(1).tolist() == [9, 12]
    assert outputs.durations[0].tolist()[3:] == [0, 0]
    assert outputs.durations[1].min() >= 1
    assert outputs.alignment.shape == (2, 12, 5)


@pytest.mark.slow
def test_a_learned_alignment_finds_durations_that_the_spectrogram_shows():
    """After training on sequences of symbols, each with a distinct spectrum, durations are found."""
    torch.manual_seed(1)
    model = make(durations="learned").train()
    spectra = torch.randn(20, NUM_BINS)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)

    def draw() -> tuple[Text, torch.Tensor, torch.Tensor]:
        symbols = torch.stack([torch.randperm(19)[:6] + 1 for _ in range(8)])
        durations = torch.randint(1, 6, (8, 6))
        rows = [spectra[row].repeat_interleave(times, 0) for row, times in zip(symbols, durations, strict=True)]
        mel = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return Text(symbols, torch.full((8,), 6), torch.zeros(8).long()), mel, durations

    for _ in range(200):
        rows, mel, durations = draw()
        lengths = durations.sum(1)
        outputs = model(rows, Recording(mel, lengths))
        loss = forward_sum_loss(outputs.alignment, lengths, rows.lengths).total / lengths.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows, mel, durations = draw()
    found = model.eval()(rows, Recording(mel, durations.sum(1))).durations
    assert (found - durations).abs().float().mean() < 0.25
