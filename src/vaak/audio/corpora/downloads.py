"""The readers of corpora as downloaded, by type."""

from __future__ import annotations

from vaak.audio.corpora.ami import AmiReader
from vaak.audio.corpora.archives import ParquetReader, SharReader, WebDatasetReader
from vaak.audio.corpora.kaldi import EspnetReader, KaldiReader
from vaak.audio.corpora.layouts import (
    CommonVoiceReader,
    FleursReader,
    LayoutReader,
    LibriSpeechReader,
    NemoReader,
    VoxPopuliReader,
)
from vaak.audio.corpora.transcripts import TranscriptsReader

READERS: dict[str, type[LayoutReader]] = {
    "commonvoice": CommonVoiceReader,
    "fleurs": FleursReader,
    "librispeech": LibriSpeechReader,
    "voxpopuli": VoxPopuliReader,
    "nemo": NemoReader,
    "kaldi": KaldiReader,
    "espnet": EspnetReader,
    "ami": AmiReader,
    "webdataset": WebDatasetReader,
    "shar": SharReader,
    "parquet": ParquetReader,
    "transcripts": TranscriptsReader,
}
