"""The options of a stack of transformer blocks, the same for every task; which of them do nothing, and its size.

Imports no torch. It has more than 500 lines because the options of all networks of ``vaak.nn`` are in this one file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from vaak.config.base import LARGEST_LENGTH, ExtensibleSection, ResumeClass, Section, open_type, option, users_options
from vaak.config.components import NETWORKS

FACTORS_END = 32
"""A ``d_ff`` below this is not a width but a multiple of ``d_model``."""
LARGEST_WIDTH = 1 << 20
"""The largest width of a layer that is taken for one."""
LINEAR = ("linear", "causal_linear")
"""The attention types that never form a score for each pair of tokens."""
STACK_ALIASES = {
    "hidden_size": "d_model",
    "hidden_dim": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "hidden_dropout_prob": "dropout",
    "dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""Other spellings of a stack's options, in the section that they stand in."""
SEES_LATER = "attention_type linear sees later tokens; a decoder takes causal_linear"


def block_option(description: str, default: Any, **about: Any) -> Any:
    """Return an ``option`` of Vaak's own blocks, which a network of the user's doesn't have."""
    return option(description, default, only_for=NETWORKS, **about)


class StackConfig(ExtensibleSection):
    """One stack of blocks: attention, feed-forward, norms and positions; or a network of the user's in its place.

    Raises ValueError where sizes don't divide, and where parts are asked for that exclude each other.
    """

    resume_class: ClassVar[ResumeClass | None] = "refused"
    key: ClassVar[str] = "model"
    own_types: ClassVar[tuple[str, ...]] = ("transformer",)
    given: ClassVar[tuple[str, ...]] = ("d_model", "causal", "dropout", "memory_width")
    by_whole_path: ClassVar[bool] = True

    type: Annotated[str, open_type(("transformer",))] = option(
        "The network between embeddings and heads; the options of your own class stand next to type.",
        "transformer",
    )
    d_model: int = option("Width of the residual stream.", 512, gt=0, le=LARGEST_WIDTH)
    num_layers: int = block_option("Number of blocks.", 6, gt=0, le=10_000)
    num_heads: int = block_option("Query heads of attention.", 8, gt=0, le=LARGEST_WIDTH)
    num_key_value_heads: int | None = block_option(
        "Key and value heads; null is num_heads.", None, gt=0, le=LARGEST_WIDTH
    )
    head_dim: int | None = block_option("Width of a head; null is d_model / num_heads.", None, gt=0, le=LARGEST_WIDTH)
    d_ff: int | None = block_option(
        "Width of the feed-forward layer; below 32, a multiple of d_model; null is 4 times d_model, for gated "
        "layers 8/3 times, rounded up to a multiple of 32.",
        None,
        gt=0,
        le=1 << 24,
    )
    dropout: float = option(
        "Dropout of embeddings and of each layer's output.", 0.1, ge=0, lt=1, resume="other numbers"
    )
    attention_dropout: float | None = block_option(
        "Dropout of attention weights; null is dropout.", None, ge=0, lt=1, resume="other numbers"
    )
    attention_type: Literal["softmax", "linear", "causal_linear", "local"] = block_option(
        "softmax; linear and causal_linear: Performer's FAVOR+; local: softmax over a window.", "softmax"
    )
    window: int = block_option(
        "local: number of tokens to each side that a token attends to; in a decoder, to the left only.",
        128,
        gt=0,
        le=LARGEST_LENGTH,
        resume="other numbers",
    )
    kernel_type: Literal["softmax", "relu"] = block_option(
        "Linear attention: the kernel that its features approximate.", "softmax"
    )
    num_features: int | None = block_option(
        "Linear attention: number of random features; null is d · ln d for a head of width d.",
        None,
        gt=0,
        le=LARGEST_WIDTH,
    )
    orthogonal_features: bool = block_option(
        "Linear attention: features in orthogonal blocks, not independent ones.", True
    )
    qk_norm: bool = block_option("RMSNorm on queries and keys of each head.", False)
    scale_scores: bool = block_option(
        "Scores of attention are divided by the root of a head's width; T5's are not.", True
    )
    feed_forward_type: Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "geglu_tanh"] = block_option(
        "The feed-forward layer; tanh is GPT-2's approximation.", "swiglu"
    )
    norm_type: Literal["layernorm", "rmsnorm", "scalenorm"] = block_option("The normalisation.", "rmsnorm")
    norm_placement: Literal["pre", "post", "sandwich"] = block_option(
        "Where the norm is: before each layer, after the sum, or before and after the layer.", "pre"
    )
    norm_eps: float = block_option(
        "Epsilon of the norms, added under the square root.", 1e-5, gt=0, resume="other numbers"
    )
    position_type: Literal[
        "rotary", "sinusoidal", "sinusoidal_halves", "learned", "alibi", "t5", "convolutional", "none"
    ] = block_option("How positions of tokens are encoded; sinusoidal_halves has all sines first.", "rotary")
    rope_theta: float = block_option(
        "Base of the rotary positions' wavelengths.", 10000.0, gt=0, resume="other numbers"
    )
    rope_scaling_type: Literal["linear", "ntk", "llama3", "yarn"] = block_option(
        "How rotary positions extend beyond the training length: all wavelengths alike, or the long ones more; "
        "llama3 and yarn leave the short ones unchanged.",
        "linear",
        resume="other numbers",
    )
    rope_scaling_factor: float = block_option(
        "Factor by which the length is extended; 1 has no effect.", 1.0, ge=1, resume="other numbers"
    )
    rope_scaling_bounds: tuple[float, float] | None = block_option(
        "llama3, yarn: pairs of dimensions that turn less often than the first within rope_original_length are "
        "slowed down by the whole factor, more often than the second not at all; null: 1 and 4 for llama3, 1 and "
        "32 for yarn.",
        None,
        resume="other numbers",
    )
    rope_original_length: int = block_option(
        "llama3, yarn: the length before it was extended, in tokens.",
        8192,
        gt=0,
        le=LARGEST_LENGTH,
        resume="other numbers",
    )
    bias: bool = block_option("Biases in the linear layers.", False)
    qkv_bias: bool = block_option("Biases of queries, keys and values alone, as in Qwen2.", False)
    options: dict[str, Any] = users_options()

    @property
    def is_causal(self) -> bool:
        """Whether tokens are known to see only those before them."""
        return False

    def explain_uncaptured(self, *, is_packed: bool) -> str | None:
        """Return why no CUDA graph of the stack can be captured; None if it can."""
        if self.position_type == "convolutional" and (is_packed or not self.is_causal):
            return "position_type is convolutional, for which the program reads where documents end"
        return None

    @property
    def is_own(self) -> bool:
        """Whether the network is of a class of the user's."""
        return self.is_users(self.type)

    @classmethod
    def with_preset(cls, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``values`` of a section over those of its preset's ``sizes`` that its network has."""
        is_own = cls.is_users(values.get("type", cls.own_types[0]))
        return {**{name: size for name, size in sizes.items() if not is_own or cls.reads(name)}, **values}

    @property
    def head_width(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def draws_features(self) -> bool:
        """Whether some layer has random features, which training may redraw."""
        return self.attention_type in LINEAR

    @field_validator("rope_scaling_bounds", mode="before")
    @classmethod
    def _bounds_are_a_tuple(cls, bounds: Any) -> Any:
        return _as_tuple(bounds)

    @model_validator(mode="after")
    def _options_have_names_of_their_own(self) -> StackConfig:
        for name in self.options if self.is_own else ():
            if name in STACK_ALIASES or self.reads(name):
                known = STACK_ALIASES.get(name, name)
                raise ValueError(f"options: {name} is Vaak's {known} here; give that option of the class another name")
        return self

    @model_validator(mode="after")
    def _sizes_divide(self) -> StackConfig:
        if self.is_own:
            return self
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads})")
        if self.position_type == "rotary" and self.head_width % 2:
            raise ValueError(f"the width of a head ({self.head_width}) must be even for rotary positions")
        if self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        bounds = self.rope_scaling_bounds
        if bounds is not None and not 0 < bounds[0] < bounds[1]:
            raise ValueError("rope_scaling_bounds must be two numbers above 0, the smaller one first")
        return self

    @model_validator(mode="after")
    def _positions_reach_attention(self) -> StackConfig:
        if self.attention_type in LINEAR and self.position_type in ("alibi", "t5"):
            raise ValueError(
                f"position_type {self.position_type} adds to the score of each pair of tokens, and attention_type "
                f"{self.attention_type} never forms one; expected rotary, sinusoidal, learned, convolutional or none"
            )
        return self


class MoeConfig(Section):
    """A mixture of experts: feed-forward layers, of which each token uses some.

    Sources: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"; Wang et al. 2024, arXiv:2408.15664 (the bias).
    """

    resume_class: ClassVar[ResumeClass | None] = "refused"

    num_experts: int = option("Feed-forward layers to choose from, in each block.", 8, gt=1, le=4096)
    top_k: int = option("Number of experts per token.", 2, gt=0, le=4096)
    num_shared: int = option(
        "Number of experts that all tokens use, as one layer of this many times the width.", 0, ge=0, le=64
    )
    d_ff: int | None = option(
        "Width of an expert; null is that of the feed-forward layer that it replaces.", None, gt=0, le=1 << 24
    )
    first_layer: int = option(
        "Blocks before this one, counted from 0, have a single feed-forward layer.", 0, ge=0, le=10_000
    )
    scores: Literal["sigmoid", "softmax"] = option(
        "The router's activation: sigmoid, as in DeepSeek-V3; softmax over all experts, as in Qwen3.", "sigmoid"
    )
    normalise: bool = option("Divide the weights of a token's experts by their sum.", True)
    scale: float = option("Factor applied to these weights.", 1.0, gt=0)
    balancing_bias: float = option(
        "Change of each expert's bias per step, which balances how often each is chosen; 0 disables the bias.",
        0.001,
        ge=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _chooses(self) -> MoeConfig:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k ({self.top_k}) must be at most num_experts ({self.num_experts})")
        return self


MIXTURE_UNCAPTURED = "the program reads how many tokens each expert of a mixture gets"


class TokenStackConfig(StackConfig):
    """A stack over tokens, whose feed-forward layers may be mixtures of experts."""

    moe: MoeConfig | None = block_option(
        "Mixture of experts instead of feed-forward layers: each token uses some of many.", None
    )

    def explain_uncaptured(self, *, is_packed: bool) -> str | None:
        return super().explain_uncaptured(is_packed=is_packed) if self.moe is None else MIXTURE_UNCAPTURED

    @property
    def mixture_layers(self) -> range:
        """The numbers of the blocks that have experts."""
        return range(self.num_layers if self.moe is None else self.moe.first_layer, self.num_layers)

    @model_validator(mode="after")
    def _some_layer_has_experts(self) -> Self:
        if self.moe is not None and not self.mixture_layers:
            raise ValueError(f"moe.first_layer ({self.moe.first_layer}) must be below num_layers ({self.num_layers})")
        return self


class ConvolutionalStackConfig(StackConfig):
    """A bidirectional stack, whose feed-forward layers may see a token or frame together with its neighbours."""

    feed_forward_kernel: int = block_option(
        "Tokens or frames that the feed-forward layer sees at once; odd. 1: each alone; 3: short phrases, as in a "
        "TextCNN; 9: as in FastSpeech 2, which soon learns how the spectrum changes within a phoneme.",
        1,
        gt=0,
        le=1001,
    )

    @model_validator(mode="after")
    def _has_a_middle(self) -> ConvolutionalStackConfig:
        if self.feed_forward_kernel % 2 == 0:
            raise ValueError(f"feed_forward_kernel ({self.feed_forward_kernel}) must be odd, so that it has a middle")
        return self


class ConformerConfig(StackConfig):
    """A stack whose blocks also convolve, and that reads features at a reduced frame rate."""

    own_types: ClassVar[tuple[str, ...]] = ("conformer",)

    type: Annotated[str, open_type(("conformer",))] = option(
        "The network after the first convolutions; the options of your own class stand next to type.",
        "conformer",
    )
    d_model: int = option("Width of the residual stream.", 144, gt=0, le=LARGEST_WIDTH)
    num_layers: int = block_option("Number of blocks.", 4, gt=0, le=10_000)
    num_heads: int = block_option("Query heads of attention.", 4, gt=0, le=LARGEST_WIDTH)
    attention_type: Literal["softmax", "local"] = block_option("softmax; local: softmax over a window.", "softmax")
    feed_forward_type: Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "geglu_tanh"] = block_option(
        "The two feed-forward layers; tanh is GPT-2's approximation.", "silu"
    )
    norm_type: Literal["layernorm", "rmsnorm", "scalenorm"] = block_option("The normalisation.", "layernorm")
    norm_placement: Literal["pre"] = block_option("Fixed: before each layer, and at the end of a block.", "pre")
    bias: bool = block_option("Biases in the linear layers.", True)
    kernel_size: int = block_option("Width of a convolution, in frames of the encoder; odd.", 15, gt=0, le=1001)
    subsampling: Literal[1, 2, 4, 8] = option("Frames of features for each frame of the encoder.", 4)
    streaming: bool = option(
        "Learn to read audio while it comes, in chunks, and as a whole: convolutions read earlier frames only, "
        "features are normalised by fixed numbers, and in half of the batches frames see no later chunk, of a drawn "
        "size.",
        False,
    )
    largest_chunk: int = option(
        "streaming: frames of the encoder in the largest chunk that is drawn.", 25, gt=0, le=10_000
    )
    left_frames: int = option(
        "streaming: frames of the encoder before a chunk that its frames see, where audio is read in chunks.",
        128,
        ge=0,
        le=1_000_000,
    )

    @model_validator(mode="after")
    def _can_stream(self) -> ConformerConfig:
        if self.streaming and (self.is_own or self.attention_type != "softmax"):
            raise ValueError("streaming: it needs type conformer and attention_type softmax")
        if self.streaming and self.position_type not in ("rotary", "none"):
            raise ValueError(f"streaming: position_type {self.position_type} counts from the beginning; use rotary")
        return self

    @model_validator(mode="after")
    def _kernel_has_a_middle(self) -> ConformerConfig:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size ({self.kernel_size}) must be odd, so that it has a middle")
        return self


class LoraConfig(Section):
    """Low-rank adaptation of frozen weights. Source: Hu et al. 2021, "LoRA"; Dettmers et al. 2023, "QLoRA" (nf4)."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    rank: int = option("Rank of the adapters.", 8, gt=0, le=LARGEST_WIDTH)
    alpha: float = option("An adapter's output is multiplied by alpha / rank.", 16.0, gt=0)
    dropout: float = option("Dropout before the adapters.", 0.0, ge=0, lt=1, resume="other numbers")
    targets: tuple[str, ...] = option(
        "Linear layers to adapt, by the end of their names.", ("query", "value"), min_length=1
    )
    rslora: bool = option(
        "Multiply the change by alpha / sqrt(rank) instead, so that high ranks learn, too. Source: Kalajdzievski 2023.",
        False,
    )
    dora: bool = option(
        "Train the magnitude of each row of a weight apart from its direction, to which alone the low-rank change "
        "applies. Source: Liu et al. 2024.",
        False,
    )
    base_dtype: Literal["fp32", "bf16", "nf4"] = option(
        "Type of the frozen weights of linear layers, except the output layer: bf16 takes half the memory, and "
        "training in bf16 computes the same numbers; nf4 (QLoRA, with double quantisation) takes an eighth, and "
        "rounds them to 4 bits.",
        "fp32",
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _targets_are_a_tuple(cls, targets: Any) -> Any:
        return _as_tuple(targets)

    @model_validator(mode="after")
    def _lengths_are_exact(self) -> Self:
        if self.dora and self.base_dtype != "fp32":
            raise ValueError(f"dora needs base_dtype: fp32, not {self.base_dtype}: lengths are those of exact weights")
        return self

    @property
    def scale(self) -> float:
        """The factor of the change of a weight."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def _as_tuple(value: Any) -> Any:
    """A list as a tuple: where a section was changed before its validation, it isn't JSON, whose lists would do."""
    return tuple(value) if isinstance(value, list) else value


def lora_option() -> Any:
    """``model.lora`` of a task whose own network it adapts."""
    return option(
        "Train low-rank adapters of the frozen weights that training starts from (pretrained, "
        "training.checkpoint.init_from); null: train all weights.",
        None,
    )


class DecoderConfig(TokenStackConfig):
    """A causal stack, which may attend to the output of an encoder."""

    cross_attention_type: Literal["softmax", "linear"] | None = block_option(
        "Type of cross-attention; null is linear where attention_type is causal_linear, else softmax.", None
    )

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def cross_type(self) -> str:
        """The type of cross-attention, with its null filled in."""
        return self.cross_attention_type or ("linear" if self.attention_type in LINEAR else "softmax")

    @property
    def draws_features(self) -> bool:
        return "linear" in (self.attention_type.removeprefix("causal_"), self.cross_type)

    @model_validator(mode="after")
    def _sees_no_later_token(self) -> DecoderConfig:
        if self.attention_type == "linear":
            raise ValueError(SEES_LATER)
        return self


class SingleStackConfig(TokenStackConfig):
    """One stack over tokens: a decoder scores the next token, an encoder the token at each place."""

    model_type: Literal["decoder", "encoder"] = option(
        "decoder: sees no later token; encoder: sees both sides.", "decoder"
    )
    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    tie_embeddings: bool = option("Input and output embeddings are one matrix.", True)

    @model_validator(mode="after")
    def _a_decoder_sees_no_later_token(self) -> SingleStackConfig:
        if self.model_type == "decoder" and self.attention_type == "linear":
            raise ValueError(SEES_LATER)
        return self


class EncoderDecoderConfig(Section):
    """A stack that reads the source, and one that writes the target and looks at the first."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    model_type: Literal["encoder_decoder"] = option(
        "Fixed: only this type has a source and a target.", "encoder_decoder"
    )
    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    encoder: TokenStackConfig = option("The stack that reads the source.", TokenStackConfig())
    decoder: DecoderConfig = option("The stack that writes the target.", DecoderConfig())
    tie_embeddings: bool = option("Input and output embeddings of the target are one matrix.", True)
    scale_outputs: bool = option("Divide outputs by the root of d_model before scoring, as in the first T5.", False)
    output_bias: bool = option("A bias for the score of each token, as in Marian.", False)
    share_embeddings: bool = option(
        "Use one embedding for source and target, if their tokenizer and width are the same.", True
    )

    copy_source: bool = option(
        "Tokens may also be copied from the source (pointer-generator); requires one tokenizer for both sides.", False
    )

    @property
    def draws_features(self) -> bool:
        """Whether some layer has random features, which training may redraw."""
        return self.encoder.draws_features or self.decoder.draws_features


def stack_parameters(stack: StackConfig, memory_width: int | None = None) -> int:
    """The parameters of a stack's matrices; with ``memory_width``, its blocks also attend to vectors of that width.

    0 for a network of the user's, which only making it tells.
    """
    if stack.is_own:
        return 0
    width, gated = stack.d_model, stack.feed_forward_type in ("swiglu", "geglu", "geglu_tanh")
    key_width = (stack.num_key_value_heads or stack.num_heads) * stack.head_width
    inner = stack.d_ff or (8 * width // 3 if gated else 4 * width)
    # a small d_ff is a multiple of d_model (see inner_width)
    inner = inner * width if stack.d_ff and inner < FACTORS_END else inner
    query_width = stack.num_heads * stack.head_width
    attention = 2 * width * (query_width + key_width)
    crossing = 0 if memory_width is None else 2 * width * query_width + 2 * memory_width * key_width
    kernel = stack.feed_forward_kernel if isinstance(stack, ConvolutionalStackConfig) else 1
    feed_forward = ((2 if gated else 1) * kernel + 1) * width * inner
    if isinstance(stack, ConformerConfig):
        return stack.num_layers * (attention + 2 * feed_forward + 3 * width**2 + stack.kernel_size * width)
    total = stack.num_layers * (attention + crossing + feed_forward)
    moe = stack.moe if isinstance(stack, TokenStackConfig) else None
    if isinstance(stack, TokenStackConfig) and moe is not None:
        expert = (3 if gated else 2) * width * (moe.d_ff or inner)
        experts = (moe.num_experts + moe.num_shared) * expert + width * moe.num_experts
        total += len(stack.mixture_layers) * (experts - feed_forward)
    return total
