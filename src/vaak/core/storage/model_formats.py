"""Recognise the files of a pretrained model by their first bytes and their names, without executing them.

transformers     model.safetensors (or shards and their index) and config.json: the one form that everything reads
readable         GGUF and OpenAI's checkpoints of Whisper, which are converted (``vaak.tasks.conversion``);
                 segmentation networks of pyannote.audio, which task diarization reads
all others       are named, with what makes the form that is read
"""

from __future__ import annotations

import json
import pickletools
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vaak.core.storage.gguf_header import name_layers, read_gguf_header

TRANSFORMERS, GGUF, WHISPER_PT, PYANNOTE = "transformers", "gguf", "openai-whisper", "pyannote"
WHOLE_MODELS = (GGUF, WHISPER_PT, PYANNOTE)
"""Single files that are a whole model, and are read."""
SAFETENSORS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
SHARDS = "model-*-of-*.safetensors"
NESTED = ("*", "snapshots/*", "models--*/snapshots/*")
"""Folders in which a model may be: one of its own, and those of the Hub's cache."""
GGUF_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
POINTER = b"version https://git-lfs.github.com/spec"
LARGEST_PICKLE, LARGEST_POINTER = 64 << 20, 1024
"""Bytes of a pickle's opcodes that are looked through, without the tensors, which are separate files."""
FROZEN_WEIGHTS = "frozen.safetensors"
"""The weights of a checkpoint of Vaak's that no optimizer trains; next to the others."""
_OF_ADAPTER, _BASE_OF_ADAPTER = re.compile(r"\.lora_[ABab]\b"), re.compile(r"\.base(_layer)?$")
LARGEST_HEADER = 100 << 20
"""Bytes of a safetensors header, at most, as its own readers have it."""
TO_HF = "save it in transformers by model.save_pretrained(FOLDER), with its tokenizer"
CONVERTED = "give the folder that it was converted from, or that model's name on the Hugging Face Hub"


@dataclass(frozen=True)
class ModelFormat:
    """The content of a path: ``what`` completes "PATH …", ``remedy`` says what to do where it isn't read.

    ``name`` is short, as "ctranslate2"; ``file`` holds the weights, where it is a single one.
    """

    name: str
    what: str
    remedy: str = ""
    file: Path | None = None

    def describe(self, path: Path) -> str:
        """Return one line that says what the path is and what to do."""
        return f"{path} {self.what}{f'; {self.remedy}' if self.remedy else ''}"


def recognise(path: Path) -> ModelFormat:
    """Return the format of the pretrained model in an existing file or folder.

    Raises OSError if it can't be read.
    """
    return _recognise_folder(path) if path.is_dir() else _recognise_file(path)


def list_weights(folder: Path) -> list[Path]:
    """Return the files of a folder's weights, in the order of their names: one, or the shards that its index names.

    Other forms of the same weights, such as model.fp16.safetensors, aren't among them.
    """
    if (folder / SAFETENSORS).is_file():
        return [folder / SAFETENSORS]
    named = _read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    # Only files of the folder itself: an index may name any path.
    return [folder / name for name in named or () if Path(name).name == name]


def count_stored_parameters(place: Path | str) -> int:
    """Return how many parameters a model that is read has, by headers alone; 0 where there is none, or not all of it.

    Read are a folder's safetensors, a GGUF, and OpenAI's Whispers. Tensors that are tied are stored, and counted, once.
    """
    path = Path(place).expanduser()
    try:
        found = recognise(path) if path.exists() else None
        if found is None:
            return 0
        if found.name == TRANSFORMERS:
            return sum(map(_count_in_safetensors, list_weights(path)))
        if found.name == GGUF and found.file is not None:
            return sum(map(_count_in_gguf, list_gguf_parts(found.file)))
        if found.name == WHISPER_PT and found.file is not None:
            return _count_in_pickle(_read_pickle(found.file) or b"")
        return 0
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, struct.error):
        # Who loads it says what is wrong with it.
        return 0


def list_stored_matrices(folder: Path) -> list[str]:
    """Return the names of modules with a matrix in a folder's safetensors, by headers alone; none if unreadable."""
    try:
        headers = [_read_header(path) for path in list_weights(folder)]
        return [
            name.removesuffix(".weight")
            for header in headers
            for name, about in header.items()
            if name.endswith(".weight") and len(about["shape"]) == 2
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def list_checkpoint_matrices(folder: Path) -> list[str]:
    """Return the same of a checkpoint of Vaak's, its modules named as without low-rank adapters.

    None if it isn't whole: frozen weights may be those of another file.
    """
    frozen = folder / FROZEN_WEIGHTS
    try:
        listed = json.loads((folder / "MANIFEST.json").read_bytes())["files"]
        if FROZEN_WEIGHTS in listed and not frozen.is_file():
            return []
        headers = [_read_header(path) for path in (folder / SAFETENSORS, frozen) if path.is_file()]
        names = [
            name.removesuffix(".codes").removesuffix(".weight")
            for header in headers
            for name, about in header.items()
            if name.endswith(".codes") or (name.endswith(".weight") and len(about["shape"]) == 2)
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
    return [_BASE_OF_ADAPTER.sub("", name) for name in names if not _OF_ADAPTER.search(name)]


def _count_in_safetensors(path: Path) -> int:
    return sum(prod(about["shape"]) for about in _read_header(path).values())


def _read_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: each tensor's type, shape and place."""
    with open(path, "rb") as file:
        header: dict[str, Any] = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)))
    header.pop("__metadata__", None)
    return header


def _count_in_pickle(content: bytes) -> int:
    """Return the numbers of all storages that torch's pickle refers to; nothing of it is executed.

    Each is referred to by the tuple ("storage", type, key, device, size) and the opcode BINPERSID; tied tensors have
    one storage.

    Source: torch.serialization, ``persistent_id`` of ``_save``.
    """
    sizes, memo, items = dict[Any, int](), dict[Any, Any](), list[Any]()
    last: Any = None
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "MARK":
            items = []
        elif opcode.name.endswith("PUT"):
            memo[argument] = last
        elif opcode.name == "BINPERSID":
            _, _, key, _, sizes[key] = items
        elif opcode.name.endswith("GET"):
            items.append(memo[argument])
        elif argument is not None:
            items.append(last := argument)
    return sum(sizes.values())


def _count_in_gguf(path: Path) -> int:
    """Return the values of the tensors that a GGUF's header lists; raises as ``read_gguf_header`` does."""
    return sum(prod(shape) for _, shape in read_gguf_header(path)[1])


def list_gguf_layers(file: Path) -> list[str]:
    """Return transformers' names of the linear layers of a GGUF, in parts or not, by headers alone.

    None if a part can't be read, or has a layer whose name isn't known.
    """
    try:
        return name_layers([read_gguf_header(part) for part in list_gguf_parts(file)])
    except (OSError, ValueError, KeyError, OverflowError, struct.error):
        return []


# Folders


def _recognise_folder(folder: Path) -> ModelFormat:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())
    checks: tuple[Callable[[Path, Sequence[Path]], ModelFormat | None], ...] = (
        _find_broken_link,
        _find_safetensors,
        _find_pointer,
        _find_adapter,
        _find_ctranslate2,
        _find_single_file,
        _find_by_name,
    )
    return next((found for check in checks if (found := check(folder, files)) is not None), _nothing(folder, files))


def _find_broken_link(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    """Weights and configurations in the Hub's cache are links, to files that may have been deleted."""
    for path in sorted(folder.iterdir()):
        is_read = path.name in (SAFETENSORS, INDEX, CONFIG) or path.match(SHARDS)
        if is_read and path.is_symlink() and not path.exists():
            return ModelFormat("incomplete", f"has {path.name}, a link to a file that has gone", "download it again")
    return None


def _find_pointer(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    for path in files:
        if path.stat().st_size <= LARGEST_POINTER and _begins_with(path, POINTER):
            return _pointer(path, f"has {path.name}")
    return None


def _pointer(path: Path, how: str) -> ModelFormat:
    said = f"{how}, which is a pointer of Git LFS in place of the file: the download lacks its content"
    return ModelFormat("git-lfs", said, "run git lfs pull in the folder", path)


def _find_safetensors(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    index = folder / INDEX
    if not index.is_file() and not (folder / SAFETENSORS).is_file():
        return _find_lone_shards(files)
    # Only files that are read count: someone who fetched these weights alone has pointers for their other forms.
    weights = [path for path in files if path.name == SAFETENSORS] or [path for path in files if path.match(SHARDS)]
    read = [*weights, *(path for path in files if path.suffix in (".json", ".model", ".txt"))]
    if (pointer := _find_pointer(folder, read)) is not None:
        return pointer
    if index.is_file() and not (folder / SAFETENSORS).is_file():
        named = _read_index(index)
        if named is None:
            return ModelFormat("damaged", f"has a damaged {INDEX}", "download it again")
        elsewhere = [name for name in named if Path(name).name != name]
        if elsewhere:
            said = f"names {elsewhere[0]} in its {INDEX}, which isn't a file of the folder"
            return ModelFormat("damaged", said, "save the model again, with its weights in one folder")
        missing = [name for name in named if not (folder / name).is_file()]
        if missing:
            said = f"lacks {len(missing)} of its {len(named)} files of weights: {', '.join(missing[:3])}"
            return ModelFormat("incomplete", said, "download the rest")
    if not (folder / CONFIG).is_file():
        return ModelFormat("incomplete", f"has weights, but no {CONFIG}", "add the one that the model came with")
    if not _is_object(folder / CONFIG):
        return ModelFormat("damaged", f"has a damaged {CONFIG}, which isn't JSON", "download it again")
    return ModelFormat(TRANSFORMERS, "is a model of transformers")


def _read_index(path: Path) -> list[str] | None:
    """Return the names of the shards; None if the index is damaged."""
    try:
        found = json.loads(path.read_bytes())["weight_map"]
        return sorted({str(name) for name in found.values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def _find_lone_shards(files: Sequence[Path]) -> ModelFormat | None:
    shards = [path for path in files if path.match(SHARDS)]
    said = f"has {len(shards)} files of weights, but no {INDEX}, which says which file has which tensors"
    return ModelFormat("incomplete", said, "download the rest") if shards else None


def _find_adapter(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    if not (folder / "adapter_config.json").is_file():
        return None
    try:
        base = json.loads((folder / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    said = f"is an adapter of peft without its base{f', {base}' if isinstance(base, str) else ''}"
    remedy = "merge the two by peft's merge_and_unload() and save_pretrained(FOLDER)"
    return ModelFormat("peft", said, f"give the base as the pretrained model, or {remedy}")


def _find_ctranslate2(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    names = {path.name for path in files}
    vocabulary = any(name.startswith(("vocabulary.", "shared_vocabulary.", "source_vocabulary")) for name in names)
    if "model.bin" not in names or not vocabulary:
        return None
    return ModelFormat("ctranslate2", "is a model of CTranslate2 (faster-whisper), which only runs", CONVERTED)


def _find_single_file(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    """Return a folder around one file that is a model by itself."""
    found = [(path, _recognise_file(path)) for path in files if path.suffix in (".gguf", ".pt", ".bin", ".nemo")]
    single = [(path, one) for path, one in found if one.name in (*WHOLE_MODELS, "ggml", "nemo")]
    models = {list_gguf_parts(path)[0]: (path, one) for path, one in reversed(single)}
    single = sorted(models.values(), key=lambda found: found[0])
    if not single:
        return None
    path, one = single[0]
    if one.name in WHOLE_MODELS and len(single) > 1:
        names = ", ".join(other.name for other, _ in single[:4])
        return ModelFormat("several", f"has {len(single)} models: {names}", "name one of these files", None)
    return ModelFormat(one.name, f"has {path.name}, which {one.what}", one.remedy, path)


def list_gguf_parts(file: Path) -> list[Path]:
    """Return the files of the model that a GGUF file is one part of, in order; the file alone, if it is whole.

    >>> [path.name for path in list_gguf_parts(Path("m-00002-of-00003.gguf"))]
    ['m-00001-of-00003.gguf', 'm-00002-of-00003.gguf', 'm-00003-of-00003.gguf']
    """
    match = GGUF_PART.fullmatch(file.name)
    if match is None or not int(match[3]):
        return [file]
    name, number = match[1], match[3]
    return [file.with_name(f"{name}-{part:05d}-of-{number}.gguf") for part in range(1, int(number) + 1)]


@dataclass(frozen=True)
class _Named:
    """Files of a format by their patterns in a folder."""

    name: str
    patterns: tuple[str, ...]
    what: str
    remedy: str


_NAMED = (
    _Named(
        "original",
        ("consolidated*.safetensors", "consolidated*.pth"),
        "has its weights as their authors' own code reads them ({file})",
        "give the model of the same name that is published for transformers, with config.json and model.safetensors",
    ),
    _Named(
        "pickle",
        ("pytorch_model*.bin", "*.pth", "*.pt", "*.ckpt"),
        "has its weights as pickles ({file}), which can run code",
        f"{TO_HF}: that writes {SAFETENSORS}",
    ),
    _Named("tensorflow", ("tf_model*.h5", "saved_model.pb", "*.ckpt.index"), "is a model of TensorFlow ({file})", ""),
    _Named("flax", ("flax_model*.msgpack",), "is a model of Flax ({file})", ""),
    _Named("onnx", ("*.onnx", "onnx/*.onnx"), "is a model of ONNX ({file}), which only runs", CONVERTED),
    _Named("openvino", ("*openvino*.xml",), "is a model of OpenVINO ({file}), which only runs", CONVERTED),
    _Named(
        "coreml",
        ("*.mlpackage", "*.mlmodelc", "*.mlmodel"),
        "is a model of Core ML ({file}), which only runs",
        CONVERTED,
    ),
    _Named("mlx", ("weights.npz", "weights*.safetensors"), "is a model of MLX ({file}), which only runs", CONVERTED),
    _Named("other", ("*.safetensors",), f"has {{file}}, but no {SAFETENSORS}", TO_HF),
)
_LOADED_BY = {"tensorflow": "from_tf=True", "flax": "from_flax=True"}


def _find_by_name(folder: Path, files: Sequence[Path]) -> ModelFormat | None:
    for one in _NAMED:
        found = sorted(path for pattern in one.patterns for path in folder.glob(pattern))
        if found:
            how = _LOADED_BY.get(one.name)
            remedy = one.remedy or f"load it in transformers 4 by from_pretrained(…, {how}), and {TO_HF}"
            return ModelFormat(one.name, one.what.format(file=found[0].relative_to(folder)), remedy)
    return None


def _nothing(folder: Path, files: Sequence[Path]) -> ModelFormat:
    expected = f"expected {SAFETENSORS} and {CONFIG}"
    found = (
        path.parent.relative_to(folder) for pattern in NESTED for path in sorted(folder.glob(f"{pattern}/{CONFIG}"))
    )
    nested = [name for name in found if _find_safetensors(folder / name, ()) is not None]
    if nested:
        return ModelFormat("nested", f"has no weights itself, but {nested[0]} in it has", f"give {folder / nested[0]}")
    return ModelFormat("empty", f"has no weights; {expected}" if files else f"is empty and has no weights; {expected}")


# Files


def _recognise_file(path: Path) -> ModelFormat:
    with open(path, "rb") as file:
        first = file.read(64)
    if first.startswith(POINTER):
        return _pointer(path, "is there")
    if first.startswith(b"GGUF"):
        return ModelFormat(GGUF, "is a model of llama.cpp (GGUF)", "GGUF is read by task lm", path)
    if first[:4] in (b"lmgg", b"fmgg", b"tjgg"):
        whisper = "give OpenAI's .pt, from which it was made, or openai/whisper-SIZE of the Hugging Face Hub"
        return ModelFormat(
            "ggml", "is a model of whisper.cpp or an old llama.cpp (ggml), which only runs", whisper, path
        )
    if zipfile.is_zipfile(path):
        return _recognise_zip(path)
    if path.suffix == ".nemo" or (tarfile.is_tarfile(path) and _has_member(path, "model_config.yaml")):
        remedy = "give a model of the same kind that is published for transformers"
        return ModelFormat("nemo", "is a model of NeMo (.nemo)", remedy, path)
    return _recognise_by_suffix(path)


def _recognise_zip(path: Path) -> ModelFormat:
    """torch saves a zip with data.pkl and a file for each tensor; the pickle is only searched for names."""
    content = _read_pickle(path)
    if content is None:
        return ModelFormat("archive", "is an archive", "unpack it, and give the folder", path)
    if all(name in content for name in (b"dims", b"n_mels", b"model_state_dict")):
        said = "is a Whisper as OpenAI saves it (.pt)"
        return ModelFormat(WHISPER_PT, said, "it is read by task asr, architecture whisper", path)
    if b"PyanNet" in content and b"pyannote.audio" in content:
        said = "is a segmentation network of pyannote.audio"
        return ModelFormat(PYANNOTE, said, "it is read by task diarization (model.base)", path)
    return ModelFormat("pickle", "has its weights as a pickle, which can run code", f"{TO_HF}", path)


def _read_pickle(path: Path) -> bytes | None:
    """Return the opcodes of what torch saved, empty if they are too many; None if it isn't torch's."""
    with zipfile.ZipFile(path) as archive:
        pickles = [one for one in archive.infolist() if one.filename.endswith("/data.pkl")]
        if not pickles:
            return None
        return archive.read(pickles[0]) if pickles[0].file_size <= LARGEST_PICKLE else b""


def _has_member(path: Path, name: str) -> bool:
    with tarfile.open(path) as archive:
        return any(member.name.rpartition("/")[2] == name for member in archive)


_BY_SUFFIX = {
    ".safetensors": ("safetensors", "is a file of weights", f"give its folder, with {CONFIG} and the tokenizer"),
    ".onnx": ("onnx", "is a model of ONNX, which only runs", "give the folder that it was converted from"),
    ".h5": ("tensorflow", "is a model of TensorFlow or Keras", f"load it in transformers 4 with from_tf=True, {TO_HF}"),
    ".msgpack": ("flax", "is a model of Flax", f"load it in transformers 4 with from_flax=True, and {TO_HF}"),
    ".tflite": ("tflite", "is a model of TensorFlow Lite, which only runs", "give what it was converted from"),
}


def _recognise_by_suffix(path: Path) -> ModelFormat:
    if path.suffix in _BY_SUFFIX:
        return ModelFormat(*_BY_SUFFIX[path.suffix], path)
    if tarfile.is_tarfile(path):
        return ModelFormat("archive", "is an archive", "unpack it, and give the folder", path)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        return ModelFormat("pickle", "has its weights as a pickle, which can run code", TO_HF, path)
    return ModelFormat(
        "unknown", "is a file of an unknown kind", f"give a folder with {SAFETENSORS} and {CONFIG}", path
    )


def _begins_with(path: Path, first: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(first)) == first
