"""Jobs that wait are computed together, and none suffers from its neighbours."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from served_runs import wait_until
from vaak.core.errors import DataError, UserError
from vaak.serve import batching
from vaak.serve.batching import Batching, Intake, Job, Kind, Worker
from vaak.serve.metrics import Metrics
from vaak.tasks.batches import limit_batch


class Recorder:
    """Doubles numbers, and notes which were computed together; the first batch waits until ``go`` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.kind = Kind("double", self.compute, float)

    def compute(self, numbers: list[int]) -> list[int]:
        self.begun.set()
        assert self.go.wait(60)
        self.batches.append(numbers)
        if 13 in numbers:
            raise DataError("13 can't be doubled")
        return [2 * one for one in numbers]


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    with contextlib.ExitStack() as stack:

        def make(size: int, seconds: float = 0.0) -> Worker:
            found = Worker("m", torch.device("cpu"), contextlib.nullcontext, Metrics(), Batching(size, seconds))
            stack.callback(found.close)
            return found

        yield make


def submit(worker: Worker, kind: Kind, *parts: Any, **how: Any) -> Job:
    job = Job(kind, iter(parts), **how)
    worker.submit(job)
    return job


def test_what_waits_is_computed_together_by_length(worker):
    recorder, found = Recorder(), worker(3)
    first = submit(found, recorder.kind, 1)
    assert recorder.begun.wait(60)
    jobs = [submit(found, recorder.kind, number) for number in (50, 7, 51, 8, 49, 9)]
    recorder.go.set()
    assert first.future.result(60) == [2]
    assert [job.future.result(60) for job in jobs] == [[100], [14], [102], [16], [98], [18]]
    assert [sorted(one) for one in recorder.batches] == [[1], [49, 50, 51], [7, 8, 9]]


def test_the_first_waits_for_others(worker):
    recorder, found = Recorder(), worker(2, 30.0)
    recorder.go.set()
    jobs = [submit(found, recorder.kind, number) for number in (3, 4)]  # the batch is full: nobody waits on
    assert [job.future.result(20) for job in jobs] == [[6], [8]]
    assert recorder.batches == [[4, 3]]


def test_who_was_answered_is_computed_with_those_that_waited(worker):
    """Eight clients became one and seven, which took turns: seven had waited long, so nobody waited for the eighth."""
    recorder, found = Recorder(), worker(16, 0.5)
    first = submit(found, recorder.kind, 1)
    assert recorder.begun.wait(60)
    others = [submit(found, recorder.kind, number) for number in range(2, 9)]
    time.sleep(0.6)
    recorder.go.set()
    first.future.result(60)
    again = submit(found, recorder.kind, 9)
    assert [job.future.result(60) for job in [*others, again]] == [[2 * number] for number in range(2, 10)]
    assert [len(one) for one in recorder.batches] == [1, 8]


def test_a_long_batch_is_waited_for_by_those_it_answered_longer_than_a_short_one(worker):
    recorder, found = Recorder(), worker(16, 0.001)
    kind = replace(recorder.kind, compute=lambda numbers: (time.sleep(1.0), recorder.compute(numbers))[1])
    recorder.go.set()
    jobs = [submit(found, kind, number) for number in (1, 2)]  # the first, or both
    jobs += [submit(found, kind, number) for number in (3, 4)]
    assert [job.future.result(60) for job in jobs] == [[2], [4], [6], [8]]
    number = len(recorder.batches[-1])
    assert number >= 2
    submit(found, kind, 5)
    time.sleep(0.02)
    assert [submit(found, kind, 6).future.result(60)] == [[12]]
    assert sorted(recorder.batches[-1]) == [5, 6]


def test_who_is_alone_waits_for_nobody(worker):
    recorder, found = Recorder(), worker(16, 5.0)
    recorder.go.set()
    submit(found, recorder.kind, 1).future.result(60)
    begun = time.monotonic()
    for number in range(10):
        submit(found, recorder.kind, number).future.result(60)
    own = replace(recorder.kind, key="a session", is_shared=False)
    assert submit(found, own, 7).future.result(60) == [14]
    assert time.monotonic() - begun < 5


def test_a_short_job_does_not_wait_for_the_end_of_a_long_one(worker):
    recorder, found, done = Recorder(), worker(2), list[str]()
    long = submit(found, recorder.kind, *range(100, 200))
    short = submit(found, recorder.kind, 1, 2)
    long.future.add_done_callback(lambda _: done.append("long"))
    short.future.add_done_callback(lambda _: done.append("short"))
    recorder.go.set()
    assert long.future.result(60) == [2 * number for number in range(100, 200)]
    assert short.future.result(60) == [2, 4]
    wait_until(lambda: len(done) == 2)
    assert done == ["short", "long"]
    assert len(recorder.batches) <= 53


def test_a_job_that_came_during_a_batch_is_before_those_of_that_batch(worker):
    """They were put behind each other before it was computed, so a short recording waited for two windows of others."""
    recorder, found = Recorder(), worker(1)
    long = submit(found, recorder.kind, 100, 101, 102)
    assert recorder.begun.wait(60)
    short = submit(found, recorder.kind, 1)
    recorder.go.set()
    assert (short.future.result(60), long.future.result(60)) == ([2], [200, 202, 204])
    assert recorder.batches == [[100], [1], [101], [102]]


def test_results_that_are_told_may_not_be_kept(worker):
    recorder, told = Recorder(), list[int]()
    recorder.go.set()
    job = submit(worker(2), recorder.kind, 1, 2, 3, on_result=told.append, keeps_results=False)
    assert (job.future.result(60), told) == ([], [2, 4, 6])


def test_what_would_be_padded_much_is_not_computed_together(worker):
    recorder, found = Recorder(), worker(8)
    kind = replace(recorder.kind, most_padding=4.0)
    first = submit(found, kind, 20)
    assert recorder.begun.wait(60)
    jobs = [submit(found, kind, number) for number in (2, 30, 3, 8, 100)]
    recorder.go.set()
    assert [job.future.result(60) for job in [first, *jobs]] == [[40], [4], [60], [6], [16], [200]]
    assert [sorted(one) for one in recorder.batches] == [[20], [2, 3, 8], [30, 100]]


def test_a_lone_job_fills_batches_only_as_far_as_that_is_quick(worker, monkeypatch):
    recorder, found = Recorder(), worker(8)
    recorder.go.set()
    kind = replace(recorder.kind, first_share=1)
    assert len(submit(found, kind, *range(100, 120)).future.result(60)) == 20
    assert [len(one) for one in recorder.batches] == [1, 2, 4, 8, 5]
    recorder.batches.clear()
    monkeypatch.setattr(batching, "QUICK_SECONDS", 0.0)  # nothing is
    assert len(submit(found, replace(recorder.kind, first_share=4), *range(14, 22)).future.result(60)) == 8
    assert [len(one) for one in recorder.batches] == [4, 2, 1, 1]


def test_a_part_that_depends_on_the_one_before_is_read_after_it(worker):
    recorder, found, heard = Recorder(), worker(4), list[int]()
    recorder.go.set()

    def parts() -> Iterator[int]:
        for number in range(5):
            assert heard == list(range(0, 2 * number, 2))
            yield number

    job = Job(replace(recorder.kind, is_sequential=True), parts(), heard.append)
    found.submit(job)
    assert job.future.result(60) == heard == [0, 2, 4, 6, 8]


def test_a_lone_job_fills_batches_with_its_own_parts(worker):
    recorder, found, told = Recorder(), worker(4), list[int]()
    recorder.go.set()
    assert submit(found, recorder.kind, *range(8), on_result=told.append).future.result(60) == list(range(0, 16, 2))
    assert told == list(range(0, 16, 2))
    assert [len(one) for one in recorder.batches] == [4, 4]
    assert submit(found, recorder.kind).future.result(60) == []


def test_what_fails_fails_alone(worker):
    recorder, found = Recorder(), worker(4)
    first = submit(found, recorder.kind, 1)
    jobs = [submit(found, recorder.kind, number) for number in (5, 13, 6)]

    def broken() -> Iterator[int]:
        yield 3
        raise UserError("this can't be read on")

    half = Job(recorder.kind, broken())
    found.submit(half)
    recorder.go.set()
    assert (first.future.result(60), jobs[0].future.result(60), jobs[2].future.result(60)) == ([2], [10], [12])
    with pytest.raises(DataError, match="13"):
        jobs[1].future.result(60)
    with pytest.raises(UserError, match="read on"):
        half.future.result(60)
    assert submit(found, recorder.kind, 4).future.result(60) == [8]


def test_a_fault_of_ours_ends_its_requests_and_not_the_thread(worker):
    """A job that couldn't be measured used to end the thread, and later requests waited for ever."""
    found = worker(2)
    broken = submit(found, Kind("broken", lambda numbers: numbers, lambda number: 1 / number), 0)
    assert isinstance(broken.future.exception(60), ZeroDivisionError)
    assert submit(found, Kind("whole", lambda numbers: numbers), 5).future.result(60) == [5]


def test_where_memory_runs_out_a_batch_is_halved_and_what_is_too_large_is_refused(worker):
    sizes = []

    def compute(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        if len(numbers) > 2 or 99 in numbers:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return numbers

    go = threading.Event()
    found, kind = worker(8), Kind("kept", compute, float)
    blocked = submit(found, Kind("wait", lambda parts: parts if go.wait(60) else []), 0)
    jobs = [submit(found, kind, number) for number in (99, 1, 2, 3)]
    go.set()
    assert blocked.future.result(60) == [0]
    assert [job.future.result(60) for job in jobs[1:]] == [[1], [2], [3]]
    with pytest.raises(UserError, match="out of memory"):
        jobs[0].future.result(60)
    assert max(sizes) > 2


def test_nobody_waits_for_who_has_left(worker):
    recorder, found = Recorder(), worker(1)
    first = submit(found, recorder.kind, 1)
    left = submit(found, recorder.kind, *range(10, 20))
    left.has_left = True
    recorder.go.set()
    assert first.future.result(60) == [2]
    assert submit(found, recorder.kind, 2).future.result(60) == [4]
    assert recorder.batches == [[1], [2]]


TEXTS = ["लड़की", "वह मेज़ पर सोती है और", "क", "लड़का घर में", ""] * 10


def test_texts_are_the_same_alone_and_among_fifty(live, run_of):
    import httpx

    server = live(run_of("lm").folder)
    with httpx.Client(base_url=server.address, timeout=120) as client:

        def ask(number: int) -> dict[str, Any]:
            asked = {"prompt": TEXTS[number], "seed": number, "max_tokens": 12, "echo": number % 2 == 0}
            answer = client.post("/v1/completions", json=asked)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return {name: found[name] for name in ("choices", "usage")}

        alone = [ask(number) for number in range(0, 50, 5)]
        with ThreadPoolExecutor(50) as pool:
            together = list(pool.map(ask, range(50)))
    assert together[::5] == alone
    sizes = server.gate.metrics.batches["lm"]
    assert sum(sizes.counts[:1]) < sum(sizes.counts)  # some were computed together


class Stepper:
    """Counts numbers down step by step, together, and lets others join; 99 takes as long as ``go`` isn't set."""

    def __init__(self, key: str = "count") -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.alone: list[list[int]] = []
        self.sizes: list[int] = []
        self.num_joined = 0
        self.kind = Kind(key, self.compute, compute_open=self.compute_open)

    def compute(self, parts: list[list[int]]) -> list[int]:
        self.alone.append([one for [one] in parts])
        return [2 * one for [one] in parts]

    def compute_open(self, parts: list[list[int]], intake: Intake) -> None:
        left: dict[int, list[Any]] = {id(one): [one, one[0]] for one in parts}
        self.sizes.append(len(parts))
        while left:
            self.begun.set()
            for one in intake.take(len(left)):
                left[id(one)] = [one, one[0]]
                self.num_joined += 1
            for name, (part, number) in [*left.items()]:
                if part == [13]:
                    raise RuntimeError("out of luck")
                left[name][1] = number if part == [99] and not self.go.is_set() else number - 1
                if left[name][1] <= 0:
                    intake.deliver(left.pop(name)[0], 2 * part[0])


def test_a_short_text_joins_a_long_one_and_is_answered_before_it(worker):
    stepper, found = Stepper(), worker(4)
    long = submit(found, stepper.kind, [99])
    assert stepper.begun.wait(60)
    several = submit(found, stepper.kind, [7], [2], [5])
    assert several.future.result(60) == [14, 4, 10]
    assert submit(found, stepper.kind, [3]).future.result(60) == [6]
    assert not long.future.done()
    stepper.go.set()
    assert long.future.result(60) == [198]
    assert not stepper.alone


def test_texts_are_waited_for_by_those_that_were_answered_with_them(worker):
    """Where none can join, eight clients would be written as one and seven for ever, each at the cost of eight."""
    stepper, found = Stepper(), worker(4, 30.0)
    long = submit(found, stepper.kind, [99])
    assert stepper.begun.wait(60)
    other = submit(found, stepper.kind, [99])
    wait_until(lambda: stepper.num_joined == 1)
    stepper.go.set()
    assert [one.future.result(60) for one in (long, other)] == [[198], [198]]
    first = submit(found, stepper.kind, [3])
    time.sleep(0.05)
    assert not first.future.done()
    assert submit(found, stepper.kind, [4]).future.result(20) == [8]
    assert stepper.sizes == [1, 2]


def test_nobody_joins_where_others_wait_for_their_turn(worker):
    stepper, recorder, found = Stepper(), Recorder(), worker(4)
    long = submit(found, stepper.kind, [99])
    assert stepper.begun.wait(60)
    other = submit(found, recorder.kind, 4)
    late = submit(found, stepper.kind, [3])
    stepper.go.set()
    assert long.future.result(60) == [198]
    assert recorder.begun.wait(60)
    assert not late.future.done()
    recorder.go.set()
    assert (other.future.result(60), late.future.result(60)) == ([8], [6])


def test_what_an_open_batch_fails_at_is_computed_again(worker):
    stepper, found = Stepper(), worker(4)
    long = submit(found, stepper.kind, [99])
    assert stepper.begun.wait(60)
    done = submit(found, stepper.kind, [2])
    assert done.future.result(60) == [4]
    unlucky = submit(found, stepper.kind, [13])
    assert (unlucky.future.result(60), long.future.result(60)) == ([26], [198])
    assert stepper.alone == [[99, 13]]


def test_exact_computes_each_part_alone_and_each_input_of_a_part():
    sizes = list[tuple[int, int]]()

    def compute(parts: list[Any]) -> list[Any]:
        sizes.append((len(parts), limit_batch(8)))
        return parts

    worker = Worker("m", torch.device("cpu"), contextlib.nullcontext, Metrics(), Batching(16, 0.005, is_exact=True))
    try:
        jobs = [Job(Kind("", compute), iter([number, number])) for number in range(3)]
        for job in jobs:
            worker.submit(job)
        assert [job.future.result(60) for job in jobs] == [[number, number] for number in range(3)]
    finally:
        worker.close()
    assert sizes == [(1, 1)] * 6


@pytest.mark.slow
def test_exact_probabilities_have_the_same_bits(live, run_of):
    import httpx

    texts = [" ".join(["ab", "ba", "w1", "w2"][: 1 + number % 4]) for number in range(50)]
    server = live(run_of("classification").folder, batching=Batching(is_exact=True))
    with httpx.Client(base_url=server.address, timeout=120) as client:

        def ask(text: str) -> Any:
            return client.post("/v1/classify", json={"input": text}).json()["data"]

        alone = [ask(text) for text in texts]
        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(ask, texts)) == alone


@pytest.mark.slow
def test_exact_log_probabilities_of_tokens_have_the_same_bits(live, run_of):
    import httpx

    server = live(run_of("lm").folder, batching=Batching(is_exact=True))
    with httpx.Client(base_url=server.address, timeout=120) as client:

        def ask(number: int) -> Any:
            asked = {"prompt": TEXTS[number], "seed": number, "max_tokens": 8, "logprobs": 3}
            answer = client.post("/v1/completions", json=asked)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"]

        alone = [ask(number) for number in range(10)]
        with ThreadPoolExecutor(10) as pool:
            assert list(pool.map(ask, range(10))) == alone
    assert any(choice["logprobs"]["token_logprobs"] for choice in alone[0])
