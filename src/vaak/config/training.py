"""The ``training:`` section: the options of the loop, the same for every task."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from vaak.config.base import LARGEST_COUNT, LARGEST_LENGTH, Component, Place, ResumeClass, Section, SourceOrName, option
from vaak.config.optimization import GradientClippingConfig, OptimizerConfig, SchedulerConfig


class LossComponent(Component):
    """The main loss by name, with its own options."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    type: str = option("A short name, ./file.py:Name, or package.module:Name.", resume="refused")


class AuxiliaryLoss(Component):
    """An auxiliary loss by name, with its weight and its own options."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"
    bare: ClassVar[str | None] = None

    type: str = option("A short name, ./file.py:Name, or package.module:Name.")
    weight: float = option("Factor by which the mean loss is multiplied.")


class LossConfig(Section):
    """The loss to minimise."""

    bare: ClassVar[str | None] = "main"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    main: LossComponent = option("The main loss.", LossComponent(type="cross_entropy"), resume="refused")
    label_smoothing: float = option("Label smoothing: the probability spread over all classes.", 0.0, ge=0, lt=1)
    auxiliary: dict[str, float | AuxiliaryLoss] = option(
        "Auxiliary losses by name, each with its weight; a class of your own with type, weight and options.", {}
    )


class NonFiniteConfig(Section):
    """Handling of a loss or a gradient that is not finite; such a step never changes the weights."""

    bare: ClassVar[str | None] = "max_skipped"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    max_skipped: int = option(
        "Maximum number of such steps to skip before the run stops; 0 stops at the first.", 0, ge=0
    )


Part = Annotated[float, Field(gt=0, lt=1)]


class MemoryConfig(Section):
    """Handling of memory before it runs out, and when it has."""

    bare: ClassVar[str | None] = "manager"
    resume_class: ClassVar[ResumeClass | None] = "free"

    manager: bool = option(
        "Watch memory pressure: collect garbage, empty caches, compute microbatches in chunks.", True
    )
    thresholds: tuple[Part, Part, Part] | None = option(
        "Fractions of memory at which pressure is moderate, high and critical; null uses the device's defaults.", None
    )
    cleanup_interval: int | None = option(
        "Collect garbage and empty caches every N steps, whatever the pressure; null does so under pressure only.",
        None,
        gt=0,
    )
    recovery: bool = option("When memory runs out, redo the step in smaller chunks; if false, the run ends.", True)
    rehearsal: bool = option("Try the largest and the smallest microbatch before the first step.", True)


class EmaConfig(Section):
    """An exponential moving average of the weights, kept in addition to them."""

    bare: ClassVar[str | None] = "decay"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    decay: float = option("Decay: the fraction of the average that is kept in each step.", 0.999, ge=0, lt=1)
    warmup: bool = option("After n steps the decay is at most (1 + n) / (10 + n).", True)
    start_step: int = option("The first step whose weights are averaged.", 1, ge=1)
    evaluate: bool = option("Evaluate the averaged weights; generate and export then use them too.", True)


class FreezeConfig(Section):
    """Parameters that are not trained, or not yet."""

    bare: ClassVar[str | None] = "match"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    match: str = option("Regular expression searched in the parameter's name.")
    until_step: int | None = option(
        "Train them after this step; never, if until_epoch is null too.",
        None,
        gt=0,
        resume="other numbers",
        resume_switch="refused",
    )
    until_epoch: int | None = option(
        "Train them after this many epochs; with until_step, after whichever comes first.",
        None,
        gt=0,
        resume="other numbers",
        resume_switch="refused",
    )


DIFFICULTIES = ("length", "lexical", "morphology")


class CurriculumConfig(Section):
    """Easy examples first: each epoch draws from a growing fraction of the data, which keeps its easy examples."""

    bare: ClassVar[str | None] = "difficulty"
    resume_class: ClassVar[ResumeClass | None] = "converts"

    difficulty: Literal["length", "lexical", "morphology"] = option(
        "Measure of difficulty: an example's length, its rare words, or its inflected words.", "length"
    )
    initial_difficulty: float = option(
        "The fraction of the data, the easiest, that training starts with.", 0.3, ge=0.01, le=1
    )
    final_difficulty: float = option("The fraction of the data at the end of the curriculum.", 1.0, gt=0, le=1)
    num_epochs: int | None = option("Epochs until final_difficulty is reached; null is all of them.", None, gt=0)
    pacing: Literal["linear", "root"] = option(
        "How the fraction grows: linearly, or fast at first (square root).", "linear"
    )


class ValidationConfig(Section):
    """When and how the model is evaluated."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    interval: int | None = option("Evaluate every N steps; null evaluates by interval_epochs only.", None, gt=0)
    interval_epochs: int | None = option("Evaluate at the end of every N epochs, if interval is null.", 1, gt=0)
    batch_size: int | None = option(
        "Rows of an evaluation batch; null uses training.batch_size.", None, gt=0, le=LARGEST_COUNT
    )
    at_start: bool | None = option(
        "Evaluate before the first step, to see what training changes; null: where the model begins pretrained.",
        None,
        resume="free",
    )


class EarlyStoppingConfig(Section):
    """Stop when a metric no longer improves."""

    bare: ClassVar[str | None] = "patience"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    patience: int = option("Evaluations without improvement before training stops.", 5, ge=0)
    metric: str = option("The metric to watch.", "val_loss")
    min_delta: float = option("The smallest change that counts as an improvement.", 0.0, ge=0)
    mode: Literal["min", "max"] = option("Whether lower or higher is better.", "min")


class CheckpointConfig(Section):
    """When checkpoints are written, which are kept, and where a run resumes."""

    resume_class: ClassVar[ResumeClass | None] = "free"

    save_dir: Place | None = option(
        "Folder for checkpoints: SAVE_DIR/NAME, to which RUN/checkpoints then points; null is RUN/checkpoints.", None
    )
    upload_to: str | None = option(
        "URL of a folder (s3://bucket/run, gs://…) to which checkpoints are uploaded in the background, and from which "
        "resume: auto brings the newest one to a machine that lacks it; null: none.",
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://.",
    )
    interval: int | None = option("Save every N steps.", None, gt=0)
    interval_epochs: int | None = option("Save at the end of every N epochs, if interval is null.", 1, gt=0)
    interval_minutes: float | None = option("Save when this many minutes have passed since the last save.", None, gt=0)
    save_total_limit: int | None = option("Number of checkpoints to keep, in addition to best and last.", 3, ge=1)
    keep_every: int | None = option(
        "Every N steps, save a checkpoint that is never removed; vaak verify, fork and bisect begin at such "
        "checkpoints.",
        None,
        gt=0,
    )
    metric: str = option("The metric by which a checkpoint is the best.", "val_loss", resume="other numbers")
    mode: Literal["min", "max"] = option("Whether lower or higher is better.", "min", resume="other numbers")
    init_from: SourceOrName | None = option("Start a new run with the weights of this run or checkpoint.", None)
    init_except: tuple[str, ...] = option(
        "Regular expressions of parameters that init_from leaves randomly initialised, such as a new head.", ()
    )
    init_rename: dict[str, str] = option(
        "Regular expressions for parameter names of init_from, each with the replacement of its match, applied in "
        "this order.",
        {},
    )
    resume: SourceOrName | None = option(
        "auto resumes from the newest checkpoint if there is one; or a checkpoint; null starts from scratch.", None
    )


class LoggingConfig(Section):
    """Logging during training."""

    resume_class: ClassVar[ResumeClass | None] = "free"

    interval: int = option("Log every N steps.", 50, gt=0)
    tensorboard: bool = option("Write TensorBoard events to RUN/tensorboard.", True)
    wandb: bool = option("Log to Weights & Biases (see the section wandb).", False)
    trackers: tuple[str, ...] = option(
        "Further trackers by name: trackio, and those of accelerate (mlflow, comet_ml, ...).", ()
    )
    smoothing: float = option("Weight of the past in the smoothed losses; 0 turns smoothing off.", 0.98, ge=0, lt=1)
    system_metrics: bool = option("Log memory use, memory pressure and processor load.", True)
    examples: bool = option(
        "Keep single examples of evaluations for vaak report: texts, errors, samples, in RUN/pictures.", True
    )
    json_lines: bool = option("Write the console log as lines of JSON, for machines.", False)
    log_metrics: tuple[str, ...] | None = option("Send only these names to the trackers; null sends all.", None)
    progress_bar: bool = option("Draw a progress bar where the console is a terminal.", True)


Logits = Literal["auto", "whole", "chunked", "liger"]


def _recomputed_parts(value: Any) -> Any:
    return {"none": False, "block": True}.get(value, value) if isinstance(value, str) else value


Recomputation = Annotated[
    bool | Literal["attention", "all"],
    BeforeValidator(_recomputed_parts, json_schema_input_type=bool | Literal["none", "block", "attention", "all"]),
]


class PerformanceConfig(Section):
    """Speed and memory; no option here changes which numbers are drawn."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    num_workers: int | None = option(
        "Processes that load data; 0 loads in the main process; null picks by the task and the cores of each process.",
        None,
        ge=0,
        le=4096,
        resume="free",
    )
    pin_memory: bool | None = option(
        "Page-locked memory for copies to CUDA; null is on with CUDA, off without.", None, resume="free"
    )
    prefetch_factor: int = option("Microbatches each worker loads ahead.", 2, gt=0, le=LARGEST_COUNT, resume="free")
    persistent_workers: bool = option("Keep the workers from epoch to epoch.", True, resume="free")
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = option(
        "How workers start. fork: as copies of this process; forkserver, spawn: as new processes, which are sent "
        "the data; null: fork, or forkserver once CUDA is used, if the data can be sent.",
        None,
        resume="free",
    )
    compile: bool | Literal["default", "reduce-overhead", "max-autotune"] = option("torch.compile, or its mode.", False)
    cuda_graphs: bool = option(
        "On CUDA, compute forward and backward of a microbatch as a CUDA graph, one for each shape of a batch: for "
        "small models, whose operators take longer to start than to compute.",
        False,
    )
    cuda_graph_shapes: int = option(
        "With cuda_graphs: most shapes of batches that get a graph; others are computed without.",
        32,
        gt=0,
        le=LARGEST_COUNT,
    )
    gradient_checkpointing: Recomputation = option(
        "Which activations the backward pass recomputes, to save memory, with the same bits. false or none: none; "
        "attention: each layer's attention; true or block: each layer; all: each layer, and whole groups of layers.",
        False,
    )
    tf32: bool | None = option(
        "TensorFloat-32 matrix products on CUDA; null: with mixed precision, unless deterministic.", None
    )
    logits: Logits = option(
        "How logits become a loss. whole: as one tensor; chunked: some rows at a time, so that never all are in "
        "memory; liger: by liger-kernel on CUDA; auto: chunked from 2^26 logits in a microbatch on, else whole.",
        "auto",
    )
    attention: Literal["auto", "masked"] = option(
        "How attention separates the documents of a row, and padding. masked: by a mask of all pairs; auto: by "
        "variable-length kernels on CUDA in bf16 and fp16, where no attention weights are dropped and "
        "deterministic is off, else by a mask.",
        "auto",
    )
    num_threads: int | None = option("CPU threads of each process; null leaves it to torch.", None, gt=0, le=65_536)


MOST_EXACT = 2**14
"""Most microbatches that exact sums can hold."""


class DistributedConfig(Section):
    """Several processes; they are started by torchrun or accelerate launch."""

    resume_class: ClassVar[ResumeClass | None] = "free"

    backend: Literal["nccl", "gloo"] | None = option("Communication library; null picks by device.", None)
    world_size: int | None = option(
        "Required number of processes; null accepts as many as were started.", None, gt=0, le=LARGEST_COUNT
    )
    processes_at_start: int | None = option(
        "Number of processes at the first start, if it exceeded gradient_accumulation_steps, which was then "
        "multiplied by it, so that batch_size is per process. Set when the run starts; null: batch_size is over "
        "all processes.",
        None,
        gt=0,
        le=LARGEST_COUNT,
    )
    reduction: Literal["float", "exact"] = option(
        "How gradients of microbatches are summed. float: as they come; exact: as 64-bit integers, so that "
        "weights and metrics are bitwise the same on any number of processes.",
        "float",
        resume="other numbers",
    )
    reduce_dtype: Literal["fp32", "bf16"] = option(
        "Precision in which processes exchange gradients to sum them. fp32: in full; bf16: half the bytes, each "
        "sum rounded to 8 bits of precision.",
        "fp32",
        resume="other numbers",
    )
    strategy: Literal["ddp", "zero1", "fsdp"] = option(
        "State that each process holds. ddp: everything; zero1: all weights, but optimizer moments only of those "
        "that it updates; fsdp: a shard of every weight, gradient and moment, gathered block by block.",
        "ddp",
        resume="other numbers",
    )
    reshard_after_forward: bool = option(
        "With fsdp, whether a block's weights are freed after the forward pass and gathered again for the "
        "backward pass.",
        True,
    )
    shard_size: int | None = option(
        "With fsdp, number of processes that share one copy of the model, such as those of one machine; null: all.",
        None,
        gt=1,
        le=LARGEST_COUNT,
    )
    cpu_offload: bool = option("With fsdp, keep weights and moments in host memory, and update them there.", False)
    sync_gradient_barrier: bool = option("Wait for all ranks before gradients are added.", False)
    timeout_minutes: float = option("Minutes that a process waits for the others before it gives up.", 30.0, gt=0)


class BatchingConfig(Section):
    """How examples are put together in microbatches."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "converts"

    type: Literal["fixed", "bucketed", "packed", "stratified"] = option(
        "fixed: batch_size rows; bucketed: similar lengths under a budget; packed: several examples in a row; "
        "stratified: every batch has the class proportions of the whole set.",
        "fixed",
    )
    max_tokens: int | None = option(
        "Maximum number of tokens in a batch, with padding.",
        None,
        gt=0,
        le=LARGEST_COUNT * 1000,
        only_for=("bucketed",),
    )
    max_duration: float | None = option(
        "Maximum number of seconds in a batch, with padding.", None, gt=0, only_for=("bucketed",)
    )
    num_buckets: int = option("Number of groups of similar length.", 64, gt=0, le=1_000_000, only_for=("bucketed",))
    round_lengths: int | None = option(
        "Pad training batches to a multiple of this many tokens or frames, so that few shapes occur; null: to the "
        "longest example of each batch.",
        None,
        gt=0,
        le=LARGEST_LENGTH,
    )
    shard_size: int | None = option(
        "Read training data in the order of their storage, for network disks: this many examples that are stored "
        "one after another are a shard, and shards come in random order; null: examples come in random order.",
        None,
        gt=0,
        le=LARGEST_COUNT,
    )
    shards_mixed: int = option(
        "Number of shards whose examples are mixed, once they have been read ahead.", 8, gt=0, le=LARGEST_COUNT
    )


def _precision_name(value: Any) -> Any:
    """The universal pipeline writes ``true`` for fp16; YAML 1.1 files write ``no`` as false."""
    return {True: "fp16", False: "no"}.get(value, value) if isinstance(value, bool) else value


Precision = Annotated[
    Literal["auto", "no", "bf16", "fp16"],
    BeforeValidator(_precision_name, json_schema_input_type=Literal["auto", "no", "bf16", "fp16"] | bool),
]


class TrainingConfig(Section):
    """The loop: how long, how fast, how careful."""

    epochs: int = option("Passes over the training data.", 10, gt=0, resume="other numbers")
    max_steps: int | None = option(
        "Stop after N optimizer steps, instead of epochs.", None, gt=0, resume="other numbers"
    )
    batch_size: int = option(
        "Rows of a microbatch, over all ranks: ranks share the microbatches.",
        32,
        gt=0,
        le=LARGEST_COUNT,
        resume="converts",
    )
    batching: BatchingConfig = option("How examples are put together.", BatchingConfig())
    gradient_accumulation_steps: int = option(
        "Microbatches of an optimizer step, over all ranks.", 1, gt=0, le=LARGEST_COUNT, resume="converts"
    )
    random_seed: int = option("The seed of every random draw.", 42, ge=0, resume="refused")
    deterministic: bool = option(
        "Deterministic kernels on CUDA too; a CPU always uses them.", False, resume="other numbers"
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = option(
        "The device to train on; auto picks the fastest available.", "auto", resume="other numbers"
    )
    mixed_precision: Precision = option(
        "auto, no (fp32), bf16 or fp16; true is fp16. auto is bf16 on a GPU with bf16 hardware, else no; a run "
        "keeps the one that it began with.",
        "auto",
        resume="other numbers",
    )
    amp_loss_scale: float | None = option(
        "Fixed loss scale of fp16; null adapts it.", None, gt=0, resume="other numbers"
    )
    fp32_fallback: int | None = option(
        "Recompute a step that isn't finite in mixed precision in fp32; after N steps for which that helped, "
        "training stays in fp32; null: never.",
        3,
        gt=0,
        resume="other numbers",
    )
    optimizer: OptimizerConfig = option("How weights are updated.", OptimizerConfig())
    scheduler: SchedulerConfig = option("The learning rate over time.", SchedulerConfig())
    gradient_clipping: GradientClippingConfig = option("Bounds on the gradient.", GradientClippingConfig())
    feature_redraw_interval: int | None = option(
        "Redraw Performer features every N steps.", None, gt=0, resume="other numbers"
    )
    fixed_projection: bool = option("Never redraw Performer features.", False, resume="other numbers")
    loss: LossConfig = option("The loss to minimise.", LossConfig())
    validation: ValidationConfig = option("When the model is evaluated.", ValidationConfig())
    early_stopping: EarlyStoppingConfig | None = option("Stop when a metric no longer improves; null never does.", None)
    checkpoint: CheckpointConfig = option("Checkpoints.", CheckpointConfig())
    logging: LoggingConfig = option("Logging.", LoggingConfig())
    performance: PerformanceConfig = option("Speed and memory.", PerformanceConfig())
    distributed: DistributedConfig = option("Several processes.", DistributedConfig())
    profiling: bool | Literal["trace"] = option("Measure where the time goes.", False, resume="free")
    non_finite: NonFiniteConfig = option("Handling of losses or gradients that are not finite.", NonFiniteConfig())
    memory: MemoryConfig = option("Measures before memory runs out, and after.", MemoryConfig())
    ema: EmaConfig | None = option("A moving average of the weights; null keeps none.", None)
    freeze: tuple[FreezeConfig, ...] = option("Parameters that are not trained, or not yet.", ())
    curriculum: CurriculumConfig | None = option("Easy examples first; null uses all from the start.", None)
    callbacks: tuple[Component, ...] = option("Additional callbacks by name.", (), resume="other numbers")
