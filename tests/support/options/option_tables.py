"""What must hold for an option to be read, as overrides of a tiny configuration of its task (option_bases.py).

FOLDER stands for what option_files.py writes for a task, OWN for a folder of one run alone.
"""

from __future__ import annotations

from vaak.audio.mel_config import MelConfig, PitchConfig
from vaak.nn.config import ConformerConfig
from vaak.nn.speech.config import HifiGanConfig
from vaak.tasks.asr.config import MaskingConfig

CONVERSATIONS = (
    "datasets=[{name: toy, type: json, train: [FOLDER/voices/train.jsonl], valid: [FOLDER/voices/valid.jsonl], "
    "test: [FOLDER/voices/test.jsonl], conversations: {train: 12, valid: 3, test: 2, duration: [1.0, 2.0]}}]"
)
LOOP = ("training", "wandb", "name", "distillation")
"""Sections that are the same for every task, varied for one."""

ANY_UNKNOWN = ("data.max_unknown=100",)
"""For tokenizers that can't write most of these texts, which is an error otherwise."""

CHATS = ("data.corpus={type: chat, train: [FOLDER/chats.jsonl], valid: [], test: []}",)
WITH_AN_OPTION = (
    "{% for message in messages %}{{ message.content }}{{ eos_token if louder else eos_token * 2 }}{% endfor %}"
)
HUB = "data.corpus={type: huggingface, name: FOLDER/hub}"
MANY_SPEAKERS = (
    *("data.inference.window=0.4", "data.inference.window_overlap=0"),
    "data.inference.clustering_threshold=0.003",
)
AMI = "datasets=[{name: ami, corpus_dir: FOLDER/corpora/ami, output_dir: OWN/ami}]"
AMI_BY_NAME = (
    "datasets=[{name: ami}]",
    "global_config.corpus_dir=FOLDER/corpora",
    "global_config.output_dir=OWN/manifests",
)
CIRCUMSTANCES: dict[str, tuple[str, ...]] = {
    "training.epochs": ("training.max_steps=null",),
    "training.distributed.reduction": ("training.gradient_accumulation_steps=3",),
    "training.scheduler.long_warmup": ("training.scheduler.long_warmup=shorten", "training.scheduler.warmup_steps=100"),
    "training.scheduler.min_lr": ("training.scheduler.type=cosine",),
    "training.scheduler.first_cycle_steps": ("training.max_steps=8",),
    "training.scheduler.cycle_growth": ("training.scheduler.first_cycle_steps=2",),
    "training.scheduler.patience": ("training.scheduler.metric=val_accuracy", "training.max_steps=8"),
    "training.scheduler.factor": (
        "training.scheduler.metric=val_perplexity",
        "training.scheduler.patience=0",
        "training.scheduler.mode=max",
    ),
    "training.scheduler.metric": ("training.scheduler.patience=0",),
    "training.scheduler.mode": ("training.scheduler.patience=0",),
    "training.early_stopping": ("training.early_stopping={patience: 1, mode: max}",),
    "training.early_stopping.min_delta": ("training.early_stopping={patience: 1}",),
    "training.batching.max_tokens": ("training.batching={type: bucketed, max_tokens: 200}",),
    "training.ema": ("training.ema={decay: 0.5}",),
    "training.freeze.0": ("training.freeze=[{match: embedding}]",),
    "training.optimizer.groups.0": ("training.optimizer.groups=[{match: embedding, lr_scale: 0.5}]",),
    "training.curriculum": (
        "training.curriculum={initial_difficulty: 0.1}",
        "training.max_steps=60",
        "training.validation.interval=30",
        "training.checkpoint.interval=30",
    ),
    "training.feature_redraw_interval": ("model.attention_type=causal_linear",),
    "training.fixed_projection": ("model.attention_type=causal_linear", "training.feature_redraw_interval=2"),
    "training.amp_loss_scale": ("training.mixed_precision=fp16",),
    "training.checkpoint.init_except": ("training.checkpoint.init_from=FOLDER/other",),
    "training.checkpoint.init_rename": ("training.checkpoint.init_from=FOLDER/other",),
    "training.optimizer.options": ("training.optimizer.type=FOLDER/own.py:SignDescent",),
    "training.scheduler.options": ("training.scheduler.type=FOLDER/own.py:Stairs",),
    "training.memory.recovery": ("training.loss.auxiliary={short: {type: 'FOLDER/own.py:short', weight: 0.1}}",),
    "training.non_finite.max_skipped": ("training.loss.auxiliary={torn: {type: 'FOLDER/own.py:torn', weight: 0.1}}",),
    "training.batching.shards_mixed": ("training.batching.shard_size=2",),
    "training.performance.prefetch_factor": ("training.performance.num_workers=1",),
    "training.fp32_fallback": ("training.mixed_precision=no",),
    "training.performance.persistent_workers": ("training.performance.num_workers=1",),
    "training.performance.multiprocessing_context": ("training.performance.num_workers=1",),
    "training.logging.progress_bar": ("@terminal",),
    "wandb": ("@wandb", "training.logging.wandb=true"),
    "name": ("@wandb", "training.logging.wandb=true"),
    "training.checkpoint.metric": ("training.checkpoint.mode=max",),
    "training.logging.log_metrics": ("training.logging.tensorboard=true",),
    "training.logging.interval": ("training.logging.interval=2",),
    "training.validation.interval_epochs": (
        "training.max_steps=80",
        "training.validation.interval=null",
        "training.checkpoint.interval=null",
    ),
    "training.checkpoint.interval_epochs": (
        "training.max_steps=80",
        "training.validation.interval=60",
        "training.checkpoint.interval=null",
    ),
    "model.window": ("model.attention_type=local",),
    "model.kernel_type": ("model.attention_type=causal_linear",),
    "model.num_features": ("model.attention_type=causal_linear",),
    "model.orthogonal_features": ("model.attention_type=causal_linear",),
    "model.rope_scaling_type": ("model.rope_scaling_factor=2",),
    "model.rope_scaling_bounds": ("model.rope_scaling_factor=2", "model.rope_scaling_type=yarn"),
    "model.rope_original_length": ("model.rope_scaling_factor=2", "model.rope_scaling_type=yarn"),
    "model.moe": ("model.moe={num_experts: 3, d_ff: 12}", "model.num_layers=2"),
    **{
        f"model.{side}.moe": (f"model.{side}.moe={{num_experts: 3, d_ff: 12}}", f"model.{side}.num_layers=2")
        for side in ("encoder", "decoder")
    },
    **{f"model.{side}options": (f"model.{side}type=FOLDER/own.py:Net",) for side in ("", "encoder.", "decoder.")},
    "model.lora": ("training.checkpoint.init_from=FOLDER/other", "model.lora={rank: 2}"),
    "model.ngram": ("model.ngram={weight: 0.4}",),
    "data.corpus.text_column": ("data.corpus={type: json, train: [FOLDER/train.jsonl], valid: [], test: []}",),
    "data.corpus.num_sentences": ("data.corpus={type: grammar, num_sentences: 200}",),
    "data.corpus.train_fraction": ("data.corpus.valid=[]", "data.corpus.test=[]"),
    "data.corpus.on_invalid_utf8": ("data.corpus.train=[FOLDER/torn.txt]",),
    "data.corpus.name": ("@hub", HUB, "data.corpus.subset=one"),
    "data.corpus.subset": ("@hub", HUB, "data.corpus.subset=one"),
    "data.on_bad_example": ("@torn",),
    "data.corpus.folds_file": ("data.corpus.fold=1:1",),
    "datasets.0.folds_file": ("datasets.0.fold=1:1",),
    "data.tokenizer.options": ("data.tokenizer.type=FOLDER/own.py:Characters",),
    "data.target_tokenizer.min_frequency": ("data.target_tokenizer={type: character, min_frequency: 1}",),
    "data.target_tokenizer.vocab_size": ("data.target_tokenizer={type: byte_level, vocab_size: 320}",),
    "data.tokenizer.min_frequency": ("data.tokenizer={type: character, min_frequency: 1}",),
    "data.masking_probability": ("model.model_type=encoder",),
    "data.shift_windows": ("data.layout=stream",),
    "data.mixture": ("data.corpus.train=[FOLDER/train.txt, FOLDER/train.jsonl]", "data.mixture=[{weights: [1, 1]}]"),
    "data.mixture.0.step": (
        "data.corpus.train=[FOLDER/train.txt, FOLDER/train.jsonl]",
        "data.mixture=[{weights: [1, 1]}, {step: 5, weights: [1, 9]}]",
    ),
    **dict.fromkeys(("data.chat_template", "data.learned_roles", "data.loss_on", "data.long_chats"), CHATS),
    "data.chat_template_kwargs": (*CHATS, f"data.chat_template='{WITH_AN_OPTION}'"),
    "data.stride": ("data.layout=stream",),
    "data.target_tokenizer": ("data.target_tokenizer={type: character}",),
    "data.target_tokenizer.options": ("data.target_tokenizer={type: FOLDER/own.py:Characters}",),
    "data.decoding.beam_size": ("data.decoding.method=beam",),
    "data.decoding.length_penalty": ("data.decoding.method=beam",),
    "data.decoding.early_stopping": ("data.decoding.method=beam",),
    "data.decoding.num_samples": ("data.decoding.method=mbr",),
    "data.decoding.temperature": ("data.decoding.method=sampling",),
    "data.decoding.top_k": ("data.decoding.method=sampling",),
    "data.decoding.top_p": ("data.decoding.method=sampling",),
    "model.context": ("model.front_end=stacked",),
    "data.augmentation.noise": ("data.augmentation.noise=coloured",),
    "data.augmentation.room": ("data.augmentation.room=0.3",),
    "data.augmentation.spec_augment": ("data.augmentation.spec_augment={time_mask: 0.5}",),
    "data.augmentation.codec_probability": ("data.augmentation.codecs=[mulaw]",),
    "datasets.0.conversations": (CONVERSATIONS,),
    "datasets.0.conversations.room": (CONVERSATIONS, "datasets.0.conversations.room=0.3"),
    "datasets.0.conversations.noise": (CONVERSATIONS, "datasets.0.conversations.noise=coloured"),
    "datasets.0.conversations.noise.folder": (
        CONVERSATIONS,
        "datasets.0.conversations.noise={type: files, folder: FOLDER}",
    ),
    "global_config.energy_floor": ("global_config.use_energy=true", "global_config.energy_floor=1.0"),
    "global_config.raw_energy": ("global_config.use_energy=true",),
    "global_config.num_ceps": ("global_config.feature_type=mfcc",),
    "global_config.cepstral_lifter": ("global_config.feature_type=mfcc",),
    "data.corpus.type": (
        "data.corpus={type: json, num_sentences: 100, train: [FOLDER/train.jsonl], valid: [], test: []}",
    ),
    "datasets.0.options": (AMI,),
    "datasets.0.audio_root": ("datasets.0.train=[FOLDER/far/train.jsonl]",),
    "datasets.0.corpus_dir": (AMI,),
    "datasets.0.output_dir": (AMI,),
    "global_config.corpus_dir": AMI_BY_NAME,
    "global_config.output_dir": AMI_BY_NAME,
    "global_config.progress_bar": (
        "@terminal",
        "training.logging.progress_bar=true",
        "global_config.storage_path=OWN/features",
    ),
    "global_config.storage_type": ("global_config.storage_path=OWN/features",),
}
"""Overrides without which an option, or all of a section, isn't read."""
PAIRS = ("data.corpus={type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: []}",)
LINES = (
    "data.corpus={type: text, train: [FOLDER/train.en], train_target: [FOLDER/train.hi], valid: [FOLDER/valid.en], "
    "valid_target: [FOLDER/valid.hi], test: [FOLDER/valid.en], test_target: [FOLDER/valid.hi]}",
)
HUB_OF_PAIRS = "data.corpus={type: huggingface, name: FOLDER/hub, source_column: en, target_column: hi}"
LONGER = "training.max_steps=60"
OF_AMI = {"tts": ("model.durations=learned",), "vocoder": (), "asr": ("data.max_duration=1.2",)}
"""Tasks that read single utterances, with what the meetings of AMI need."""
VOICES = (
    "datasets=[{name: voices, type: voices, num_voices: 4, num_sentences: 8, train_fraction: 0.6, valid_fraction: 0.2, "
    "output_dir: OWN/voices}]"
)
SENTENCES = ("data.max_duration=6", "model.scratch.max_target_length=200")
OF_VOICES = {"diarization": (), "tts": ("data.samples=[He saw me.]",), "vocoder": (), "asr": SENTENCES}
FLOW = ("model.decoder_type=flow_matching",)
FLOW_OPTIONS = ("vector_field", "width", "num_levels", "blocks_per_level", "kernel_size", "sigma_min")
FRONT_END_OPTIONS = (
    "normalise",
    "phonemizer",
    "language",
    "locale",
    "alphabet",
    "stress",
    "punctuation",
    "word_boundaries",
)
LEXICON = ("model.durations=learned", "data.front_end={phonemizer: lexicon, lexicon: FOLDER/lexicon.txt}")
LISTENS = ("training.max_steps=30", "training.batch_size=8", "data.decoding.max_new_tokens=null")
"""So that a recogniser writes some of the words."""
LORA = ("model.base=FOLDER/whisper", "model.lora={rank: 2}")
EXPERTS = ("model.base=FOLDER/whisper", "model.experts={rank: 2, num_experts: 3}")
LORA_OPTIONS = ("rank", "alpha", "dropout", "targets", "rslora", "dora", "base_dtype")
CONFORMER = ("model={architecture: ctc, conformer: {d_model: 16, num_layers: 1, num_heads: 2, dropout: 0.1}}",)
ON_SAMPLES = ("model={architecture: ctc, base: FOLDER/wav2vec2}", "model.masking={time_prob: 0.5, channel_prob: 0.5}")
HIFIGAN = (
    "model.hifigan={upsample_rates: [16, 4], upsample_kernel_sizes: [16, 8], upsample_initial_channel: 8, "
    "resblock_kernel_sizes: [3], resblock_dilation_sizes: [[1]]}"
)
EXPERTS_OPTIONS = (*LORA_OPTIONS, "num_experts", "top_k", "gate_width", "balancing_bias")
CUT = ("data.corpus.valid=[]", "data.corpus.test=[]")
TWO_OF_VALID = "data.corpus.valid_examples=2"
"""Where numbers are asked for, valid has none otherwise, and these runs are refused."""
GRAMMAR = ("data.corpus={type: grammar, num_sentences: 400}",)
HUB_OF_LABELS = "data.corpus={type: huggingface, name: FOLDER/hub, subset: one}"
AUGMENTED = ("data.augmentation={enabled: true, synonyms: FOLDER/synonyms.txt, probability: 0.5}",)
AUGMENTATION_OPTIONS = ("techniques", "probability", "synonyms", "keep_negation")
OF_A_TASK: dict[tuple[str, str], tuple[str, ...]] = {
    ("classification", "model.pretrained_model"): ANY_UNKNOWN,
    **{("seq2seq", f"data.corpus.{name}"): PAIRS for name in ("source_column", "target_column")},
    **{("seq2seq", f"data.corpus.{name}"): PAIRS for name in ("training_references", "deduplicate", "train", "valid")},
    **{("seq2seq", f"data.corpus.{split}_target"): LINES for split in ("train", "valid", "test")},
    ("seq2seq", "data.tokenizer.vocab_size"): ("data.tokenizer={type: byte_level, vocab_size: 320}",),
    ("seq2seq", "data.decoding.beam_size"): (
        "data.decoding={method: beam, beam_size: 1, max_new_tokens: 24}",
        LONGER,
    ),
    **{
        ("seq2seq", f"data.decoding.{name}"): ("data.decoding={method: beam, max_new_tokens: 24}", LONGER)
        for name in ("length_penalty", "early_stopping")
    },
    ("seq2seq", "data.decoding.no_repeat_ngram_size"): ("data.decoding={max_new_tokens: 24}", LONGER),
    **{
        ("seq2seq", f"model.{side}.{name}"): (f"model.{side}.attention_type={kind}",)
        for side, kind in (("encoder", "linear"), ("decoder", "causal_linear"))
        for name in ("kernel_type", "num_features", "orthogonal_features")
    },
    ("seq2seq", "data.corpus.num_sentences"): (),
    ("seq2seq", "data.corpus.seed"): (),
    ("seq2seq", "data.corpus.train_fraction"): (),
    ("seq2seq", "data.corpus.valid_fraction"): (),
    ("seq2seq", "data.corpus.valid_examples"): (*PAIRS, *CUT),
    ("seq2seq", "data.corpus.test_examples"): (*PAIRS, *CUT, TWO_OF_VALID),
    ("seq2seq", "data.corpus.evaluation_overlap"): (
        "data.corpus={type: tsv, train: [FOLDER/birds.tsv], valid: [FOLDER/answers.tsv], test: []}",
    ),
    ("seq2seq", "data.corpus.on_invalid_utf8"): (
        "data.corpus={type: tsv, train: [FOLDER/torn.tsv], valid: [], test: []}",
    ),
    **{
        ("seq2seq", f"data.corpus.{name}"): ("@hub", HUB_OF_PAIRS, "data.corpus.subset=one")
        for name in ("name", "subset")
    },
    ("diarization", "data.on_bad_example"): ("datasets.0.train=[FOLDER/damaged.jsonl]",),
    ("asr", "data.refuse_empty_transcripts"): ("datasets.0.train=[FOLDER/silent.jsonl]", "data.on_bad_example=skip"),
    ("diarization", "data.shift_windows"): ("data.window=0.6",),
    ("diarization", "data.features_on"): ("data.augmentation={spec_augment: {}}",),  # the mean that it sets is rounded
    ("diarization", "data.inference.min_duration_off"): ("training.max_steps=12",),  # untrained, it finds no pauses
    ("diarization", "data.inference.clustering_threshold"): ("data.inference.window=0.4",),
    ("diarization", "data.inference.clustering"): MANY_SPEAKERS,
    ("diarization", "data.inference.min_share"): MANY_SPEAKERS,
    ("diarization", "data.inference.speaker_encoder"): MANY_SPEAKERS,
    ("diarization", "data.inference.speaker_features"): (
        *MANY_SPEAKERS,
        "data.inference.speaker_encoder=FOLDER/voices.onnx",
    ),
    **{
        ("diarization", f"data.inference.{name}"): (*MANY_SPEAKERS, "data.inference.clustering=vbx")
        for name in ("vbx_fa", "vbx_fb")
    },
    ("diarization", "data.inference.centred_threshold"): (
        *MANY_SPEAKERS,
        "data.inference.clustering=centred",
        "data.inference.min_speakers=3",
    ),
    ("diarization", "datasets.0.name"): (AMI,),
    ("diarization", "datasets.0.find_speech"): (CONVERSATIONS,),
    **{
        (task, key): (*circumstances, *needed)
        for task, needed in OF_AMI.items()
        for key, circumstances in (
            *((f"datasets.0.{name}", (AMI,)) for name in ("name", "options", "corpus_dir", "output_dir")),
            *((f"global_config.{name}", AMI_BY_NAME) for name in ("corpus_dir", "output_dir")),
        )
    },
    **{
        (task, f"global_config.{name}"): ()
        for task in OF_AMI
        for name in ("energy_floor", "raw_energy", "num_ceps", "cepstral_lifter")
    },
    **{
        (task, f"datasets.0.{name}"): (VOICES, *needed)
        for task, needed in OF_VOICES.items()
        for name in ("num_voices", "num_sentences", "say", "seed")
    },
    **{(task, "data.on_bad_example"): ("datasets.0.train=[FOLDER/damaged.jsonl]",) for task in OF_AMI},
    **{
        ("tts", f"global_config.pitch.{name}"): ("model.pitch=true", "global_config.pitch={}")
        for name in ("f0_min", "f0_max", "voicing")
    },
    ("tts", "model.preset"): ("model.global_config={d_model: 16, num_heads: 2}",),
    **{("tts", f"model.flow_matching.{name}"): FLOW for name in FLOW_OPTIONS},
    **{("tts", f"data.speaking.{name}"): FLOW for name in ("num_steps", "method", "temperature")},
    **{("tts", f"data.speaking.{name}"): (f"model.{name}=true",) for name in ("pitch", "energy")},
    ("tts", "data.speaking.phases"): ("model.pitch=true",),
    ("tts", "data.speaking.on_unspeakable"): ("data.samples=['He saw 日 me. May saw me.']",),
    **{("tts", f"data.front_end.{name}"): ("model.durations=learned",) for name in FRONT_END_OPTIONS},
    **{("tts", f"data.front_end.{name}"): LEXICON for name in ("lexicon", "unknown_words")},
    ("tts", "data.max_duration"): ("data.max_duration=0.75",),  # which leaves some out
    ("tts", "data.evaluation.recogniser"): ("data.evaluation=1",),
    **{
        ("vocoder", f"model.lora.{name}"): (
            "training.checkpoint.init_from=FOLDER/other",
            "model.lora={rank: 2, targets: [head]}",
        )
        for name in LORA_OPTIONS
    },
    **{("vocoder", f"model.hifigan.{name}"): (HIFIGAN,) for name in HifiGanConfig.model_fields},
    ("asr", "data.sampling_seed"): ("data.percent=50",),
    ("asr", "data.too_long"): ("data.max_duration=0.6",),
    ("asr", "data.tokenizer.vocab_size"): ("data.tokenizer={type: byte_level, vocab_size: 264}",),
    ("asr", "data.groups"): ("data.group=accent",),
    ("asr", "data.features_on"): ("data.augmentation={spec_augment: {}}",),  # the mean that it sets is rounded
    **{("asr", f"data.{name}"): LISTENS for name in ("decoding.method", "normaliser")},
    **{
        ("asr", f"data.decoding.{name}"): (*LISTENS, "data.decoding.method=beam")
        for name in ("beam_size", "length_penalty", "early_stopping")
    },
    **{
        ("asr", f"data.decoding.{name}"): (
            *CONFORMER,
            *LISTENS,
            "data.decoding={method: beam, ngram: FOLDER/words.arpa}",
        )
        for name in ("alpha", "beta")
    },
    **{
        ("asr", f"data.decoding.{name}"): (
            *CONFORMER,
            *LISTENS,
            "data.decoding={method: beam, ngram: FOLDER/words.arpa, alpha: 0.0, beta: 8.0}",
        )
        for name in ("token_min_logp", "beam_threshold")
    },
    ("asr", "data.decoding.hotwords"): (*LISTENS, "data.decoding.hotword_weight=1000"),
    ("asr", "data.decoding.lm"): (*CONFORMER, *LISTENS, "data.decoding.method=beam"),
    ("asr", "data.decoding.ngram"): (*CONFORMER, *LISTENS, "data.decoding.method=beam"),
    **{
        ("asr", f"data.decoding.{name}"): LORA[:1] for name in ("language", "task", "prompt", "timestamps", "long_form")
    },
    ("asr", "data.timestamps"): LORA[:1],
    ("asr", "data.language_like"): (*LORA[:1], "data.language=mni", "data.language_like=en"),
    ("lm", "data.new_tokens"): ("model={pretrained: FOLDER/decoder}",),
    ("lm", "data.new_tokens_like"): ("model={pretrained: FOLDER/decoder}", "data.new_tokens=[<|new|>]"),
    ("asr", "model.window"): LORA[:1],
    ("asr", "data.join_utterances"): (AMI, "data.max_duration=4"),
    ("asr", "data.decoding.temperature"): (),
    ("asr", "data.decoding.max_initial_timestamp"): (*LORA[:1], "data.decoding.timestamps=segment"),
    ("asr", "data.decoding.temperature_step"): ("data.decoding.logprob_threshold=0.0",),
    ("asr", "data.decoding.compression_ratio_threshold"): ("data.decoding.temperature_step=0.5",),
    ("asr", "data.decoding.logprob_threshold"): ("data.decoding.temperature_step=0.5",),
    ("asr", "data.decoding.no_speech_threshold"): (*LORA[:1], "data.decoding.logprob_threshold=0.0"),
    ("asr", "global_config.cache_gigabytes"): ("training.max_steps=7",),
    **{("asr", f"model.lora.{name}"): LORA for name in LORA_OPTIONS},
    **{("asr", f"model.experts.{name}"): EXPERTS for name in EXPERTS_OPTIONS},
    **{
        (task, "data.augmentation.noise.folder"): ("data.augmentation.noise={type: files, folder: FOLDER}",)
        for task in ("diarization", "asr")
    },
    **{("asr", f"model.conformer.{name}"): CONFORMER for name in ConformerConfig.model_fields},
    ("asr", "model.conformer.options"): (
        "model={architecture: ctc, conformer: {type: 'FOLDER/own.py:Net', d_model: 16}}",
    ),
    ("asr", "model.conformer.type"): ("model={architecture: ctc, conformer: {d_model: 16}}",),
    ("cnn", "model.options"): (),
    ("asr", "model.conformer.attention_type"): (*CONFORMER, "model.conformer.window=2"),
    **{("asr", f"model.masking.{name}"): ON_SAMPLES for name in MaskingConfig.model_fields},
    ("asr", "model.train_feature_encoder"): ON_SAMPLES,
    ("asr", "model.conformer.window"): (*CONFORMER, "model.conformer.attention_type=local"),
    **{
        ("asr", f"model.conformer.rope_{name}"): (
            *CONFORMER,
            "model.conformer.rope_scaling_factor=2",
            "model.conformer.rope_scaling_type=yarn",
        )
        for name in ("scaling_type", "scaling_bounds", "original_length")
    },
    **{("asr", f"global_config.mel.{name}"): ("global_config.mel={}",) for name in MelConfig.model_fields},
    **{
        (task, f"global_config.pitch.{name}"): ("global_config.pitch={}",)
        for task in ("asr", "vocoder")
        for name in PitchConfig.model_fields
    },
    **{
        (task, key): circumstances
        for task in ("classification", "cnn")
        for key, circumstances in (
            ("data.corpus.type", ("data.corpus.num_sentences=400",)),
            ("data.corpus.text_column", ()),
            *((f"data.corpus.{name}", CUT) for name in ("train_fraction", "valid_fraction", "stratify")),
            ("data.corpus.valid_examples", CUT),
            ("data.corpus.test_examples", (*CUT, TWO_OF_VALID)),
            *((f"data.corpus.{name}", GRAMMAR) for name in ("num_sentences", "seed")),
            *((f"data.corpus.{name}", ("@hub", HUB_OF_LABELS)) for name in ("name", "subset")),
            ("data.corpus.on_invalid_utf8", ("data.corpus.train=[FOLDER/torn.jsonl]",)),
            ("data.tokenizer.type", ("data.tokenizer.vocab_size=320",)),
            ("data.tokenizer.min_frequency", ("data.tokenizer={type: character, min_frequency: 1, vocab_size: 320}",)),
            ("data.tokenizer.options", ("data.tokenizer.type=FOLDER/own.py:Characters", *ANY_UNKNOWN)),
            ("data.augmentation.enabled", ("data.augmentation.synonyms=FOLDER/synonyms.txt",)),
            *((f"data.augmentation.{name}", AUGMENTED) for name in AUGMENTATION_OPTIONS),
            ("data.on_bad_example", ("@torn", "training.max_steps=12")),
        )
    },
    **{("cnn", f"model.word_vectors.{name}"): ("model.word_vectors=FOLDER/vectors.txt",) for name in ("path", "use")},
    ("multitask", "data.sampling.epochs"): ("data.sampling={type: annealed, epochs: 1}",),
    ("multitask", "data.on_bad_example"): ("@torn", "training.max_steps=24"),
    **{
        (task, f"model.{name}"): ("model.attention_type=linear",)
        for task in ("diarization", "classification")
        for name in ("kernel_type", "num_features", "orthogonal_features")
    },
}
"""The same for options that several tasks have, in other circumstances."""

TAUGHT = "distillation={teacher: FOLDER/other}"
IN_PAIRS = "distillation.hidden=[{student: stack, teacher: stack}]"
CIRCUMSTANCES |= {
    "distillation": (TAUGHT,),
    "distillation.stored_gib": (TAUGHT, "data.token_dropout=0"),
    **{f"distillation.hidden.0.{name}": (TAUGHT, IN_PAIRS) for name in ("student", "teacher", "weight")},
}
CIRCUMSTANCES["data.corpus.seed"] = CIRCUMSTANCES["data.corpus.num_sentences"]
for of_a_split in ("valid_fraction", "valid_examples"):
    CIRCUMSTANCES[f"data.corpus.{of_a_split}"] = CIRCUMSTANCES["data.corpus.train_fraction"]
CIRCUMSTANCES["data.corpus.test_examples"] = (
    *CIRCUMSTANCES["data.corpus.train_fraction"],
    TWO_OF_VALID,
)
