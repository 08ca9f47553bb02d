"""A trained network in the formats that other programs read: ONNX, NIR, plain weights, the authors' checkpoint."""

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from spikingjelly.activation_based import neuron
from torch import Tensor, nn

from ..control import copied, find_blocks, is_node, unwrapped
from ..encoding import SignedPoisson
from ..inference import Weights, fuse
from ..models import Spikformer, official_state_dict
from ..neurons import DietLIF, LIFNode, RateIF, STDBNode, spikingjelly_nodes
from .accelerate import plain_synapses
from .plain import counting, plain

Card = Mapping[str, Any]
SUFFIXES = {"onnx": ".onnx", "nir": ".nir", "safetensors": ".safetensors", "official": ".pth"}

# What SpikingJelly's NIR exporter knows, by name: torch and SpikingJelly both have a Linear.
_IN_NIR = (
    "Linear",
    "Conv1d",
    "Conv2d",
    "AvgPool2d",
    "Flatten",
    "IFNode",
    "LIFNode",
    "ParametricLIFNode",
    "CUBALIFNode",
)


class ExportError(RuntimeError):
    """A network that the format cannot hold, or a file that cannot be written; the message says what to do."""


def formats(model: nn.Module) -> list[str]:
    """The formats that can hold this network.

    Args:
        model: the network.
    """
    network = unwrapped(model)
    impossible = {"nir"} if _not_in_nir(network) else set[str]()
    impossible |= set() if isinstance(network, Spikformer) and not _with_constants(network) else {"official"}
    return [name for name in SUFFIXES if name not in impossible]


def export(
    model: nn.Module,
    path: str | Path,
    to: str,
    example: Tensor,
    card: Mapping[str, Any] | None = None,
    weights: Weights = "float32",
) -> Path:
    """Write the network to `path` as "onnx", "nir", "safetensors" or "official", and give the path.

    `example` is a batch of its inputs; ONNX keeps its T and image size, not its batch size. The model is not touched.
    `card` is plain data to go along (normalisation, classes, T): in the file's own metadata where the format has any
    (ONNX, safetensors), and in a JSON file beside it. Weights as "int8" make an ONNX file that counts in whole numbers.

    Args:
        model: the network.
        path: of the file.
        to: the format.
        example: a batch of inputs.
        card: plain data that goes along.
        weights: "float32", or "int8" for an ONNX file that counts in whole numbers.
    """
    writers: dict[str, Callable[[nn.Module, Path, Tensor, Card], None]] = {
        "onnx": _write_onnx,
        "nir": _write_nir,
        "safetensors": _write_safetensors,
        "official": _write_official,
    }
    if to not in writers:
        raise ExportError(f"cannot export to {to!r}; choose one of {', '.join(writers)}")
    if weights == "int8" and to != "onnx":
        raise ExportError(f"int8 weights are for ONNX files; export to {to} in float32, or --to onnx")
    path = Path(path)
    (network,) = copied(unwrapped(model))
    network.cpu().eval()
    network = counting(fuse(network, "int8")) if weights == "int8" else network
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[to](network, path, example.detach().cpu(), card or {})
        if card:
            path.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n")
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}; choose another path") from None
    return path


def _write_onnx(network: nn.Module, path: Path, example: Tensor, card: Card) -> None:
    _require("onnx", "onnxscript")
    _refuse_draws(network, example)
    # A batch of one would be taken for a constant; the batch comes second where time comes first.
    batch_axis = 1 if example.ndim == 5 else 0
    example = example if example.shape[batch_axis] > 1 else torch.cat([example, example], batch_axis)
    try:
        torch.onnx.export(
            _with_plain_nodes(network),
            (example,),
            path,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({batch_axis: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(
            f"torch cannot turn {type(network).__name__} into ONNX: {_first_line(error)}; "
            "its forward pass must not branch on values, and export to safetensors works for any network"
        ) from error
    _annotate(path, card)


def _annotate(path: Path, card: Card) -> None:
    """The card in place of what the exporter notes at every node of the Python code it came from."""
    import onnx

    model = onnx.load(path)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
    onnx.helper.set_model_props(model, _texts(card))
    onnx.save(model, path)


def _texts(card: Card) -> dict[str, str]:
    """Metadata of files are words: anything else is written as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in card.items()}


def _with_plain_nodes(network: nn.Module) -> nn.Module:
    """The network with plain nodes in place of its own: no fused kernel and no policy's slope in the graph."""
    for name, node in list(network.named_modules()):
        if not isinstance(node, neuron.BaseNode | RateIF | DietLIF | STDBNode):
            continue
        twin = plain(node)
        if twin is None:
            raise ExportError(
                f"{name} is a {type(node).__name__} in step mode {node.step_mode!r}; an ONNX file keeps no state "
                "between calls: use LIFNode, RateIF (both with step_mode='m'), DietLIF or STDBNode throughout"
            )
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, twin)
    return network


def _refuse_draws(network: nn.Module, example: Tensor) -> None:
    """Events pass an encoding unchanged; images are drawn from, which no two runtimes do alike."""
    drawn = [name for name, module in network.named_modules() if isinstance(module, SignedPoisson)]
    if drawn and example.ndim != 5:
        raise ExportError(
            f"{drawn[0]} draws spikes at random, which an ONNX file cannot repeat; "
            "give an example of events (T, B, C, H, W), and the file spikes that SignedPoisson has drawn"
        )


def _write_nir(network: nn.Module, path: Path, example: Tensor, card: Card) -> None:
    _require("nir", "nirtorch")
    uncovered = _not_in_nir(network)
    if uncovered:
        raise ExportError(
            f"NIR cannot hold {type(network).__name__}: SpikingJelly's exporter has nothing for "
            f"{', '.join(uncovered)}; it covers chains of {', '.join(_IN_NIR)}. "
            f"Export to {' or '.join(formats(network))} instead"
        )
    from spikingjelly.activation_based import nir_exchange

    try:
        with spikingjelly_nodes(network), plain_synapses(network):
            nir_exchange.export_to_nir(network, example, path)
    except OSError:
        raise
    except Exception as error:  # the exporter and the tracer below it raise whatever they met
        raise ExportError(
            f"SpikingJelly's NIR exporter does not cover {type(network).__name__}: {_first_line(error)}. "
            "Export to onnx or safetensors instead"
        ) from error


def _not_in_nir(network: nn.Module) -> list[str]:
    """Kinds of layers, and attention, that the exporter would fail on or, worse, leave out."""
    with plain_synapses(network):
        kinds = {type(module).__name__ for module in _layers(network)} - set(_IN_NIR)
    constants = [node.constants for node in network.modules() if isinstance(node, LIFNode)]
    kinds |= {"a threshold per time step"} if any(isinstance(threshold, list) for threshold, _ in constants) else set()
    try:
        names = [block.name for block in find_blocks(network)]
    except ValueError:
        return sorted(kinds)
    return [*sorted(kinds), f"products of spikes and residual sums (attention in {', '.join(map(str, names))})"]


def _with_constants(network: nn.Module) -> list[str]:
    """Names of the nodes whose threshold or time constant is part of the weights."""
    nodes = [(name, node) for name, node in network.named_modules() if isinstance(node, LIFNode)]
    return [name for name, node in nodes if node.threshold is not None or node.time_constant is not None]


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Modules without children; a node counts as one, its surrogate is not a layer."""
    if isinstance(module, neuron.BaseNode) or is_node(module) or not any(module.children()):
        yield module
    else:
        for child in module.children():
            yield from _layers(child)


def _write_safetensors(network: nn.Module, path: Path, example: Tensor, card: Card) -> None:
    from safetensors.torch import save

    # Copies: safetensors refuses what nodes share, such as a constant of a group.
    weights = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    path.write_bytes(save(weights, metadata=_texts(card) or None))


def _write_official(network: nn.Module, path: Path, example: Tensor, card: Card) -> None:
    if not isinstance(network, Spikformer):
        raise ExportError(
            f"the authors' names are those of a Spikformer, this is a {type(network).__name__}; export to safetensors"
        )
    if nodes := _with_constants(network):
        raise ExportError(
            f"the authors' nodes have no threshold or time constant of their own, as {nodes[0]} has; "
            "export to onnx or safetensors"
        )
    # Their model has LayerNorms that it never calls, and loads nothing without them.
    torch.save(official_state_dict(network, layer_norms=True), path)


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f'this export needs {" and ".join(missing)}: pip install "sage-snn[export]"')


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
