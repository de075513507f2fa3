"""The keys by which each task is recognised where a YAML has no ``task:``; a table, so that no task is imported for it.

``vaak.config.tasks:tasks_recognised`` reads it. A key may have a value: ``model.model_type=decoder``.
"""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = {
    "asr": RecognisedBy(
        own=("model.base", "model.scratch", "model.lora", "model.experts", "whisper_model", "data.normaliser"),
        reads_audio=True,
    ),
    "classification": RecognisedBy(
        own=(
            "model.architecture",
            "model.pretrained_model",
            "model.num_labels",
            "model.embed_size",
            "model.filter_sizes",
            "model.pooling",
            "data.augmentation.enabled",
            "data.augmentation.techniques",
            "data.corpus.label_columns",
            "data.corpus.label_column",
            "data.label_column",
        ),
    ),
    "diarization": RecognisedBy(
        own=(
            "datasets",
            "global_config",
            "model.model_type=encoder",
            "model.front_end",
            "model.preset=sa_eend",
            "data.inference",
            "data.scoring",
            "data.augmentation.speed",
            "data.augmentation.volume",
            "data.augmentation.noise",
            "data.augmentation.room",
            "data.augmentation.codecs",
            "data.augmentation.codec_probability",
            "data.augmentation.spec_augment",
        ),
        shared=("training.eval_knobs",),
        reads_audio=True,
    ),
    "lm": RecognisedBy(
        own=("model.preset", "model.model_type=decoder", "model.model_type=encoder", "data.minimal_pairs"),
        shared=("data.corpus", "data.tokenizer"),
    ),
    "multitask": RecognisedBy(
        own=("tasks", "data.tasks"),
    ),
    "seq2seq": RecognisedBy(
        own=(
            "model.model_type=encoder_decoder",
            "data.target_tokenizer",
            "data.max_source_length",
            "data.max_target_length",
            "data.decoding",
            "data.corpus.source_column",
            "data.corpus.target_column",
        ),
        shared=("model.encoder",),
    ),
    "tts": RecognisedBy(
        own=(
            "data.front_end",
            "data.speaking",
            "model.durations",
            "model.duration_predictor",
            "global_config.mel",
            "global_config.feature_type=mel",
        ),
        reads_audio=True,
    ),
    "vocoder": RecognisedBy(
        own=("model.discriminators", "data.crop_frames"),
        reads_audio=True,
    ),
}
