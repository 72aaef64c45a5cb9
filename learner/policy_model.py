"""PolicyModel: a Hugging Face causal LM that scores sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from cacherl.errors import ConfigError
from cacherl.learner_settings import LoraSection
from learner.batch import MicroBatch
from learner.cpu_linear import use_onednn
from learner.logprobs import ScoringHead
from learner.lora import add_adapter, merged

#: What some architectures do to their logits after the output layer, which `ScoringHead` does not.
_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_PREFIX = "policy."


class PolicyModel(nn.Module):
    """The trained model, called on a `MicroBatch` instead of on token ids.

    `policy` is the Hugging Face model with its output layer replaced by a `ScoringHead`, so that parameters keep the
    names that they have in a checkpoint, behind the prefix 'policy.'.

    Args:
        lora: what is trained instead of all weights; None or of rank 0: all weights are.
        critic: add a linear head that values the state before each trained token. It starts at 0 and is not part of the
            policy: neither published nor exported.
    """

    def __init__(self, policy: nn.Module, lora: LoraSection | None = None, *, critic: bool = False) -> None:
        super().__init__()
        self._lora = lora if lora is not None and lora.rank else None
        head = policy.get_output_embeddings()
        name = next(name for name, module in policy.named_modules() if module is head)
        policy.set_submodule(name, ScoringHead(head))
        self.policy = policy
        self._head = name
        if self._lora is not None:
            add_adapter(policy, self._lora)
        self.critic: nn.Linear | None = None
        if critic:
            self.critic = nn.Linear(head.weight.shape[1], 1, dtype=head.weight.dtype)
            nn.init.zeros_(self.critic.weight)
            nn.init.zeros_(self.critic.bias)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, ...]:
        """(log-probabilities, entropies) of the S trained tokens, float32 [S] each, at their rows' temperatures; with a critic
        also the values before them, float32 [S]."""
        backbone = getattr(self.policy, self.policy.base_model_prefix)
        # Without a mask, position ids that begin anew make the model keep packed rows apart.
        hidden = backbone(input_ids=batch.token_ids, position_ids=batch.position_ids, use_cache=False).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, batch.predictors)
        scores: tuple[Tensor, Tensor] = self.policy.get_submodule(self._head)(chosen, batch.targets, batch.inverse_temperatures)
        return scores if self.critic is None else (*scores, self.critic(chosen)[:, 0].float())

    def recompute_activations(self, *, reentrant: bool) -> None:
        """Keep each layer's input only, and run the layer again in the backward pass.

        Args:
            reentrant: which of torch's two ways.
        """
        self.policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if reentrant:
            self.policy.enable_input_require_grads()
        self.policy.train()  # transformers recomputes in training mode only; without dropout the mode changes nothing else
        if dropout := getattr(self.policy.config, "attention_dropout", 0.0):
            raise ConfigError(f"learner.activation_checkpointing: the model has attention_dropout {dropout}; set it to 0")
        for name, module in self.policy.named_modules():
            if isinstance(module, nn.Dropout) and module.p:
                raise ConfigError(f"learner.activation_checkpointing: the model has dropout {module.p} in {name}; set it to 0")

    def named_weights(self) -> dict[str, Tensor]:
        """Checkpoint name -> parameter or persistent buffer; a weight tied to another appears once, as the first."""
        parameters = {name: value for name, value in self.named_parameters()}  # noqa: C416 - drops tied duplicates
        aliases = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        buffers = {name: value for name, value in self.state_dict(keep_vars=True).items() if name not in aliases}
        found = (parameters | buffers).items()
        return {name.removeprefix(_PREFIX): value for name, value in found if name.startswith(_PREFIX)}

    def published(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies of all of `named_weights` as an ordinary checkpoint of the model names and holds them."""
        return weights if self._lora is None else merged(weights, self._lora)

    def private_weights(self) -> dict[str, Tensor]:
        """Parameter name -> what is trained and not in `published` as it is: an adapter, a critic."""
        own = (pair for pair in self.named_parameters() if self._lora is not None or not pair[0].startswith(_PREFIX))
        return {name: value for name, value in own if value.requires_grad}

    def load_private_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights named as by `private_weights` into this model."""
        own = self.private_weights()
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights named as by `named_weights` into this model."""
        with torch.no_grad():
            for name, value in self.named_weights().items():
                value.copy_(weights[name])


def load_policy(directory: Path, dtype: torch.dtype, lora: LoraSection | None = None, *, critic: bool = False) -> PolicyModel:
    """Load the model of a Hugging Face folder, with a fresh adapter if `lora` has a rank.

    Raises:
        ConfigError: no such folder, an architecture whose logits are transformed after the output layer, or an adapter that
            does not fit it.
    """
    if not (directory / "config.json").is_file():
        raise ConfigError(f"model folder {directory} has no config.json; set model.path to a Hugging Face folder")
    config = AutoConfig.from_pretrained(directory)
    _refuse_logit_transforms(config, directory)
    model = AutoModelForCausalLM.from_pretrained(directory, config=config, dtype=dtype, attn_implementation="sdpa")
    policy = PolicyModel(model, lora, critic=critic)
    use_onednn(policy)
    return policy


def _refuse_logit_transforms(config: Any, directory: Path) -> None:
    for field in _LOGIT_TRANSFORMS:
        if getattr(config, field, None) not in (None, 1.0):
            raise ConfigError(f"model folder {directory}: {field}={getattr(config, field)} is not supported by the learner")


def frozen_copy(directory: Path, dtype: torch.dtype, weights: dict[str, Tensor], device: torch.device) -> PolicyModel:
    """The architecture of `directory` with `weights`, in evaluation mode and without gradients."""
    model = load_policy(directory, dtype)
    model.load_weights(weights)
    model.to(device).eval().requires_grad_(False)
    return model
