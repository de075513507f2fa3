"""Low-rank adapters of frozen linear layers, by peft: added, merged or written. Mixtures are in lora_experts.py.

    y = W x + (alpha / rank) · B A x                      W is frozen; B begins as zeros, so nothing changes at first
    y = m (W + (alpha / rank) · B A) x / |W + …|          DoRA: m and the lengths |…| are those of the weight's rows

With rsLoRA the factor is alpha / √rank. W may be kept in bf16 (``base_dtype``): where products are computed in bf16, it
is rounded to that anyway; or in four bits (``nf4``), where the adapters learn in addition what the rounded weights say.
Vectors of tokens are then in bf16.

Sources: Hu et al. 2021, "LoRA"; Liu et al. 2024, "DoRA"; Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for
Fine-Tuning with LoRA".
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.errors import UserError, optional_import
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import whole_folder, write_text
from vaak.nn.config import LoraConfig
from vaak.nn.lora_experts import Gate, LoraExperts
from vaak.nn.lora_targets import fit_targets, is_target
from vaak.nn.new_tokens import ORIGINAL, ROWS_KEY, NewRows, iterate_new_rows, merge_new_rows
from vaak.nn.nf4 import NF4_BLOCK, NF4Product, Quantised, Tables, dequantise, make_tables, quantise

log = logging.getLogger("vaak")
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Kept = torch.dtype | Literal["nf4"]
"""How a frozen weight is kept."""
DTYPES: dict[str, Kept] = {"fp32": torch.float32, "bf16": torch.bfloat16, "nf4": "nf4"}
"""The values of ``LoraConfig.base_dtype``."""


def add_lora(model: AnyModule, options: LoraConfig | None, also_trained: Iterable[str] = ()) -> AnyModule:
    """The model, frozen but for the modules ``also_trained``, with low-rank adapters of its layers; None adds none.

    They are drawn from torch's default generator. Default targets are those that the model's family has. Raises
    UserError if peft isn't installed, or a name of ``options.targets`` is that of no layer outside of
    ``also_trained``.
    """
    if options is None:
        return model
    own = [model.get_submodule(name) for name in also_trained]
    linear = linear_layers(model, also_trained)
    options = fit_targets(options, linear)
    require_layers("model.lora", linear, options)
    adapted = [name for name in linear if is_target(name, options.targets)]
    with warnings.catch_warnings(), _outlined_weights(model):
        # of a tied output layer that is adapted, which exports write as untied
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        _peft().inject_adapter_in_model(_peft().LoraConfig(target_modules=adapted, **_peft_options(options)), model)
    for module in own:
        module.requires_grad_(True)
    keep_frozen_weights_in(DTYPES[options.base_dtype], model)
    return model


@contextlib.contextmanager
def _outlined_weights(model: nn.Module) -> Iterator[None]:
    """Within this context, weights in four bits aren't made whole: of each, peft reads the type and the device."""
    layers = [one for one in model.modules() if isinstance(one, NF4Linear)]
    for layer in layers:
        layer.is_outlined = True
    try:
        yield
    finally:
        for layer in layers:
            layer.is_outlined = False


def _peft_options(options: LoraConfig) -> dict[str, Any]:
    return {
        "r": options.rank,
        # It may be any number.
        "lora_alpha": options.alpha,
        "lora_dropout": options.dropout,
        "use_rslora": options.rslora,
        "use_dora": options.dora,
    }


class FrozenLinear(nn.Linear):
    """A linear layer whose weight isn't trained, and is kept in fewer bits than it is computed in."""

    @classmethod
    def of(cls, layer: nn.Linear, dtype: torch.dtype) -> FrozenLinear:
        """Return a layer with the same weight in ``dtype``."""
        frozen = cls(layer.in_features, layer.out_features, bias=False, device="meta")
        frozen.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
        frozen.bias = layer.bias
        return frozen

    def whole(self) -> nn.Linear:
        """Return a layer with the same weight in fp32."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight.float(), requires_grad=False)
        layer.bias = self.bias
        return layer

    def forward(self, inputs: Tensor) -> Tensor:
        """``(…, out)`` of ``(…, in)``."""
        dtype = _product_dtype(inputs)
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.linear(inputs.to(dtype), self.weight.to(dtype), bias)


def is_product(head: nn.Module) -> bool:
    """Return whether a head gives the product of its input and its weight, and no more: adapters would add to it."""
    return type(head) in (nn.Linear, FrozenLinear)


class NF4Linear(FrozenLinear):
    """A linear layer whose weight isn't trained, and is kept in four bits."""

    is_outlined = False
    """Whether ``weight`` has shape, type and device alone."""

    def __init__(self, layer: nn.Linear, weight: Quantised | None = None) -> None:
        """Keep ``layer``'s weight in four bits a number, or a ``weight`` that was kept so before."""
        # nn.Linear's own would make a weight.
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        weight, tables = quantise(layer.weight) if weight is None else weight, make_tables()
        self.codes = nn.Parameter(weight.codes, requires_grad=False)
        self.register_buffer("absmax", weight.absmax)
        self.register_buffer("nested_absmax", weight.nested_absmax)
        self.register_buffer("offset", weight.offset)
        self.register_buffer("pairs", tables.pairs.to(weight.codes.device), persistent=False)
        self.register_buffer("steps", tables.steps.to(weight.codes.device), persistent=False)

    @property
    def kept(self) -> tuple[Quantised, Tables]:
        """The weight in four bits, and the tables by which they are read."""
        return (
            Quantised(self.codes, *(self.get_buffer(name) for name in Quantised._fields[1:])),
            Tables(self.get_buffer("pairs"), self.get_buffer("steps")),
        )

    @property
    def weight(self) -> Tensor:  # type: ignore[override] # made when it is read
        """Return the weight that the four bits stand for, ``(out, in)`` in fp32."""
        if self.is_outlined:
            return self.codes.new_zeros((), dtype=torch.float32).expand(self.out_features, self.in_features)
        return dequantise(*self.kept, torch.float32).view(self.out_features, self.in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(…, out)`` of ``(…, in)``."""
        dtype = _product_dtype(inputs)
        bias = None if self.bias is None else self.bias.to(dtype)
        weight, tables = self.kept
        product: Tensor = NF4Product.apply(  # type: ignore[no-untyped-call]
            inputs.to(dtype), bias, self.in_features, *weight, *tables
        )
        return product


class FrozenEmbedding(nn.Embedding):
    """Vectors of tokens that aren't trained, kept in bf16 and read in fp32."""

    def forward(self, input: Tensor) -> Tensor:
        """``(…, width)`` of tokens ``(…,)``."""
        return super().forward(input).float()


def keep_token_vectors_in_bf16(modules: Iterable[nn.Module | None]) -> None:
    """Keep the frozen weights of embeddings and output layers in bf16, in place; tied ones stay so.

    Unchanged are layers with adapters, and embeddings of another class, which may scale what they read.
    """
    found = [one for one in dict.fromkeys(modules) if one is not None]
    kinds = {nn.Embedding: FrozenEmbedding, nn.Linear: FrozenLinear}
    # One that is tied to an unchanged module is unchanged, too.
    others = {id(one.weight) for one in found if type(one) not in kinds and hasattr(one, "weight")}
    halved: dict[int, nn.Parameter] = {}
    for one in found:
        if type(one) not in kinds or id(one.weight) in others or one.weight.requires_grad:
            continue
        whole: Any = one.weight
        # Not another module, because hooks may be on this one.
        one.__class__ = kinds[type(one)]
        one.weight = halved.setdefault(id(whole), nn.Parameter(whole.detach().to(torch.bfloat16), requires_grad=False))


def list_token_modules(model: nn.Module) -> list[nn.Module | None]:
    """The embedding and the output layer of a network of transformers, or of the one in a model; none of others."""
    one: Any = next((one for one in model.modules() if hasattr(one, "get_output_embeddings")), None)
    try:
        return [] if one is None else [one.get_input_embeddings(), one.get_output_embeddings()]
    except NotImplementedError:
        # transformers raises this for networks without tokens.
        return []


@torch.no_grad()
def follow_stored_types(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Keep vectors of tokens in fp32 where ``tensors``, those of a checkpoint, have them so; in place.

    They are of a run in four bits that was begun before these were kept in bf16: it resumes with the same bits. Raises
    UserError if several processes have parts of them.
    """
    if not any(isinstance(one, FrozenEmbedding) for one in model.modules()):
        return
    for name, one in model.named_parameters():
        if one.dtype == torch.bfloat16 and name in tensors and tensors[name].dtype == torch.float32:
            if hasattr(one, "device_mesh"):
                raise UserError(
                    f"{name} is in fp32 in this checkpoint of an earlier version, which fsdp can't take over; resume "
                    "with training.distributed.strategy: ddp"
                )
            one.data = torch.empty_like(one, dtype=torch.float32)


HEAD_NAMES = ("head", "lm_head")
"""Names of the output layer, in models of ours and of transformers."""


def _product_dtype(inputs: Tensor) -> torch.dtype:
    kind = inputs.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype


def keep_frozen_weights_in(dtype: Kept, model: nn.Module) -> None:
    """Keep the weights of linear layers that aren't trained in ``dtype``, in place; in fp32 nothing is changed.

    Layers stay unchanged whose weight another module shares (embeddings), that of a model's ``head`` (``lm_head`` in
    transformers), which is read without calling it, and in four bits those that aren't of whole blocks. With four bits,
    embeddings and output layer of a network of transformers are kept in bf16.
    """
    for parent, name, layer in list(_layers_to_keep(dtype, model)):
        if not layer.weight.requires_grad:
            setattr(parent, name, NF4Linear(layer) if dtype == "nf4" else FrozenLinear.of(layer, dtype))
    if dtype == "nf4":
        keep_token_vectors_in_bf16(list_token_modules(model))


def _layers_to_keep(dtype: Kept, model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield the layers that may be kept in ``dtype``, each with its parent and its name in that."""
    if dtype == torch.float32:
        return
    owners = Counter(id(one) for module in model.modules() for one in module.parameters(recurse=False))
    # An adapted head has its own weight one level further down.
    in_heads = [one for name, one in model.named_modules() if name.rpartition(".")[2] in HEAD_NAMES]
    for parent in model.modules():
        for name, layer in parent.named_children():
            if type(layer) is not nn.Linear or name in HEAD_NAMES or owners[id(layer.weight)] > 1 or parent in in_heads:
                continue
            if dtype != "nf4" or not layer.weight.numel() % NF4_BLOCK:
                yield parent, name, layer


def list_nf4_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers by name whose weights four bits keep, once ``model`` is frozen."""
    names = {id(one): name for name, one in model.named_modules()}
    return {names[id(layer)]: layer for _, _, layer in _layers_to_keep("nf4", model)}


def never_trained(model: nn.Module) -> frozenset[str]:
    """Return the names of tensors that belong to weights in four bits."""
    layers = [name for name, one in model.named_modules() if isinstance(one, NF4Linear)]
    return frozenset(f"{name}.{field}" for name in layers for field in Quantised._fields)


def _peft() -> Any:
    with optional_import("model.lora requires peft", "hf"):
        return importlib.import_module("peft")


def linear_layers(model: nn.Module, besides: Iterable[str] = ()) -> list[str]:
    """Return the names of linear layers, without those in the modules ``besides``."""
    inside = tuple(f"{name}." for name in besides)
    linear = (name for name, one in model.named_modules() if isinstance(one, nn.Linear))
    return [name for name in linear if not f"{name}.".startswith(inside)]


def require_layers(section: str, linear: Iterable[str], options: LoraConfig) -> None:
    """Raises UserError if a name of ``options.targets`` is that of none of the ``linear`` layers."""
    names = list(linear)
    layers = sorted({name.rpartition(".")[2] for name in names})

    # the last part of a name, which every layer matches by, is the nearest that a user would write
    require_known(
        options.targets,
        [*layers, *names],
        f"{section}.targets: no layer is called",
        remedy=f"there are {list_names(layers)}",
        error=UserError,
        matches=lambda target, name: is_target(name, [target]),
    )


def without_lora(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of a model without low-rank adapters as a ``model`` with them has them: by its names, in its bits."""
    in_nf4 = {f"{name}.weight": one for name, one in model.named_modules() if isinstance(one, NF4Linear)}
    wanted = {*model.state_dict(), *in_nf4}
    moved = {name.replace(".base_layer.", "."): name for name in wanted if ".base_layer." in name}
    for layer_name, layer in model.named_modules():
        if isinstance(layer, LoraExperts):
            moved |= {f"{layer_name}.{part}": f"{layer_name}.base.{part}" for part in layer.base.state_dict()}
    moved |= {name.replace(ORIGINAL, ".weight"): name for name in wanted if name.endswith(ORIGINAL)}
    found = {name if name in wanted else moved.get(name, name): tensor for name, tensor in weights.items()}
    for name, layer in in_nf4.items():
        if name in found and found[name].shape == (layer.out_features, layer.in_features):
            prefix = name.removesuffix("weight")
            found |= {prefix + field: one for field, one in quantise(found.pop(name))._asdict().items()}
    return found


def added_by_lora(model: nn.Module) -> set[str]:
    """Return the names of those tensors of a model that belong to low-rank adapters, or to the gate of several.

    Rows of new tokens that are trained next to them belong to these.
    """
    gates = tuple(f"{name}." for name, one in model.named_modules() if isinstance(one, Gate))
    ends, parts = (".lora_a", ".lora_b", ROWS_KEY), tuple(f".{one}." for one in ("lora_A", "lora_B", LENGTHS))
    names = model.state_dict(keep_vars=True)
    return {one for one in names if one.startswith(gates) or one.endswith(ends) or any(part in one for part in parts)}


@torch.no_grad()
def take_lengths(model: nn.Module, names: Iterable[str]) -> None:
    """Set those of DoRA's lengths that ``names`` has, of a model's parameters, to those of the weights' rows."""
    wanted = set(names)
    for name, layer in model.named_modules():
        if f"{name}.{LENGTHS}.default.weight" in wanted:
            one: Any = layer
            lengths = getattr(one, LENGTHS)["default"].weight
            change = one.scaling["default"] * one.lora_B["default"].weight @ one.lora_A["default"].weight
            lengths.copy_((one.base_layer.weight + change).norm(dim=1))


OF_TOKENS = "token_adapter.trainable_tokens_delta"
"""The name, in peft's files, of the rows of new tokens."""
LENGTHS = "lora_magnitude_vector"
"""The name, in peft, of the lengths of a weight's rows that DoRA trains."""


class Adapter(NamedTuple):
    """A low-rank adapter ``scale * second @ first`` of the layer called ``name``, whose own weights are ``base``'s.

    ``lengths`` ``(out,)`` are those of the changed weight's rows, where they are trained (DoRA).
    """

    name: str
    base: nn.Linear
    first: Tensor
    second: Tensor
    scale: float
    lengths: Tensor | None = None

    def changed(self) -> Tensor:
        """Return the weight with the change in it."""
        weight = self.base.weight + self.scale * self.second @ self.first
        return weight if self.lengths is None else weight * (self.lengths / weight.norm(dim=1))[:, None]


def iterate_adapters(model: nn.Module, expert: int | None = None, weight: float = 1.0) -> Iterator[Adapter]:
    """Yield a model's low-rank adapters; in a mixture of experts, those of one ``expert``, times a ``weight``."""
    for name, layer in model.named_modules():
        one: Any = layer
        if isinstance(layer, LoraExperts) and expert is not None:
            yield Adapter(name, layer.base, layer.lora_a[expert], weight * layer.lora_b[expert], layer.scale)
        elif hasattr(layer, "lora_A"):
            first, second = one.lora_A["default"].weight, one.lora_B["default"].weight
            lengths = getattr(one, LENGTHS)["default"].weight if one.use_dora.get("default") else None
            yield Adapter(name, one.base_layer, first, second, float(one.scaling["default"]), lengths)


@torch.no_grad()
def merged(model: AnyModule, expert: int | None = None, weight: float = 1.0) -> AnyModule:
    """The model with its low-rank adapters in the weights, all in fp32: itself if that changes nothing, else a copy.

    So are rows of new tokens.

    ``expert`` and ``weight`` are as in ``iterate_adapters``.
    """
    frozen = [name for name, one in model.named_modules() if isinstance(one, FrozenLinear | FrozenEmbedding)]
    if not frozen and not any(iterate_adapters(model, expert, weight)) and not any(iterate_new_rows(model)):
        return model
    whole = copy.deepcopy(model)
    merge_new_rows(whole)
    for name in frozen:
        layer: Any = whole.get_submodule(name)
        if isinstance(layer, NF4Linear):
            whole.set_submodule(name, layer.whole())
        elif isinstance(layer, FrozenLinear):
            # Its weight may be an embedding's, which it still shares.
            layer.__class__ = nn.Linear  # type: ignore[assignment]
    for parameter in whole.parameters():
        # Tied ones stay so.
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.float()
    for adapter in list(iterate_adapters(whole, expert, weight)):
        # Its weight may be an embedding's, too.
        layer = copy.deepcopy(adapter.base)
        layer.weight.copy_(adapter.changed())
        whole.set_submodule(adapter.name, layer)
    return whole


def write_adapter(
    adapters: list[Adapter],
    options: LoraConfig | None,
    targets: Iterable[str],
    base: str | None,
    folder: Path,
    *,
    whole: Mapping[str, nn.Module] | None = None,
    files: Mapping[str, str | Mapping[str, Tensor]] | None = None,
    kind: str | type[nn.Module] | None = None,
) -> None:
    """Write ``folder``, completely or not at all, with the low-rank ``adapters`` alone, as ``options`` made them.

    ``targets`` are the layers' names, or their ends, in the ``base`` that peft is to put them on. ``whole`` are modules
    that were trained whole, by their names in it, and the rows of new tokens in modules; ``files`` are further ones:
    texts, or tensors. ``kind`` is peft's type of task, by which ``AutoPeftModelFor…`` know the base's class; or, where
    peft has none, that class in transformers, for ``AutoPeftModel``.

    Raises UserError if there are none, or the folder has something in it.
    """
    if not adapters or options is None:
        raise UserError("this model has no low-rank adapters (model.lora, model.experts); export it as hf")
    if options.base_dtype == "nf4":
        log.warning(
            "--format peft: these adapters were trained on a base in 4 bits, so with the unrounded base outputs "
            "differ; load it with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
            "bnb_4bit_use_double_quant=True), or use --format hf, which has the rounded weights"
        )
    rows = {name: one for name, one in (whole or {}).items() if isinstance(one, NewRows)}
    modules = {name: one for name, one in (whole or {}).items() if name not in rows}
    config = _peft().LoraConfig(
        **_peft_options(options),
        target_modules=list(targets),
        modules_to_save=list(modules) or None,
        trainable_token_indices={name: list(one.ids) for name, one in rows.items()} or None,
        base_model_name_or_path=base,
        task_type=kind if isinstance(kind, str) else None,
        auto_mapping=None if kind is None or isinstance(kind, str) else _name_class(kind),
        inference_mode=True,
    )
    # peft makes a set of it, written in another order by each process.
    config.target_modules = list(targets)
    tensors = {
        f"base_model.model.{adapter.name}.{name}.weight": weight.detach().cpu().contiguous()
        for adapter in adapters
        for name, weight in (("lora_A", adapter.first), ("lora_B", adapter.second))
    }
    with_lengths = [(one.name, one.lengths) for one in adapters if one.lengths is not None]
    tensors |= {f"base_model.model.{name}.{LENGTHS}": lengths.detach().cpu() for name, lengths in with_lengths}
    tensors |= {f"base_model.model.{name}.{OF_TOKENS}": one.rows.detach().cpu() for name, one in rows.items()}
    for name, module in modules.items():
        weights = module.state_dict(prefix=f"base_model.model.{name}.")
        tensors |= {key: one.cpu().contiguous() for key, one in weights.items()}
    with whole_folder(folder) as temporary:
        config.save_pretrained(str(temporary))
        for file, content in {"adapter_model.safetensors": tensors, **(files or {})}.items():
            if isinstance(content, str):
                write_text(temporary / file, content)
            else:
                save_file(dict(content), temporary / file, metadata={"format": "pt"})


def _name_class(kind: type[nn.Module]) -> dict[str, str]:
    """Return the class of transformers that a network's class is, or was made from, as peft names it."""
    theirs = next(one for one in kind.__mro__ if one.__module__.startswith("transformers."))
    return {"base_model_class": theirs.__name__, "parent_library": theirs.__module__}


def write_own_adapter(
    model: nn.Module, options: LoraConfig | None, base: str | None, folder: Path, whole: Iterable[str] = ()
) -> None:
    """Write the low-rank adapters of ``model``, one of ours, by module names, with a README on loading them.

    ``base`` is the run that it began with; the modules ``whole`` were trained whole, and are written, too.

    ``options`` are those of the adapters. Raises UserError if there are none, or ``folder`` has something in it.
    """
    adapters = list(iterate_adapters(model))
    modules = {name: model.get_submodule(name) for name in whole}
    readme = README.format(run=base or "RUN", folder=folder.name)
    names = [adapter.name for adapter in adapters]
    write_adapter(adapters, options, names, base, folder, whole=modules, files={"README.md": readme})


README = """\
# Low-rank adapters of a Vaak model

In the format of peft, under the names of the model's modules in Vaak: no other software has this model. They belong to
the model that their run began with, here called `{run}`:

```python
import peft
import vaak

base = vaak.open("{run}").model  # of a run of several tasks: .model.tasks["NAME"]
model = peft.PeftModel.from_pretrained(base, "{folder}")
```

Layers that were trained whole, such as a classifier's head, are also in the file and replace the base's, which must
have the same shape. Vaak's commands read the run that was exported, not this folder.
"""
