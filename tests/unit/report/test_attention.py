"""The picture of cross-attention: the numbers are the model's, the page shows every token and runs no text as code."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tiny_translator import SENTENCES, tiny_translator
from vaak.core.errors import UserError
from vaak.nn.stack import TransformerStack
from vaak.report.attention import Sentence, draw_attention
from vaak.tasks.seq2seq.model import cross_attention
from vaak.tasks.seq2seq.predict import DecodingSettings, draw_translation, token_texts

GREEDY = DecodingSettings("greedy", 8)


class Page(HTMLParser):
    """The tables of a page: heads of columns and rows, and the numbers of the cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.tables: list[tuple[list[str], list[str], list[float]]] = []
        self.inside = ""
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        if tag == "table":
            self.tables.append(([], [], []))
        self.inside = "h2" if tag == "h2" else found.get("scope") or ""
        if tag == "td" and "title" in found:
            self.tables[-1][2].append(float(found["title"] or ""))
        if self.inside in ("col", "row"):
            self.heads.append("")

    @property
    def heads(self) -> list[str]:
        """Return the text of the rows or of the columns, depending on which the reader is inside."""
        columns, rows, _ = self.tables[-1]
        return rows if self.inside == "row" else columns

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "h2":
            self.titles.append(data)
        elif self.inside:
            self.heads[-1] += data


def test_the_weights_are_those_the_model_mixes_with():
    """The values that a layer puts out, mixed by hand with the weights, are what it puts out."""
    translator = tiny_translator(num_heads=1)
    model, source, target = translator.model.eval(), [7, 9, 8, 2], [1, 12, 14]
    weights = cross_attention(model, source, target)
    assert weights.shape == (2, 1, 3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 3))
    put_out = []
    assert isinstance(model.decoder, TransformerStack)
    layers = [block.get_submodule("cross_attention") for block in model.decoder.blocks]
    hooks = [layer.register_forward_hook(lambda _, __, output: put_out.append(output[0])) for layer in layers]
    with torch.inference_mode():
        memory = model.encode(torch.tensor([source]), torch.ones(1, 4, dtype=torch.bool))
        model.decode(torch.tensor([target]), memory, torch.ones(1, 4, dtype=torch.bool))
        for layer, own, output in zip(layers, weights[:, 0].double(), put_out, strict=True):
            value, output_of = layer.get_submodule("value"), layer.get_submodule("output")
            mixed = output_of(own @ value(memory[0]))
            torch.testing.assert_close(output, mixed, rtol=0, atol=1e-5)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("attention_type", ["softmax", "linear"])
def test_each_head_adds_up_to_one_and_leaves_the_model_as_it_was(attention_type: str):
    model = tiny_translator(attention_type=attention_type, dropout=0.5).model.train()
    first = cross_attention(model, [7, 9, 8, 2], [1, 12, 14])
    torch.testing.assert_close(first.sum(-1), torch.ones(first.shape[:3]))
    assert torch.equal(first, cross_attention(model, [7, 9, 8, 2], [1, 12, 14])), "without dropout"
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_page_shows_each_token_and_each_number(tmp_path: Path):
    translator, path = tiny_translator(), tmp_path / "attention.html"
    (translation,) = translator.translate([SENTENCES["source"][1]], GREEDY)
    draw_translation(translator, translation, path)
    page = Page(path.read_text(encoding="utf-8"))
    best, source_ids = translation.candidates[0], translator.source_ids(translation.source)
    written = [*best.tokens, *[translator.target.eos_id] * best.ended]
    weights = cross_attention(translator.model, source_ids, [translator.target.bos_id, *written[:-1]])
    layers, num_heads = weights.mean(1), weights.shape[1]
    assert num_heads > 1
    heads = [f"layer {layer}, head {head}" for layer in (1, 2) for head in range(1, num_heads + 1)]
    assert page.titles == ["mean of all layers", "layer 1", "layer 2", *heads]
    shown = [layers.mean(0), *layers, *weights.flatten(0, 1)]
    for (columns, rows, numbers), layer in zip(page.tables, shown, strict=True):
        assert columns == token_texts(translator.source, source_ids)
        assert rows == token_texts(translator.target, written)
        torch.testing.assert_close(torch.tensor(numbers), layer.flatten(), rtol=0, atol=0.00501)
    assert columns[-1] == "</s>"
    assert re.search("[\u0900-\u097f]", "".join(rows)), "Devanagari stands as it is"


def test_one_scale_for_all_tables_with_its_legend_and_the_sentences(tmp_path: Path):
    """A cell's shade follows from its value alone, whichever table it stands in."""
    translator, path = tiny_translator(), tmp_path / "attention.html"
    (translation,) = translator.translate([SENTENCES["source"][1]], GREEDY)
    draw_translation(translator, translation, path)
    text = path.read_text(encoding="utf-8")
    assert f"<dd>{translation.source}</dd>" in text
    assert f"<dd>{translation.text}</dd>" in text
    cells = [(float(value), int(shade)) for shade, value in re.findall(r'<td class="w(\d+)" title="([\d.]+)">', text)]
    highest = max(value for value, _ in cells)
    assert f"{highest:.2f}, the highest on this page" in text
    assert re.findall(r'<i class="w(\d+)">', text) == [str(shade) for shade in range(21)]
    assert all(abs(shade - value / highest * 20) <= 0.5 + 20 * 0.011 / highest for value, shade in cells)


def test_tokens_are_text_and_never_code(tmp_path: Path):
    path = tmp_path / "page.html"
    source = ["<script>alert(1)</script>", "a&b", '"', "\n"]
    weights = cross_attention(tiny_translator().model, [7, 9, 8, 2], [1, 12])
    draw_attention(weights.numpy(), Sentence("<i>a</i>", source), Sentence("<u>", ["<b>", "</td>"]), path)
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.tags & {"script", "b", "u", "img", "link"}
    assert "<i>a" not in path.read_text(encoding="utf-8")
    assert page.tables[0][0] == [*source[:3], "⏎"]
    assert page.tables[0][1] == ["<b>", "</td>"]


def test_parts_of_characters_and_special_tokens_have_texts():
    target = tiny_translator().target
    ids = [*target.encode("लाल घर"), target.eos_id]
    texts = token_texts(target, ids)
    assert len(texts) == len(ids)
    assert texts[-1] == "</s>"


def test_what_can_not_be_drawn_is_refused(tmp_path: Path):
    translator = tiny_translator()
    blank, real = translator.translate(["", "no"], GREEDY)
    with pytest.raises(UserError, match="blank"):
        draw_translation(translator, blank, tmp_path / "a.html")
    with pytest.raises(UserError, match=r"a.png: .* \.html"):
        draw_translation(translator, real, tmp_path / "a.png")
    with pytest.raises(UserError, match=r"missing/a\.html can't be written: No such file"):
        draw_translation(translator, real, tmp_path / "missing" / "a.html")
    assert list(tmp_path.iterdir()) == []
