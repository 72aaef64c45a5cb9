"""LoRA (arXiv 2106.09685) through peft: small trained matrices beside frozen weights.

The model that engines and exports see is the merged one; the model without the matrices is the reference of the KL term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cacherl.errors import ConfigError
from cacherl.learner_settings import LoraSection

_BASE = ".base_layer."
_ADAPTER = "default"
#: Every linear layer but the output layer.
ALL_LINEAR = "all-linear"


def add_adapter(policy: nn.Module, settings: LoraSection) -> None:
    """Freeze a Hugging Face model and put an adapter that changes nothing yet beside its linear layers, in place.

    Raises:
        ConfigError: peft is not installed, or no layer has one of the names in `settings.targets`.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError(
            "learner.lora.rank needs the package peft: pip install '.[lora]' in the project's folder, or set it to 0"
        ) from None
    targets = ALL_LINEAR if settings.targets == (ALL_LINEAR,) else list(settings.targets)
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=targets, bias="none")
    try:
        inject_adapter_in_model(config, policy, adapter_name=_ADAPTER)
    except ValueError as error:
        raise ConfigError(f"learner.lora.targets {list(settings.targets)}: {error}") from error


def merged(weights: Mapping[str, Tensor], settings: LoraSection) -> dict[str, Tensor]:
    """Weights under the base model's own names, with ``alpha / rank * B @ A`` added to those that have an adapter.

    Args:
        weights: name -> whole weight of the model with its adapter.
    """
    names: dict[str, Tensor] = {}
    for name, value in weights.items():
        if ".lora_" in name:
            continue
        prefix, base, rest = name.partition(_BASE)
        if not base or rest != "weight":
            names[prefix + (f".{rest}" if base else "")] = value
            continue
        low, high = (weights[f"{prefix}.lora_{part}.{_ADAPTER}.weight"].float() for part in "AB")
        change = (settings.alpha / settings.rank) * (high @ low)
        names[f"{prefix}.weight"] = (value.float() + change).to(value.dtype)
    return names


@contextmanager
def without_adapter(policy: nn.Module) -> Iterator[None]:
    """The base model, for a forward pass without gradient."""
    layers = [module for module in policy.modules() if _has_adapter(module)]
    if torch.is_grad_enabled():
        raise RuntimeError("the adapter can be left out of passes without gradient only")
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _has_adapter(module: Any) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "enable_adapters")
