"""The optimiser of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xc_core.classifiers.schedule import check_decay
from xc_core.distributed import ALONE, World
from xc_core.params import at_least, below, within


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up and linear decay to zero."""

    lr: float = 2e-4
    """Learning rate after the warm-up: about the change of a weight in a step; 1e-8 to 1. A smaller change is lost in
    the rounding of a weight."""
    warmup: float = 0.1
    """Share of the training that is warm-up."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; vectors (biases, norms) have none. 0 to 100, and below 1 / lr: weights would
    change their sign in a step."""
    clip: float = 1.0
    """Largest norm of the whole gradient; a larger gradient is scaled down to it. At least 0.001: Adam adds 1e-8
    to the root of the mean square of each coordinate, so a smaller gradient trains nothing."""

    def __post_init__(self) -> None:
        within(self, lr=(1e-8, 1), weight_decay=(0, 100))
        at_least(self, warmup=0, clip=1e-3)
        below(self, warmup=1)
        check_decay(self.lr, self.weight_decay)


class EncoderOptimizer:
    """Fused AdamW over the trainable parameters of a module; its state is saved and loaded by parameter name."""

    def __init__(self, module: nn.Module, config: OptimConfig, world: World = ALONE) -> None:
        """``world``: processes whose gradients add up; all of them take the same step."""
        self.config, self.world = config, world
        self._used: list[str] | None = None
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        matrices = [p for p in self.named.values() if p.ndim > 1]
        vectors = [p for p in self.named.values() if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, fused=True)

    def step(self, scale: float, usable: Tensor | None = None) -> Tensor:
        """Clip the gradient, take a step, zero the gradients, and return the gradient norm before clipping.

        ``scale`` is the schedule's factor on the learning rate. If the norm is not finite, or ``usable`` (a scalar) is
        false, parameters do not change. On a card nothing is read: the fused optimiser itself skips the step.
        """
        self._sum_gradients()
        norm: Tensor = nn.utils.clip_grad_norm_(self.named.values(), self.config.clip)
        finite = norm.isfinite() if usable is None else norm.isfinite() & usable
        if not norm.is_cpu:
            self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]  # read by the fused step
        if not norm.is_cpu or finite:
            for group in self.adam.param_groups:
                group["lr"] = self.config.lr * scale
            self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return norm

    def _sum_gradients(self) -> None:
        """Add up the gradients of all processes, in one exchange."""
        if self.world.size == 1:
            return
        if self._used is None:  # in the first step; a parameter that no process uses keeps having no gradient
            used_here = [name for name, parameter in self.named.items() if parameter.grad is not None]
            self._used = sorted(set().union(*self.world.everyone(used_here)))
        used = [self.named[name] for name in self._used]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
        total = self.world.summed(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for parameter, gradient in zip(used, torch.split(total, [p.numel() for p in used]), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of every parameter that has one, to be saved."""
        out = {}
        for name, parameter in self.named.items():
            for key, value in self.adam.state.get(parameter, {}).items():
                out[f"{name}/{key}"] = value
        return out

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""
        for name, parameter in self.named.items():
            state = {k.rsplit("/", 1)[1]: v.clone() for k, v in tensors.items() if k.rsplit("/", 1)[0] == name}
            if state:
                self.adam.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
