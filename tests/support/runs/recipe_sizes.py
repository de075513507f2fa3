"""What is put over a recipe of each task so that it trains in seconds."""

LM_SIZES = ("model.d_model=32", "model.num_layers=1", "model.num_heads=2", "data.max_length=32")
SEQ2SEQ_SIZES = (
    "model.global_config={d_model: 32, num_layers: 1, num_heads: 2}",
    "data.max_source_length=48",
    "data.max_target_length=48",
    "data.decoding.valid_examples=2",
)
TEXT_SIZES = ("data.corpus.num_sentences=300", "data.tokenizer.vocab_size=500")
SIZES = {
    "lm": (*LM_SIZES, *TEXT_SIZES),
    "seq2seq": (*SEQ2SEQ_SIZES, *TEXT_SIZES),
    "diarization": (
        "model={d_model: 32, num_layers: 1, num_heads: 2}",
        "global_config.num_mel_bins=20",
        "datasets=[{type: voices, num_voices: 20, num_sentences: 2, split_by: speaker, train_fraction: 0.6, "
        "valid_fraction: 0.2, conversations: {train: 64, valid: 2, test: 2, duration: 4}}]",
    ),
    "tts": (
        "model.global_config={d_model: 32, num_layers: 1, num_heads: 2}",
        "datasets=[{type: voices, num_voices: 2, num_sentences: 10}]",
        "data.samples=[]",
    ),
    "vocoder": (
        "model={width: 32, num_layers: 1, inner_width: 64, discriminators: null}",
        "datasets=[{type: voices, num_voices: 2, num_sentences: 10}]",
        "data={crop_frames: 16, num_samples: 0, num_iterations: 1}",
    ),
    "classification": ("model={d_model: 32, num_layers: 1, num_heads: 2}", *TEXT_SIZES),
    "multitask": (
        "tasks.rules={task: classification, model: {d_model: 32, num_layers: 1, num_heads: 2}, data: {corpus: "
        "{num_sentences: 300}, tokenizer: {vocab_size: 500}}}",
        "tasks.words={task: lm, model: {d_model: 32, num_layers: 1, num_heads: 2}, data: {max_length: 32, corpus: "
        "{num_sentences: 300}, tokenizer: {vocab_size: 500}}}",
    ),
    "asr": (
        "model.scratch={d_model: 32, encoder_layers: 1, decoder_layers: 1, num_heads: 2}",
        "datasets=[{type: voices, say: digits, num_voices: 4, num_sentences: 10, train_fraction: 0.6, "
        "valid_fraction: 0.2}]",
        "data.max_duration=3",
        "data.decoding={valid_examples: 2, max_new_tokens: 5}",
    ),
}
QUICK = (
    "training.max_steps=4", "training.batch_size=8", "training.scheduler.warmup_steps=0",
    "training.checkpoint.save_dir=null", "training.optimizer.lr=1e-2", "training.memory.rehearsal=false",
)  # fmt: skip
OF_A_TASK = {
    "tts": ("training.optimizer.lr=1e-3",),
    "classification": ("training.batch_size=128",),
    "multitask": ("training.gradient_accumulation_steps=8",),
}
