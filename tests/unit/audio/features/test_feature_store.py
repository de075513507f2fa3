"""Stored features: what goes in comes out, old ones are never read, and an interruption costs what it interrupted."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import contents
from processes import PRELOADED
from toy_recordings import OneBreaksWhileAnotherIsRead, ToyRecordings, extract_in_small_shards
from vaak.audio.config import AudioConfig
from vaak.audio.features import store as feature_store
from vaak.audio.features.extractors import Features
from vaak.audio.features.store import WITHOUT_EFFECT, FeatureStore, extract, feature_fingerprint
from vaak.core.errors import DataError, FormatError, UserError

LENGTHS = [16000, 0, 24000, 8000, 100, 48000, 16000, 16000, 5000, 32000]
SECONDS = 2.0
SHARDS = [3, 3, 2, 2]
"""Recordings of each."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 2 seconds; a batch for each recording."""
    monkeypatch.setattr(feature_store, "SHARD_SECONDS", SECONDS)
    monkeypatch.setattr(feature_store, "BATCH_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def workers_import_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin as forks of a process that has imported torch, but in the slow tests, where each does, as ever."""
    if request.node.get_closest_marker("slow") is None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


def in_a_process(*arguments: Any) -> int | None:
    """The exit code of a process that extracts features."""
    process = multiprocessing.get_context("spawn").Process(target=extract_in_small_shards, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file grows beyond this number of bytes: to a program, a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("storage_type", ["float32", "float16", "lilcom"])
def test_features_come_back(storage_type: Any, tmp_path: Path) -> None:
    if storage_type == "lilcom":
        pytest.importorskip("lilcom")
    audio = AudioConfig(storage_type=storage_type)
    source = ToyRecordings(LENGTHS)
    store = extract(source, audio, tmp_path)
    features = Features(audio)
    assert len(store) == len(LENGTHS)
    assert store.lengths.tolist() == [features.num_frames(length) for length in LENGTHS]
    assert (store.dims, store.frame_shift) == (features.dims, features.frame_shift)
    assert store.folder == tmp_path / store.fingerprint == tmp_path / feature_fingerprint(source, audio)
    for index in range(len(LENGTHS)):
        expected = features(source.load(index, np.random.default_rng(0)).samples)
        found = store.frames(index)
        assert found.dtype == np.float32
        assert found.flags.writeable
        if storage_type == "float32":
            assert found.tobytes() == expected.tobytes()
        else:
            np.testing.assert_allclose(found, expected, atol=0.01 if storage_type == "float16" else 0.05)
    for index in (-1, len(LENGTHS)):
        with pytest.raises(IndexError):
            store.frames(index)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_store, "SHARD_SECONDS", SECONDS)
        return extract(ToyRecordings(LENGTHS), AudioConfig(num_mel_bins=20), folder)


@given(st.integers(0, len(LENGTHS) - 1), st.integers(0, 320), st.none() | st.integers(0, 320))
def test_any_frames(kept: FeatureStore, index: int, first: int, last: int | None) -> None:
    assert kept.frames(index, first, last).tobytes() == kept.frames(index)[first:last].tobytes()


def test_any_frames_of_compressed_blocks(tmp_path: Path) -> None:
    pytest.importorskip("lilcom")
    store = extract(ToyRecordings([160 * 1234, 160 * 500, 160 * 700]), AudioConfig(storage_type="lilcom"), tmp_path)
    for index in range(3):
        whole = store.frames(index)
        for first, last in ((0, 500), (499, 501), (500, 500), (600, 1100), (1000, None), (0, 1), (900, 300)):
            assert store.frames(index, first, last).tobytes() == whole[first:last].tobytes()


def test_lilcom_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = pytest.importorskip("lhotse.features.io")
    io.get_lilcom_module.cache_clear()
    monkeypatch.setattr(io, "is_module_available", lambda name: False)
    with pytest.raises(UserError, match=r"pip install 'vaak\[lilcom\]'"):
        extract(ToyRecordings(LENGTHS), AudioConfig(storage_type="lilcom"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_recordings(tmp_path: Path) -> None:
    assert len(extract(ToyRecordings([]), AudioConfig(), tmp_path)) == 0


def test_a_store_travels_as_its_path(kept: FeatureStore) -> None:
    kept.frames(0)
    pickled = pickle.dumps(kept)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).frames(5).tobytes() == kept.frames(5).tobytes()


OTHER_VALUES: dict[str, Any] = {
    "corpus_dir": "x",
    "output_dir": "x",
    "feature_type": "mfcc",
    "mel": {"n_mels": 40},
    "pitch": {},
    "sampling_rate": 8000,
    "num_mel_bins": 40,
    "frame_length": 0.02,
    "frame_shift": 0.02,
    "round_to_power_of_two": False,
    "remove_dc_offset": False,
    "preemph_coeff": 0.9,
    "window_type": "hamming",
    "dither": 0.1,
    "snip_edges": True,
    "energy_floor": 1e-5,
    "raw_energy": False,
    "use_energy": True,
    "use_fft_mag": True,
    "low_freq": 50.0,
    "high_freq": 0.0,
    "norm_filters": True,
    "num_ceps": 12,
    "cepstral_lifter": 0,
    "storage_path": "x",
    "storage_type": "float16",
    "num_jobs": 3,
    "progress_bar": False,
    "cache_gigabytes": 1.0,
    "channels": "first",
}


@pytest.mark.parametrize("name", AudioConfig.model_fields)
def test_every_option_that_features_depend_on_makes_other_features(name: str) -> None:
    source = ToyRecordings(LENGTHS)
    other = AudioConfig(**{name: OTHER_VALUES[name]})
    same = feature_fingerprint(source, other) == feature_fingerprint(source, AudioConfig())
    assert same == (name in WITHOUT_EFFECT)


def test_another_corpus_or_option_never_reads_old_features(tmp_path: Path) -> None:
    old = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path)
    before = contents(old.folder)
    source = ToyRecordings(LENGTHS[::-1], fingerprint="other")
    assert extract(source, AudioConfig(), tmp_path).lengths.tolist() == old.lengths.tolist()[::-1]
    assert extract(ToyRecordings(LENGTHS), AudioConfig(num_mel_bins=23), tmp_path).dims == 23
    again = ToyRecordings(LENGTHS)
    assert contents(extract(again, AudioConfig(num_jobs=2, progress_bar=False), tmp_path).folder) == before
    assert again.loaded == []  # the same ones are read


@pytest.mark.parametrize(
    "deadly", [pytest.param(0, marks=pytest.mark.slow), 4, pytest.param(5, marks=pytest.mark.slow)]
)
def test_killed_and_gone_on_with(deadly: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path / "reference")
    folder = tmp_path / "killed"
    assert in_a_process(ToyRecordings(LENGTHS, deadly=deadly), AudioConfig(), folder, SECONDS) == -9
    store_folder = folder / reference.fingerprint
    there = len(list(store_folder.glob("shard-*.bin")))
    assert there == {0: 0, 4: 1, 5: 1}[deadly]
    assert len(list(store_folder.glob(".*.tmp"))) == 1  # half-written
    with pytest.raises(DataError, match="the features are missing or incomplete"):
        FeatureStore(store_folder)
    source = ToyRecordings(LENGTHS)
    with caplog.at_level("INFO", "vaak"):
        resumed = extract(source, AudioConfig(), folder)
    assert source.loaded == list(range(3 if there else 0, len(LENGTHS)))
    assert ("1 of 4 parts are in" in caplog.text) == bool(there)
    assert contents(resumed.folder) == contents(reference.folder)


def test_features_of_an_earlier_version_are_named_with_the_remedy_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path)
    before, about = contents(made.folder), made.folder / "features.json"
    about.write_text(about.read_text().replace("vaak features 1", "vaak features 0"))
    with pytest.raises(FormatError) as said:
        FeatureStore(made.folder)
    problem = f"{about}: this version can't read these features: they are vaak features 0, and it reads vaak features 1"
    assert str(said.value) == f"{problem}; delete {made.folder} and run again"
    source = ToyRecordings(LENGTHS)
    assert contents(extract(source, AudioConfig(), tmp_path).folder) == before
    assert f"{problem}; delete" in caplog.text
    assert f"features in {made.folder} are recomputed" in caplog.text
    shutil.rmtree(made.folder)
    assert contents(extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path).folder) == before


def test_a_killed_worker_is_named_and_its_part_made_again(tmp_path: Path) -> None:
    """All parts are made by two processes, before the kill or after it: the same bytes as by this one."""
    reference = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path / "reference")
    audio = AudioConfig(num_jobs=2)
    with pytest.raises(UserError, match=r"was killed.*num_jobs"):
        extract(ToyRecordings(LENGTHS, deadly=8), audio, tmp_path / "killed")
    assert contents(extract(ToyRecordings(LENGTHS), audio, tmp_path / "killed").folder) == contents(reference.folder)
    assert len(list(reference.folder.glob("shard-*.bin"))) == len(SHARDS)


@pytest.mark.parametrize("num_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_counts_nothing_half_written(num_jobs: int, tmp_path: Path) -> None:
    reference = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path / "reference")
    folder = tmp_path / "full" / reference.fingerprint
    with file_size_limit(90_000), pytest.raises(UserError) as said:
        extract(ToyRecordings(LENGTHS), AudioConfig(num_jobs=num_jobs), tmp_path / "full")
    assert str(said.value) == (
        f"features can't be written to {folder}: File too large; free some space, or set global_config.storage_path to "
        "another folder"
    )
    assert not list(folder.glob(".*.tmp"))
    assert not (folder / "features.json").exists()
    for path in folder.glob("shard-*.bin"):
        assert path.read_bytes() == (reference.folder / path.name).read_bytes()
    assert contents(extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path / "full").folder) == contents(
        reference.folder
    )


def test_what_the_source_raises_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ToyRecordings(LENGTHS)
    load = source.load

    def broken(index: int, rng: np.random.Generator) -> Any:
        if index == 6:
            raise DataError("six.wav: this isn't audio")
        return load(index, rng)

    monkeypatch.setattr(source, "load", broken)
    with pytest.raises(DataError, match=r"six\.wav"):
        extract(source, AudioConfig(), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "shard-00000.bin", "shard-00001.bin"]


def test_what_other_processes_have_begun_is_finished_before_the_folder_is_left(tmp_path: Path) -> None:
    source = OneBreaksWhileAnotherIsRead(LENGTHS, tmp_path)
    with pytest.raises(DataError, match=r"zero\.wav"):
        extract(source, AudioConfig(num_jobs=2), tmp_path / "features")
    (folder,) = (tmp_path / "features").iterdir()
    assert (folder / "shard-00001.bin").exists()
    assert not list(folder.glob(".*.tmp"))


def test_a_shard_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    reference = contents(extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path).folder)
    (folder,) = tmp_path.iterdir()
    (folder / "features.json").unlink()
    shard = folder / "shard-00002.bin"
    for damaged in (b"", b"x", shard.read_bytes()[:-8], shard.read_bytes() + bytes(8)):
        shard.write_bytes(damaged)
        source = ToyRecordings(LENGTHS)
        assert contents(extract(source, AudioConfig(), tmp_path).folder) == reference
        assert source.loaded == [6, 7]
        (folder / "features.json").unlink()


@pytest.mark.parametrize("sizes", ["recorded", "not recorded"])
@pytest.mark.parametrize("name", ["shard-00001.bin", "lengths.bin", "features.json"])
def test_damage_is_found_before_training_and_made_again(
    name: str, sizes: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a damaged shard was read by a worker first, hours later; or its recordings counted as bad examples."""
    store = extract(ToyRecordings(LENGTHS), AudioConfig(), tmp_path)
    reference, about = contents(store.folder), json.loads((store.folder / "features.json").read_text())
    if sizes == "not recorded":
        del about["sizes"]
        (store.folder / "features.json").write_text(json.dumps(about))
    for damage in (None, b"", b"x", reference[name][:-3]):
        (store.folder / name).unlink()
        if damage is not None:
            (store.folder / name).write_bytes(damage)
        source = ToyRecordings(LENGTHS)
        with caplog.at_level("WARNING", "vaak"):
            assert contents(extract(source, AudioConfig(), tmp_path).folder) == reference
        assert source.loaded == ([3, 4, 5] if name.startswith("shard") else [])
        assert (name in caplog.text) == (name != "features.json" or damage is not None)
        caplog.clear()


@pytest.mark.parametrize("name", ["shard-00001.bin", "lengths.bin", "features.json"])
def test_damage_is_named(kept: FeatureStore, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    for damage in (None, b"", b"[]", b'{"format": "vaak features 1"}'):
        shutil.copytree(kept.folder, folder)
        (folder / name).unlink()
        if damage is not None:
            (folder / name).write_bytes(damage)
        with pytest.raises(DataError, match=str(folder)):
            FeatureStore(folder).frames(5)
        shutil.rmtree(folder)


def test_the_folder_says_what_it_holds(kept: FeatureStore) -> None:
    about = json.loads((kept.folder / "features.json").read_text())
    assert about["dims"] == 20
    assert about["shards"] == SHARDS
