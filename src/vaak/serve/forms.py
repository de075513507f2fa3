"""The requests and answers of the endpoints, in the forms of OpenAI's, as pydantic has them; /openapi.json shows them.

A field that isn't here is refused, so that nothing which was asked for is silently left out. Fields of OpenAI's that
aren't supported are here all the same: clients send them with values that ask for nothing, and others are told why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import File, UploadFile
from fastapi import Form as MultipartForm
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

ModelName = Annotated[
    str | None, Field(description="The model's name (GET /v1/models); may be left out where only one can answer.")
]
ModelField = Annotated[str | None, MultipartForm(description="The model's name; optional where only one can answer.")]
Audio = Annotated[UploadFile, File(description="A recording; the documentation lists the formats.")]
MOST_STOPS, MOST_STOP_CHARACTERS = 16, 256
"""Texts that end one text, and their lengths: all of them are looked for after each token."""


def refuse_tokens(value: Any) -> Any:
    """Raise ValueError for tokens in place of texts: those of another tokenizer would be read as something else."""
    if isinstance(value, list) and value and all(isinstance(one, int | list) for one in value):
        raise ValueError(
            "expected a text, or several; tokens aren't read (LangChain: check_embedding_ctx_length=False)"
        )
    return value


def name_prompts(value: Any, read: Callable[[Any], Any]) -> Any:
    """Raise one ValueError for what isn't a prompt, instead of one for each type that it may have."""
    try:
        return read(value)
    except ValidationError:
        raise ValueError("expected a text, tokens, a list of texts, or a list of lists of tokens") from None


def limit_stops(stops: str | list[str] | None) -> str | list[str] | None:
    """Raise ValueError for too many texts to stop at, or too long ones."""
    several = [stops] if isinstance(stops, str) else stops or []
    if not all(several):
        raise ValueError("an empty text is in every text; leave it out")
    if len(several) > MOST_STOPS or any(len(one) > MOST_STOP_CHARACTERS for one in several):
        raise ValueError(f"expected at most {MOST_STOPS} texts of at most {MOST_STOP_CHARACTERS} characters")
    return stops


Several = str | list[str]
Texts = Annotated[Several, BeforeValidator(refuse_tokens)]
Prompts = Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(name_prompts)]
"""Of one, or of several; numbers are tokens."""
Truncation = Annotated[
    Literal["auto", "disabled"] | None,
    Field(description="With auto, a text longer than the model reads is cut; otherwise it is an error."),
]
Seed = Annotated[int | None, Field(ge=-(2**63), lt=2**63)]


def nullable(default: Any, **schema: Any) -> Any:
    """Return what makes null the default of a field, as in OpenAI's API; ``schema`` is that of its other values."""
    either = {"anyOf": [schema, {"type": "null"}], "default": default}
    return BeforeValidator(lambda value: default if value is None else value), WithJsonSchema(either)


def unsupported(reason: str, *harmless: Any) -> Any:
    """Return what makes a field of OpenAI's one that isn't supported, for a ``reason``.

    Null and the ``harmless`` values are taken: they ask for what happens anyway.
    """
    allowed = (None, *harmless)

    def check(value: Any) -> Any:
        # To Python, 1 is true.
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise ValueError(f"it isn't supported: {reason}")
        return value

    written = ", ".join(map(str, harmless))
    about = f"Only {written}: {reason}." if harmless else f"Not supported: {reason}."
    return BeforeValidator(check), WithJsonSchema({"enum": [*harmless, None]}), Field(description=about)


MOST_TOP = 20
"""Tokens at each place of a text whose log-probabilities can be asked for."""
MOST_HYPOTHESES = 256
"""Translations of one text that are kept or drawn: each takes as much memory as a text."""


class Form(BaseModel):
    """A request or an answer. Its fields have the types that /openapi.json says: "3" and true aren't numbers."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), strict=True)

    @model_validator(mode="before")
    @classmethod
    def _read_whole_numbers(cls, value: Any) -> Any:
        """To JSON, 3.0 is a whole number like 3."""
        if not isinstance(value, dict):
            return value
        return {name: int(one) if isinstance(one, float) and one.is_integer() else one for name, one in value.items()}


class ErrorAbout(Form):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Form):
    """Any error."""

    error: ErrorAbout


class ModelAbout(Form):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str
    endpoints: list[str]


class ModelList(Form):
    object: Literal["list"] = "list"
    data: list[ModelAbout]


class Health(Form):
    status: str


class PredictRequest(Form):
    model: ModelName = None
    inputs: Annotated[list[Any], Field(min_length=1, description="Inputs of the task: texts, or what it reads.")]


class PredictAnswer(Form):
    model: str
    predictions: Annotated[list[Any], Field(description="The output of vaak predict --json for each input.")]


class ClassifyRequest(Form):
    model: ModelName = None
    input: Annotated[Texts, Field(description="A text, or several.")]


class Classified(Form):
    index: int
    text: str
    labels: dict[str, list[str]]
    probabilities: dict[str, dict[str, float]]


class ClassifyAnswer(Form):
    object: Literal["list"] = "list"
    model: str
    data: list[Classified]


class EmbeddingsRequest(Form):
    model: ModelName = None
    input: Annotated[Texts, Field(description="A text, or several; an empty text is refused.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Only the number that the model has.")] = None
    truncation: Truncation = None
    user: Annotated[str | None, Field(description="Not read.")] = None


class Embedding(Form):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Annotated[list[float] | str, Field(description="With base64, 32-bit little-endian floats.")]


class EmbeddingsUsage(Form):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(Form):
    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: EmbeddingsUsage
    warnings: list[str] | None = None


class TranslateRequest(Form):
    """Options that are not given come from the run (data.decoding)."""

    model: ModelName = None
    input: Annotated[Texts, Field(description="A text, or several.")]
    method: Literal["greedy", "beam", "sampling", "mbr"] | None = None
    max_new_tokens: int | None = None
    beam_size: Annotated[int | None, Field(le=MOST_HYPOTHESES)] = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    n_best: Annotated[int | None, Field(le=MOST_HYPOTHESES)] = None
    num_samples: Annotated[int | None, Field(le=MOST_HYPOTHESES)] = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: Seed = None


class Candidate(Form):
    text: str
    score: float
    ended: bool


class Translated(Form):
    index: int
    source: str
    text: str
    translations: list[Candidate]


class TranslateAnswer(Form):
    object: Literal["list"] = "list"
    model: str
    data: list[Translated]


class SpeechRequest(Form):
    model: ModelName = None
    input: Annotated[str, Field(min_length=1, description="The text to speak; may be SSML.")]
    voice: Annotated[str | None, Field(description="A speaker of the model; by default its first.")] = None
    speed: Annotated[float | None, Field(ge=0.1, le=10)] = None
    response_format: Literal["wav", "flac", "mp3", "opus", "pcm"] = "mp3"
    stream_format: Literal["audio"] = "audio"
    instructions: Annotated[Any, *unsupported("a voice can't be instructed; SSML has rate and pitch", "")] = None


class StreamOptions(Form):
    include_usage: Annotated[bool, *nullable(False, type="boolean")] = False
    include_obfuscation: Annotated[Any, *unsupported("nothing is added to what is streamed", False)] = None


class WritingRequest(Form):
    """The fields that completions and chats have in common. Defaults are those of vaak generate."""

    model: ModelName = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: Annotated[Seed, Field(description="The same seed gives the same text; 0 if it isn't given.")] = None
    n: Annotated[int, Field(ge=1), *nullable(1, type="integer", minimum=1)] = 1
    stop: Annotated[
        Several | None, AfterValidator(limit_stops), Field(description="The text ends before the first of these.")
    ] = None
    stream: Annotated[bool, *nullable(False, type="boolean")] = False
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, Field(description="Not read.")] = None
    truncation: Truncation = None
    frequency_penalty: Annotated[Any, *unsupported("send repetition_penalty", 0)] = None
    presence_penalty: Annotated[Any, *unsupported("send repetition_penalty", 0)] = None
    logit_bias: Annotated[Any, *unsupported("tokens have the probabilities of the model", {})] = None


class CompletionRequest(WritingRequest):
    prompt: Annotated[
        Prompts,
        Field(description="A text or a list of texts; or the token ids of one, or lists of those, read unchanged."),
    ]
    echo: Annotated[bool, Field(description="The text begins with the prompt."), *nullable(False, type="boolean")] = (
        False
    )
    logprobs: Annotated[
        int | None,
        Field(ge=0, le=MOST_TOP, description="Log-probabilities of tokens, and of this many alternatives at each."),
    ] = None
    best_of: Annotated[int | None, Field(ge=1, description="Only n: all texts that are written are returned.")] = None
    suffix: Annotated[Any, *unsupported("models continue a text", "")] = None


class ChatRequest(WritingRequest):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: Annotated[bool | None, Field(description="Log-probabilities of the answer's tokens.")] = None
    top_logprobs: Annotated[
        int | None, Field(ge=0, le=MOST_TOP, description="With logprobs: the number of tokens listed at each place.")
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, Field(description="The chat template writes them.")] = None
    tool_choice: Annotated[
        Literal["auto", "none"] | None, Field(description="With none, the model isn't told of the tools.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Field(description="Further variables for the chat template, such as enable_thinking.")
    ] = None
    prompt_cache_key: Annotated[str | None, Field(description="Not read.")] = None
    safety_identifier: Annotated[str | None, Field(description="Not read.")] = None
    response_format: Annotated[Any, *unsupported("no grammar constrains a text", {"type": "text"})] = None
    parallel_tool_calls: Annotated[Any, *unsupported("calls are text of the answer", True)] = None
    functions: Annotated[Any, *unsupported("send them as tools", [])] = None
    function_call: Annotated[Any, *unsupported("send tool_choice", "none", "auto")] = None
    modalities: Annotated[Any, *unsupported("an answer is text", ["text"])] = None
    audio: Annotated[Any, *unsupported("an answer is text")] = None
    prediction: Annotated[Any, *unsupported("an answer is written token by token")] = None
    reasoning_effort: Annotated[Any, *unsupported("send what the template knows in chat_template_kwargs")] = None
    verbosity: Annotated[Any, *unsupported("ask for it in a message", "medium")] = None
    service_tier: Annotated[Any, *unsupported("all requests are served alike", "auto", "default")] = None
    store: Annotated[Any, *unsupported("nothing is kept", False)] = None
    metadata: Annotated[Any, *unsupported("nothing is kept", {})] = None
    moderation: Annotated[Any, *unsupported("answers aren't rated")] = None
    web_search_options: Annotated[Any, *unsupported("nothing is searched")] = None
    prompt_cache_options: Annotated[Any, *unsupported("no prompt is cached")] = None
    prompt_cache_retention: Annotated[Any, *unsupported("no prompt is cached")] = None


class Usage(Form):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


FinishReason = Literal["stop", "length"]


class CompletionLogprobs(Form):
    """Log-probabilities of the model itself, before temperature and other options of sampling."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: Annotated[list[int], Field(description="Where each token begins in the new text.")]


class CompletionChoice(Form):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class Completion(Form):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    warnings: list[str] | None = None


class ChatMessage(Form):
    role: Literal["assistant"] = "assistant"
    content: str


class TokenLogprob(Form):
    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Form):
    """Log-probabilities of the model itself, before temperature and other options of sampling."""

    content: list[ChosenTokenLogprob]
    refusal: None = None


class ChatChoice(Form):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Form):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    warnings: list[str] | None = None


class SpokenWord(Form):
    word: str
    start: float
    end: float


class SpokenSegment(Form):
    id: int
    start: float
    end: float
    text: str
    language: str | None = None


class DiarizedTurn(Form):
    type: Literal["transcript.text.segment"]
    id: str
    start: float
    end: float
    text: str
    speaker: str


class Transcription(Form):
    """response_format json has the text alone, with include[]=logprobs also the log-probabilities of its tokens."""

    text: str
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: Annotated[
        list[SpokenSegment] | list[DiarizedTurn] | None, Field(description="With diarized_json, turns of speakers.")
    ] = None
    words: list[SpokenWord] | None = None
    logprobs: list[TokenLogprob] | None = None


class DiarizedSegment(Form):
    start: float
    end: float
    speaker: str


class EnrolledSpeaker(Form):
    speaker: str
    nearest: str
    distance: float
    named: bool


class Diarization(Form):
    model: str
    duration: float
    segments: list[DiarizedSegment]
    at_ceiling: bool
    enrolled: Annotated[
        list[EnrolledSpeaker] | None, Field(description="The known speaker that is nearest to each one.")
    ] = None
