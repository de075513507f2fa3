"""A tiny configuration of each task, for its options to be varied; FOLDER stands for what option_files.py writes."""

from __future__ import annotations

TRAINING = """\
training:
  max_steps: 3
  batch_size: 4
  performance: {num_workers: 0}
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  checkpoint: {interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
"""
LABELLED = """\
data:
  corpus: {type: files, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}
  tokenizer: {type: word, vocab_size: 20, min_frequency: 1}
  max_length: 8
"""
BASES = {
    "lm": """\
task: lm
name: tiny
model: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}
data:
  corpus: {type: text, train: [FOLDER/train.txt], valid: [FOLDER/valid.txt], test: [FOLDER/test.txt]}
  tokenizer: {type: byte_level, vocab_size: 320}
  max_length: 48
  token_dropout: 0.1
training:
  max_steps: 6
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  validation: {interval: 2}
  checkpoint: {interval: 2, interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
    "seq2seq": """\
task: seq2seq
name: tiny
model: {global_config: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}}
data:
  corpus: {num_sentences: 60}
  tokenizer: {type: character}
  token_dropout: 0.1
  decoding: {max_new_tokens: 4}
training:
  max_steps: 3
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  checkpoint: {interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
    "diarization": """\
task: diarization
name: tiny
model: {d_model: 16, num_layers: 1, num_heads: 2, num_convolutions: 1, embedding_dim: 8, dropout: 0.1}
global_config: {sampling_rate: 8000, num_mel_bins: 16, high_freq: 0.0}
datasets: [{name: toy, type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}]
data: {window: 1.5, inference: {window: 1.2}}
training:
  max_steps: 3
  batch_size: 4
  performance: {num_workers: 0}
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  eval_knobs: {label_type: multilabel}
  loss: {auxiliary: {clustering: 0.5, speaker: 0.1}}
  checkpoint: {interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
    "tts": """\
task: tts
name: tiny
model: {global_config: {d_model: 16, num_layers: 1, num_heads: 2, dropout: 0.1}, duration_predictor: {width: 16}}
global_config: {mel: {sampling_rate: 8000, n_fft: 256, win_length: 256, hop_length: 64, n_mels: 16, f_max: null}}
datasets: [{name: toy, type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}]
data: {samples: [He saw me. Dr. May saw me.], speaking: {num_iterations: 2}}
"""
    + TRAINING,
    "vocoder": """\
task: vocoder
name: tiny
model:
  width: 16
  num_layers: 1
  inner_width: 16
  discriminators: {periods: [2], period_channels: 2, resolutions: [128], resolution_channels: 2}
global_config: {mel: {sampling_rate: 8000, n_fft: 256, win_length: 256, hop_length: 64, n_mels: 16, f_max: null}}
datasets: [{name: toy, type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}]
data: {crop_frames: 16, evaluation_window: 1.0, num_samples: 1, num_iterations: 2}
"""
    + TRAINING,
    "asr": """\
task: asr
name: tiny
model: {scratch: {d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, max_target_length: 16}}
datasets: [{name: toy, type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}]
data: {max_duration: 0.8, decoding: {max_new_tokens: 4}}
"""
    + TRAINING,
    "classification": """\
task: classification
name: tiny
model: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}
"""
    + LABELLED
    + TRAINING,
    "cnn": """\
task: classification
name: tiny
model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [2], dropout: 0.1}
"""
    + LABELLED
    + TRAINING,
    "multitask": """\
task: multitask
name: tiny
data:
  tasks:
    word:
      task: classification
      model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [2], dropout: 0.1}
      data: {corpus: {train: FOLDER/train.jsonl, valid: FOLDER/valid.jsonl, test: FOLDER/test.jsonl}}
    kind:
      task: classification
      model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [2], dropout: 0.1}
      data:
        corpus: {train: FOLDER/more.jsonl, valid: FOLDER/valid.jsonl, test: FOLDER/test.jsonl, label_columns: kind}
"""
    + TRAINING,
}
TASKS = {"cnn": "classification"}
"""Of bases that aren't called as their task is."""
