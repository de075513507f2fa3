"""Clusters: equal to the libraries' where they should be, the same twice, and honest where there are none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from vaak.core.errors import DataError, UserError
from vaak.pipeline.rows import make_rows
from vaak.tasks.asr.stages import clustering
from vaak.tasks.asr.stages.clustering import ArrayMatrix, balanced, cluster, density, memory_needed, pca, reduced
from vaak.tasks.asr.stages.clusters import Clusters, draw_clustering, make_clusters, measure_quality
from vaak.tasks.asr.stages.options import METRICS_OF, Backend, ClusteringConfig, Metric

pytest.importorskip("sklearn")
RNG = np.random.default_rng(5)


def blobs(*sizes: int, dims: int = 6, spread: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Points around far centres, and the number of the centre of each."""
    rng = np.random.default_rng(7)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centres = 10 * rng.normal(size=(len(sizes), dims))
    return (centres[truth] + spread * rng.normal(size=(len(truth), dims))).astype(np.float32), truth


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))


def config(**options: Any) -> ClusteringConfig:
    return ClusteringConfig(**{"reduce": "none", "min_clusters": 2, "bootstraps": 4, **options})


@pytest.mark.parametrize("shape", [(300, 12), (40, 500)], ids=["tall", "wide"])
def test_pca_from_disk_is_that_of_scikit_learn(shape: tuple[int, int], tmp_path: Path, monkeypatch: Any) -> None:
    from sklearn.decomposition import PCA

    monkeypatch.setattr(clustering, "COLUMNS_AT_ONCE", 64)
    rows = (RNG.normal(size=shape) * np.linspace(3, 1, shape[1]) + 100).astype(np.float32)
    keys = [str(number) for number in range(len(rows))]
    store = make_rows(tmp_path, keys, lambda: lambda keys: rows[[int(key) for key in keys]], shape=shape[1:])
    found, expected = pca(store, 5), PCA(5, svd_solver="full").fit_transform(rows.astype(np.float64))
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=2e-3)
    np.testing.assert_array_equal(found, pca(ArrayMatrix(rows), 5))


OF_THE_PACKAGE = {
    ("prims_kdtree", "euclidean", 5, None): (
        "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbcccccccccccccccccccc"
        "ccccc.aaaaaaaaaaa.aaaaaaaaaaaaaaaaa...................a....."
    ),
    ("prims_balltree", "canberra", 4, 2): (
        "...i..igig.h..bi.i.....bh....bg.hih.g.biee.fe.e.eeeefef..f.."
        ".eeee.cccccccc.cc.cccccccccccccccccc...caddddaac....a.c...dd"
    ),
    ("generic", "manhattan", 6, 1): (
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb"
        "bbbbb.ccccccccccc.ccccccccccccccccccdc.c.dddd..c.dd..bc.d.dd"
    ),
}
"""Clusters of the package hdbscan 0.8.44 by (algorithm, metric, min_cluster_size, min_samples): a letter for each of
the points below, a dot for noise. Its Borůvka trees, which its ``best`` chooses, may be others of the same length, or
longer: ours of ``best`` and ``boruvka_…`` are compared with its shortest."""
SHORTEST = OF_THE_PACKAGE["prims_kdtree", "euclidean", 5, None]
OF_THE_PACKAGE |= {(name, "euclidean", 5, None): SHORTEST for name in ("best", "boruvka_kdtree", "boruvka_balltree")}


@pytest.mark.parametrize("options", OF_THE_PACKAGE, ids=lambda options: " ".join(map(str, options[:2])))
def test_clusters_by_density_are_those_of_the_package_hdbscan(options: tuple[str, str, int, int | None]) -> None:
    algorithm, metric, size, samples = options
    rng, shapes = (
        np.random.default_rng(11),
        (((0, 0), 1.0, 40), ((4, 1), 0.6, 25), ((1, 6), 1.5, 30), ((8, 8), 3.0, 25)),
    )
    drawn = [centre + spread * rng.normal(size=(number, 2)) for centre, spread, number in shapes]
    points = np.concatenate(drawn).astype(np.float32) + 30
    labels = density(points, size, config(hdbscan_algorithm=algorithm, metric=metric, min_samples=samples))
    expected = np.array([-1 if letter == "." else ord(letter) for letter in OF_THE_PACKAGE[options]])
    assert ((labels < 0) == (expected < 0)).all()
    assert same_partition(labels, expected)


def test_noise_goes_to_the_nearest_centre() -> None:
    points, truth = blobs(60, 40, 30)
    points = np.concatenate([points, 10 * RNG.normal(size=(12, 6)).astype(np.float32)])
    found = cluster(points, config())
    expected = density(points, config().min_cluster_size, config())
    assert (found.is_noise == (expected < 0)).all()
    assert same_partition(found.labels[~found.is_noise], expected[expected >= 0])
    assert same_partition(found.labels[: len(truth)], truth)
    assert 0 < found.is_noise.sum() <= 12
    assert not found.is_noise[: len(truth)].any()
    distances = np.linalg.norm(points[:, None] - found.centres, axis=2)
    assert (found.labels[found.is_noise] == distances.argmin(axis=1)[found.is_noise]).all()
    assert any(f"{found.is_noise.sum()} of {len(points)} rows are noise" in remark for remark in found.remarks)
    assert (np.diff(np.bincount(found.labels[~found.is_noise])) <= 0).all(), "the largest cluster is the first"


def test_every_pair_of_metric_and_backend_is_refused_or_works() -> None:
    points, truth = blobs(20, 20, 20)
    points += 30  # away from 0, where cosine and correlation mean nothing
    refused = set()
    for backend in get_args(Backend):
        for metric in get_args(Metric):
            if metric not in METRICS_OF[backend]:
                with pytest.raises(UserError, match=f"{backend} can't use metric {metric}"):
                    config(metric=metric, hdbscan_algorithm=backend)
                refused.add((backend, metric))
                continue
            labels = density(points, 5, config(metric=metric, hdbscan_algorithm=backend))
            assert len(labels) == len(truth)
            assert metric not in ("euclidean", "manhattan") or same_partition(labels, truth), (backend, metric)
    assert ("boruvka_kdtree", "cosine") in refused
    assert ("prims_kdtree", "canberra") in refused
    assert ("best", "cosine") not in refused


def test_cosine_tells_directions_apart_and_not_lengths() -> None:
    directions = np.repeat(np.eye(3), 20, axis=0) + 0.02 * RNG.normal(size=(60, 3))
    points = (directions * RNG.uniform(1, 100, size=(60, 1))).astype(np.float32)
    found = cluster(points, config(metric="cosine", min_clusters=3))
    assert same_partition(found.labels, np.repeat(np.arange(3), 20))


def test_it_tries_again_with_smaller_clusters() -> None:
    points, truth = blobs(*[4] * 9)
    found = cluster(points, config(num_experts=9, min_cluster_size=6, min_clusters=8))
    assert found.num_clusters == 9
    assert found.min_cluster_size == 2
    assert same_partition(found.labels, truth)
    sizes = "0 with min_cluster_size 6, 0 with min_cluster_size 4, 9 with min_cluster_size 2"
    assert found.remarks == (f"HDBSCAN found {sizes} clusters",)
    assert cluster(points, config(min_clusters=8, min_cluster_size=6, max_retries=0)).algorithm == "spectral"


def test_too_few_clusters_are_accepted_or_an_error() -> None:
    points, truth = blobs(60, 40, 30)
    found = cluster(points, config(min_clusters=8))
    assert same_partition(found.labels, truth)
    assert "min_clusters is 8" in found.remarks[0]
    with pytest.raises(UserError, match=r"HDBSCAN found 3 with .* clusters; num_experts is 8: allow others"):
        cluster(points, config(min_clusters=8, reduce_experts=False))
    exactly = config(min_clusters=8, num_experts=3, reduce_experts=False)
    assert same_partition(cluster(points, exactly).labels, truth), "the number asked for is that of the experts"


def test_more_clusters_than_experts_are_merged_or_refused() -> None:
    corners = np.array([[0, 0], [3, 0], [0, 3], [20, 0], [23, 0], [20, 3]], float)
    truth = np.repeat(np.arange(6), 60)
    points = (corners[truth] + 0.4 * np.random.default_rng(7).normal(size=(360, 2))).astype(np.float32)
    assert cluster(points, config(num_experts=8)).num_clusters == 6
    found = cluster(points, config(num_experts=2))
    assert same_partition(found.labels, truth // 3), "the nearest are merged"
    assert "6 clusters of HDBSCAN are merged into 2, the nearest first (Ward)" in found.remarks
    with pytest.raises(UserError, match="HDBSCAN found 6 with min_cluster_size 5 clusters; num_experts is 2"):
        cluster(points, config(num_experts=2, reduce_experts=False))
    fragments = cluster(points, config(num_experts=4, min_samples=1, min_cluster_size=2))
    assert (fragments.num_clusters, len(fragments.centres)) == (4, 4)
    assert np.bincount(fragments.labels).min() > 20, "none is left with a few rows"


def test_merging_is_wards_of_the_libraries() -> None:
    from scipy.cluster.hierarchy import fcluster, linkage

    rng = np.random.default_rng(3)
    grid = 10.0 * np.stack(np.meshgrid(range(4), range(3), range(2)), -1).reshape(24, 3) + rng.uniform(-2, 2, (24, 3))
    points = np.repeat(grid, 8, axis=0) + 1e-3 * rng.normal(size=(192, 3))
    assert density(points, 5, config()).max() == 23
    for number in (3, 7, 15):
        found = cluster(points.astype(np.float32), config(num_experts=number))
        assert same_partition(found.labels[::8], fcluster(linkage(grid, "ward"), number, "maxclust"))


def test_directions_are_merged_by_their_angles() -> None:
    angles = np.repeat([0, 0.2, 1.5, 1.7], 30) + 0.01 * RNG.normal(size=120)
    points = np.column_stack([np.cos(angles), np.sin(angles)]) * RNG.uniform(1, 100, size=(120, 1))
    found = cluster(points.astype(np.float32), config(metric="cosine", num_experts=2, min_cluster_size=10))
    assert same_partition(found.labels, np.repeat([0, 1], 60))


def test_a_clean_solution_is_not_replaced_by_fragments() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 150)
    points = rng.normal(size=(300, 10))
    points[truth == 1, 0] += 6
    options = config(num_experts=4, min_clusters=8, min_samples=1)
    assert density(points, 2, options).max() + 1 > 30, "the last attempt finds fragments"
    found = cluster(points.astype(np.float32), options)
    assert found.num_clusters == 2
    assert (found.labels == truth).mean() in (pytest.approx(0, abs=0.03), pytest.approx(1, abs=0.03))
    assert any("is kept, by the silhouette" in remark for remark in found.remarks)


def test_without_any_dense_cluster_spectral_clustering_follows() -> None:
    points = RNG.uniform(size=(200, 20)).astype(np.float32)
    found = cluster(points, config(num_experts=4, min_cluster_size=20, max_retries=0))
    assert (found.algorithm, found.num_clusters, bool(found.is_noise.any())) == ("spectral", 4, False)
    assert np.ptp(np.bincount(found.labels)) <= 1, "those that follow are balanced, too"
    assert "spectral clustering instead" in found.remarks[-1]
    assert measure_quality(found, config()).problems
    with pytest.raises(UserError, match="allow others"):
        cluster(points, config(min_cluster_size=20, max_retries=0, reduce_experts=False))


def test_a_single_cluster_is_found_only_where_it_is_allowed() -> None:
    points, _ = blobs(80)
    options: dict[str, Any] = {"min_cluster_size": 30, "max_retries": 0, "min_experts": 1}
    single = cluster(points, config(allow_single_cluster=True, **options))
    assert single.num_clusters == 1
    assert "nothing is told apart" in measure_quality(single, config()).problems[0]
    assert cluster(points, config(num_experts=3, **options)).algorithm == "spectral"


def test_spectral_clustering_finds_what_is_not_round() -> None:
    angles = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    ring = np.column_stack([np.cos(angles), np.sin(angles)])
    found = cluster(np.concatenate([ring, 3 * ring]).astype(np.float32), config(algorithm="spectral", num_experts=2))
    assert same_partition(found.labels, np.repeat([0, 1], 100))


@pytest.mark.parametrize(("number", "num_clusters"), [(17, 3), (60, 4), (101, 7), (40, 8), (6, 6)])
def test_balanced_assignment_is_the_cheapest_of_equal_sizes(number: int, num_clusters: int) -> None:
    from scipy.optimize import linear_sum_assignment

    costs = RNG.uniform(size=(number, num_clusters)) * np.linspace(1, 3, num_clusters)
    labels = balanced(costs)
    sizes = np.bincount(labels, minlength=num_clusters)
    assert sizes.max() - sizes.min() <= 1
    places = np.repeat(np.arange(num_clusters), sizes)
    rows, columns = linear_sum_assignment(costs[:, places])
    assert costs[np.arange(number), labels].sum() == pytest.approx(costs[rows, places[columns]].sum())


def test_spectral_clusters_are_of_equal_size_unless_they_are_to_differ() -> None:
    points, truth = blobs(50, 30, 30)
    uneven = cluster(points, config(algorithm="spectral", num_experts=3, balanced=False))
    assert np.bincount(uneven.labels).tolist() == [50, 30, 30]
    even = cluster(points, config(algorithm="spectral", num_experts=3))
    asked = cluster(points, config(algorithm="spectral", num_experts=3, balanced=True))
    assert np.array_equal(even.labels, asked.labels)
    assert "3 clusters of 37, 37, 36 rows" in "\n".join(measure_quality(even, config(algorithm="spectral")).lines())
    sizes = np.bincount(even.labels)
    assert sorted(sizes.tolist()) == [36, 37, 37]
    assert (even.labels != uneven.labels).sum() >= 13
    for blob in (1, 2):
        assert len(set(even.labels[truth == blob].tolist())) == 1, "small blobs stay whole"
    with pytest.raises(UserError, match="balanced requires algorithm spectral, not hdbscan"):
        config(balanced=True)


@pytest.mark.parametrize(("number", "options", "expected"), [(6, {}, 3), (3, {}, 2), (2, {}, None), (1, {}, None)])
def test_fewer_rows_than_experts(number: int, options: dict[str, Any], expected: int | None) -> None:
    points = RNG.normal(size=(number, 4)).astype(np.float32)
    spectral = config(algorithm="spectral", num_experts=8, **options)
    if expected is None:
        with pytest.raises(UserError, match=rf"^{number} rows can't "):
            cluster(points, spectral)
    else:
        found = cluster(points, spectral)
        assert (found.num_clusters, len(found.remarks)) == (expected, 1)
    with pytest.raises(UserError, match=rf"^{number} rows can't "):
        cluster(points, config(algorithm="spectral", num_experts=8, reduce_experts=False))


def test_random_clusters_are_of_equal_size_and_say_nothing() -> None:
    points, truth = blobs(50, 40, 30)
    found, again = (cluster(points, config(algorithm="random", num_experts=4)) for _ in range(2))
    assert (found.algorithm, np.bincount(found.labels).tolist()) == ("random", [30, 30, 30, 30])
    np.testing.assert_array_equal(found.labels, again.labels)
    other = cluster(points, config(algorithm="random", num_experts=4, seed=43))
    assert (other.labels != found.labels).any()
    groups = [("north", "south", "east")[number] for number in truth]
    stability = measure_quality(found, config(algorithm="random"), groups).stability
    assert stability is not None
    assert stability < 0.1


def test_the_same_seed_gives_the_same_clusters_and_figures() -> None:
    points, _ = blobs(50, 40, 30, spread=6)
    one, other = (cluster(points, config(algorithm="spectral", reduce="pca", reduce_dim=4)) for _ in range(2))
    np.testing.assert_array_equal(one.labels, other.labels)
    assert measure_quality(one, config()) == measure_quality(other, config())


def test_quality_of_good_bad_and_degenerate_clusters() -> None:
    points, truth = blobs(60, 40, 30)
    groups = [("north", "south", "east")[number] for number in truth]
    good = measure_quality(cluster(points, config()), config(), groups)
    assert good.sizes == [60, 40, 30]
    assert good.silhouette is not None
    assert good.silhouette > 0.8
    assert good.stability == good.agreement == good.homogeneity == 1.0
    assert good.groups == {"north": [60, 0, 0], "south": [0, 40, 0], "east": [0, 0, 30]}
    assert good.problems == ["the clusters are the groups under other names; experts by group need no clustering"]
    shuffled = measure_quality(
        cluster(points, config()), config(), np.random.default_rng(1).permutation(groups).tolist()
    )
    assert shuffled.agreement == pytest.approx(0, abs=0.05)
    assert shuffled.problems == []
    chance = RNG.normal(size=(150, 30)).astype(np.float32)
    bad = measure_quality(cluster(chance, config(algorithm="spectral", num_experts=8)), config())
    assert any("resamples give other clusters" in problem for problem in bad.problems)
    uneven, _ = blobs(300, 8)
    assert "one cluster holds 97% of the rows" in measure_quality(cluster(uneven, config()), config()).problems[0]
    assert any("degenerate: " in line for line in bad.lines())


def test_memory_is_told_before_and_stays_small() -> None:
    for algorithm in ("hdbscan", "spectral"):
        assert memory_needed(10_000, 1280, config(algorithm=algorithm, reduce="pca")) < 2**30
        assert memory_needed(1_000_000, 1280, config(algorithm=algorithm, reduce="pca")) < 8 * 2**30
    assert memory_needed(10_000, 1280, config(metric="cosine", reduce="pca")) > 2 * 2**30


def test_memory_that_distances_need_is_compared_with_what_is_free() -> None:
    points = np.zeros((200_000, 2), np.float32)
    with pytest.raises(UserError, match=r"metric cosine needs 894\.\d GiB .* of 200000 rows"):
        density(points, 5, config(metric="cosine"))


def test_identical_rows_are_one_place_and_said_to_be() -> None:
    found = cluster(np.ones((40, 3), np.float32), config(num_experts=2))
    assert measure_quality(found, config()).problems


@pytest.mark.parametrize("groups", [None, ["north", "south"]])
def test_a_picture_is_drawn_in_a_kind_that_there_is(groups: list[str] | None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points, truth = blobs(30, 20)
    names = None if groups is None else [groups[number] for number in truth]
    draw_clustering(cluster(points, config()), names, "pca", tmp_path / "clusters.png")
    assert (tmp_path / "clusters.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="can't be written"):
        draw_clustering(cluster(points, config()), names, "pca", tmp_path / "clusters.abacus")


def test_clusters_come_back_from_disk(tmp_path: Path) -> None:
    points, truth = blobs(60, 40, 30)
    keys = [f"u{number}" for number in range(len(points))]
    store = make_rows(tmp_path / "rows", keys, lambda: lambda keys: points[[int(key[1:]) for key in keys]], shape=(6,))
    quality, _ = make_clusters(store, [str(number) for number in truth], config(), tmp_path, plot="pca")
    found = Clusters.read(tmp_path)
    assert list(found.labels) == keys
    assert same_partition(np.array(list(found.labels.values())), truth)
    assert (found.num_clusters, found.noise, found.quality) == (3, (), quality.as_json())
    assert (tmp_path / "clusters.png").exists()
    with pytest.raises(DataError, match=r"clusters\.json: no clusters can be read here"):
        Clusters.read(tmp_path / "rows")


@pytest.mark.slow
def test_ten_thousand_embeddings_take_49_mib_of_disk_and_little_memory(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import numpy as np
from vaak.core.machine import host_memory
from vaak.pipeline.rows import make_rows
from vaak.tasks.asr.stages.options import ClusteringConfig
from vaak.tasks.asr.stages.clusters import make_clusters
centres = np.random.default_rng(0).normal(size=(12, 1280))
def rows(keys):
    numbers = np.array(keys, int)
    return centres[numbers % 12] + np.random.default_rng(numbers[0]).normal(size=(len(keys), 1280))
folder = Path(sys.argv[1])
store = make_rows(folder / "rows", [str(n) for n in range(10_000)], lambda: rows, shape=(1280,))
quality, _ = make_clusters(store, None, ClusteringConfig(bootstraps=2), folder)
print(len(quality.sizes), host_memory().peak(), sum(path.stat().st_size for path in store.folder.iterdir()))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    number, peak, disk = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(number) == 8, "as many as there are experts"
    assert int(disk) < 50 * 2**20
    assert int(peak) < 2**30


@pytest.mark.slow
def test_without_umap_a_picture_is_drawn_by_pca_and_a_reduction_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    points = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    found = cluster(points, config())
    for method in ("umap", "pca"):
        draw_clustering(found, None, method, tmp_path / f"{method}.png")
    assert (tmp_path / "umap.png").read_bytes() == (tmp_path / "pca.png").read_bytes()
    assert [record.getMessage() for record in caplog.records] == [
        "the picture of the clusters is drawn by PCA; by UMAP, it requires: pip install 'vaak[umap]'"
    ]
    with pytest.raises(UserError, match=r"pip install 'vaak\[umap\]'"):
        reduced(points, "umap", 2, 3)


@pytest.mark.slow  # numba compiles for 15 s
def test_umap_keeps_clusters_apart_and_is_the_same_for_the_same_seed() -> None:
    pytest.importorskip("umap")
    points, truth = blobs(60, 40, 30)
    one, other = (reduced(points, "umap", 2, 3) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert same_partition(cluster(one, config()).labels, truth)
    assert reduced(points[:5], "umap", 2, 3).shape == (5, 2)
    with pytest.raises(UserError, match="not 3"):
        reduced(points[:3], "umap", 2, 3)


@pytest.mark.slow
def test_umap_leaves_the_number_of_torchs_threads() -> None:
    """Numba sets it when it starts its threads, once in a process, which would change the bits of later training."""
    pytest.importorskip("umap")
    code = """
import numpy as np
import torch
from vaak.core.machine import allowed_cores
from vaak.tasks.asr.stages.clustering import reduced
number = allowed_cores() + 1
torch.set_num_threads(number)
assert torch.get_num_threads() == number
reduced(np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32), "umap", 2, 3)
assert torch.get_num_threads() == number, torch.get_num_threads()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
