"""A network of the user's in place of a stack: called as one, and tried on what a task relies on when it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from users_classes import NETWORK, STEPPING
from vaak.core.errors import OptionError, UserError
from vaak.nn.config import ConformerConfig, DecoderConfig, StackConfig
from vaak.nn.conformer import Conformer
from vaak.nn.factory import ModelFactory
from vaak.nn.initialisation import initialise
from vaak.nn.models import EncoderDecoderModel, TransformerModel
from vaak.nn.own_network import OwnNetwork, make_stack
from vaak.nn.stack import TransformerStack

WIDTH = 8
RUNNING = "x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]"
MASKED = "((x * mask[..., None]).sum(1) / mask.sum(1)[:, None])[:, None].expand_as(x)"


def written(folder: Path, body: str, made: str = "", takes: str = "x, mask") -> str:
    """The name of a network of one line in a file, which is new each time."""
    file = folder / f"net{len(list(folder.iterdir()))}.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def __init__(self, d_model, causal):\n        super().__init__()\n        self.causal = causal\n{made}\n"
        f"    def forward(self, {takes}):\n        return {body}\n"
    )
    return f"{file}:Net"


def stack_of(reference: str, causal: bool = True, memory_width: int | None = None, options: Any = None) -> OwnNetwork:
    config = DecoderConfig(type=reference, d_model=WIDTH, options=options or {})
    stack = make_stack(config, causal=causal, memory_width=memory_width)
    assert isinstance(stack, OwnNetwork)
    return stack


@pytest.fixture(params=[NETWORK, STEPPING], ids=["reads again", "has steps"])
def net(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    (tmp_path / "own.py").write_text(request.param)
    return f"{tmp_path / 'own.py'}:Net"


DRAWN = "        self.weight = nn.Parameter(torch.randn(d_model, d_model))"
GATE = "        self.gate = nn.Parameter(torch.zeros(d_model))"
NORM = "        self.norm = nn.BatchNorm1d(d_model)"
SHIFTED = "        self.over_time = nn.Conv1d(d_model, d_model, 3)"
CONVOLUTION = "        self.over_time = nn.Conv1d(d_model, d_model, 3, padding=1)"
WRONG = [
    # a leak: to all places, to the next one alone, behind a gate that begins at 0, by a normalisation over time
    ("x + x.mean(1, keepdim=True)", {}, "first 1 places changes with those after them, which a decoder has to predict"),
    ("x + 1e-3 * x.roll(-1, 1)", {}, "first 1 places changes with those after"),
    ("x + self.gate * x.flip(1)", {"made": GATE}, "changes with"),
    ("self.over_time(x.transpose(1, 2)).transpose(1, 2)", {"made": CONVOLUTION}, "first 1 places"),
    ("(x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0).clamp(min=1e-3)", {}, "changes with"),
    ("torch.cat([x[:, :4].cumsum(1), x[:, 4:8].flip(1), x[:, 8:]], 1)", {}, "first 5 places changes with those after"),
    ("x * mask.sum(1)[:, None, None]", {}, "changes with the mask of later ones"),
    # padding, and other rows
    ("x + x.mean(1, keepdim=True)", {"causal": False}, "changes with the padding, where mask is False"),
    ("x / x.shape[1]", {"causal": False}, "how much padding there is"),
    ("x - x[:1, :1]", {"causal": False}, "the other rows of its batch"),
    ("x.cumsum(1) - x[:1]", {}, "the other rows of its batch"),
    # shapes, types, numbers
    ("x[:, :-1]", {}, r"gives \(3, 8, 8\) for x \(3, 9, 8\); expected the same shape"),
    ("(x, mask)", {}, r"gives a tuple for x \(3, 9, 8\)"),
    ("x.double()", {}, "gives torch.float64 for x of torch.float32"),
    ("x / 0", {}, "gives numbers that aren't finite"),
    ("x + torch.rand(1)", {}, "gives other numbers each time in evaluation"),
    ("x @ torch.ones(3, 3)", {}, r"doesn't take x \(3, 9, 8\) and mask \(3, 9\): RuntimeError: .* \(net0\.py:11\)"),
    ("x", {"takes": "x"}, "doesn't take x .* TypeError"),
    ("x[:, [0, 1, 2, 3, 4, 5, 6, 7, 8]]", {}, r"fails on the rows of a batch one by one: IndexError"),
    ("x", {"memory_width": 4}, "looks at an encoder: its forward must take memory and memory_mask"),
    (
        "x + memory.mean(1, keepdim=True)[..., :8]",
        {"memory_width": 8, "takes": "x, mask, memory, memory_mask"},
        "changes with padding, where memory_mask is False",
    ),
    (f"{RUNNING}", {"takes": "x, mask, documents"}, "changes with the others of its row"),
    # what can't be made
    ("x", {"made": "        self.weight = torch.ones(causal, 'a')"}, r"can't be made: TypeError: .* \(net0\.py:9\)"),
    ("x", {"options": {"hiden": 3}}, "has no option hiden; it has no options"),
    ("x", {"options": {"memory_width": 3}}, "has no option memory_width; it has no options"),
]


@pytest.mark.parametrize(("body", "about", "message"), WRONG)
def test_what_a_task_can_not_rely_on_is_one_line(tmp_path, body, about, message):
    about = dict(about)
    causal, width, options = (about.pop(name, None) for name in ("causal", "memory_width", "options"))
    reference = written(tmp_path, body, **about)
    with pytest.raises(UserError, match=message) as error:
        stack_of(reference, causal is not False, width, options)
    assert str(error.value).startswith("model.type: net0.py:Net")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "made", "takes", "causal"),
    [
        (RUNNING, "", "x, mask", True),
        (MASKED, "", "x, mask", False),
        ("x @ self.weight", DRAWN, "x, mask", True),
        ("x + self.gate * x", GATE, "x, mask", True),
        ("self.norm(x.transpose(1, 2)).transpose(1, 2)", NORM, "x, mask", True),
        ("self.over_time(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)", SHIFTED, "x, mask", True),
        ("x * (1 + (documents >= 0)[..., None])", "", "x, mask, documents", True),
        ("torch.fft.irfft(torch.fft.rfft(x, 32, 1) * torch.fft.rfft(torch.arange(1, 17.).pow(-1), 32)[:, None], 32, 1)"
         "[:, : x.shape[1]]", "", "x, mask", True),
    ],
)  # fmt: skip
def test_what_does_as_a_stack_does_passes(tmp_path, body, made, takes, causal):
    """So does a causal convolution by way of spectra, in which later places leave what rounding leaves."""
    stack_of(written(tmp_path, body, made, takes), causal)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("NAME.py:Other", "has no Other"),
        ("nowhere.py:Net", "can't be read"),
        ("NAME.py:nn", "is not a torch.nn.Module class"),
        ("made_up_package:Net", "no package made_up_package"),
    ],
)
def test_a_class_that_is_none(tmp_path, reference, message):
    name = written(tmp_path, "x").partition(".py")[0]
    with pytest.raises(UserError, match=message):
        stack_of(reference.replace("NAME", name))


def test_names_of_vaaks_options_are_vaaks():
    with pytest.raises(UserError, match="hidden_size is Vaak's d_model here; give that option of the class another"):
        StackConfig(type="a.b:Net", options={"hidden_size": 3})
    with pytest.raises(UserError, match="dropout is Vaak's dropout"):
        StackConfig(type="a.b:Net", options={"dropout": 0.1})
    with pytest.raises(UserError, match=r"num_heads is not read for a\.b:Net; give it in options"):
        StackConfig(type="a.b:Net", num_heads=3)


def test_no_draw_of_a_run_and_no_weight_changes(tmp_path):
    """The trial opens gates, and its draws are its own; weights begin as the user's class makes them."""
    reference = written(tmp_path, "x + self.gate * x + x @ self.weight", f"{DRAWN}\n{GATE}")
    torch.manual_seed(3)
    expected, after = torch.randn(WIDTH, WIDTH), torch.rand(5)
    torch.manual_seed(3)
    stack = stack_of(reference)
    assert torch.equal(torch.rand(5), after)
    initialise(stack)
    assert torch.equal(stack.network.get_parameter("weight"), expected)
    assert torch.equal(stack.network.get_parameter("gate"), torch.zeros(WIDTH))
    assert stack.network.training


def test_without_numbers_nothing_is_tried(tmp_path):
    with torch.device("meta"):
        stack_of(written(tmp_path, "x + x.mean(1, keepdim=True)"))


@torch.no_grad()
def test_decoding_reads_what_a_whole_pass_reads(net):
    """Rows of different lengths, padded on the left; one leaves while the others continue."""
    model = TransformerModel(StackConfig(type=net, d_model=WIDTH, dropout=0.0), 20, causal=True).double().eval()
    ids = torch.arange(12).view(2, 6) + 3
    whole = model(ids)
    cache = model.new_cache()
    padded = torch.cat([torch.cat([torch.zeros(1, 2, dtype=torch.long), ids[:1, :2]], 1), ids[1:, :4]])
    documents = torch.tensor([[-1, -1, 0, 0], [0, 0, 0, 0]])
    found = model(padded, documents=documents, cache=cache)
    torch.testing.assert_close(found[0, 2:], whole[0, :2])
    torch.testing.assert_close(found[1], whole[1, :4])
    for more in range(2):
        new = torch.stack([ids[0, 2 + more], ids[1, 4 + more]])[:, None]
        found = model(new, documents=torch.zeros_like(new), cache=cache)
        torch.testing.assert_close(found[:, 0], torch.stack([whole[0, 2 + more], whole[1, 4 + more]]))
    cache.select(torch.tensor([0]))
    found = model(ids[:1, 4:5], documents=torch.zeros(1, 1, dtype=torch.long), cache=cache)
    torch.testing.assert_close(found[0, 0], whole[0, 4])


WITH_NAMES = (
    STEPPING.replace(
        "class Net",
        "import typing\nSeen = typing.NamedTuple('Seen', [('sum', typing.Any), ('count', typing.Any)])\nclass Net",
    )
    .replace(
        'state = {"sum": sums[:, -1:], "count": new[-1:].expand(x.shape[0])}',
        "state = Seen(sums[:, -1:], new[-1:].expand(x.shape[0]))",
    )
    .replace('state["sum"]', "state.sum")
    .replace('state["count"]', "state.count")
)
"""The same with its state in a NamedTuple."""


@torch.no_grad()
@pytest.mark.parametrize(("code", "read"), [(NETWORK, 2 * sum(range(4, 13))), (STEPPING, 2 * 12), (WITH_NAMES, 2 * 12)])
def test_with_steps_each_token_is_read_once(tmp_path, monkeypatch, code, read):
    """Two rows, four tokens at first and eight more."""
    (tmp_path / "own.py").write_text(code)
    model = TransformerModel(
        StackConfig(type=f"{tmp_path / 'own.py'}:Net", d_model=WIDTH, dropout=0.0), 20, causal=True
    ).eval()
    places = list[int]()
    assert isinstance(model.stack, OwnNetwork)
    inner: Any = model.stack.network.inner
    inner.register_forward_hook(lambda _, given, __: places.append(given[0][..., 0].numel()))
    cache, ids = model.new_cache(), torch.arange(24).view(2, 12) % 20
    model(ids[:, :4], cache=cache)
    for place in range(4, 12):
        model(ids[:, place, None], cache=cache)
    assert sum(places) == read


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("count + 1, count + x", "1, x", "decode_step gives other numbers than forward"),
        ('"sum": sums[:, -1:]', '"sum": sums[:, -1:].detach().clone().roll(1, 0)', "decode_step gives other numbers"),
        ("), state\n", ")\n", r"decode_step fails: .* values to unpack"),
        ("memory=None, memory_mask=None):\n        before", "):\n        before", "decode_step fails: TypeError"),
    ],
)
def test_steps_that_are_not_those_of_forward_are_said(tmp_path, right, wrong, message):
    assert right in STEPPING
    (tmp_path / "own.py").write_text(STEPPING.replace(right, wrong))
    with pytest.raises(OptionError, match=message) as error:
        stack_of(f"{tmp_path / 'own.py'}:Net", memory_width=WIDTH)
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_both_sides_of_a_translator(net):
    side = {"type": net, "d_model": WIDTH}
    factory = ModelFactory({"encoder": {**side, "d_model": 6}, "decoder": side, "share_embeddings": False})
    model = factory.create_model(20)
    assert isinstance(model, EncoderDecoderModel)
    model = model.double().eval()
    source, target = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 8, 9], [1, 9, 8]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    whole = model(source, mask, target)
    assert not torch.allclose(whole, model(source.flip(0), mask.flip(0), target)), "the decoder looks at the source"
    memory, cache = model.encode(source, mask), model.new_cache()
    one_by_one = [model.decode(target[:, place, None], memory, mask, cache=cache) for place in range(3)]
    torch.testing.assert_close(model.logits(torch.cat(one_by_one, 1), source, memory, mask), whole)


def test_recomputing_gives_the_same_gradients(tmp_path):
    reference = written(tmp_path, "x @ self.weight.tanh()", DRAWN)
    stack, x = stack_of(reference), torch.randn(2, 5, WIDTH)
    gradients = []
    for on in (False, True):
        stack.recompute(on)
        stack.zero_grad()
        stack(x).square().sum().backward()
        gradients.append(stack.network.get_parameter("weight").grad)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_packed_rows_are_for_networks_that_tell_documents_apart(tmp_path):
    stack = stack_of(written(tmp_path, RUNNING))
    documents = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(OptionError, match=r"must take as documents .* use training\.batching: {type: bucketed}"):
        stack(torch.randn(1, 4, WIDTH), documents=documents)
    apart = stack_of(written(tmp_path, "x * 2", takes="x, mask, documents"))
    assert apart(torch.randn(1, 4, WIDTH), documents=documents).shape == (1, 4, WIDTH)


def test_a_conformers_frames_may_go_through_it(net):
    frames, lengths = Conformer(ConformerConfig(type=net, d_model=WIDTH), 5)(
        torch.randn(2, 13, 5), torch.tensor([13, 6])
    )
    assert (frames.shape, lengths.tolist()) == ((2, 4, WIDTH), [4, 2])


def test_vaaks_own_stays_vaaks():
    assert type(make_stack(StackConfig(), causal=True)) is TransformerStack
    assert not any(isinstance(one, OwnNetwork) for one in ModelFactory({"d_model": 16}).create_model(8).modules())
