"""The optimiser of an encoder is AdamW with clipping."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from xc_core.train.optim import EncoderOptimizer, OptimConfig


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def descend(module: nn.Module, step: int, size: float = 1.0) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
    (size * module(inputs).square().sum()).backward()


def plain_adamw(module: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return torch's own AdamW, not fused, with weight decay of matrices only."""
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in module.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, fused=False)


@pytest.mark.parametrize("clip", [1e9, 0.5])
def test_steps_equal_those_of_torchs_adamw_with_clipping(clip: float) -> None:
    config = OptimConfig(lr=0.05, weight_decay=0.3, clip=clip)
    ours, theirs = model(), model()
    optimizer, reference = EncoderOptimizer(ours, config), plain_adamw(theirs, config)
    for step in range(6):
        scale = 1 - step / 10
        descend(ours, step)
        norm = optimizer.step(scale)
        reference.zero_grad()
        descend(theirs, step)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs.parameters(), clip)))
        for group in reference.param_groups:
            group["lr"] = config.lr * scale
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_matrices_decay_and_vectors_do_not() -> None:
    module = model()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = EncoderOptimizer(module, OptimConfig(lr=0.1, weight_decay=0.5))
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(1.0)
    for name, p in module.named_parameters():
        assert torch.allclose(p, before[name] * (1 - 0.1 * 0.5 if p.ndim > 1 else 1)), name


def test_a_single_number_is_trained_as_a_vector_is() -> None:
    module = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(2.0)), "matrix": nn.Parameter(torch.ones(2, 2))})
    optimizer = EncoderOptimizer(module, OptimConfig(lr=0.1, weight_decay=0.5))
    (module["scale"] * module["matrix"]).sum().backward()
    optimizer.step(1.0)
    assert module["scale"].item() == pytest.approx(2.0 - 0.1), "no decay"


def test_frozen_parameters_have_no_state() -> None:
    module = model()
    module[0].requires_grad_(False)
    optimizer = EncoderOptimizer(module, OptimConfig())
    descend(module, 0)
    optimizer.step(1.0)
    assert {name.split(".")[0] for name in optimizer.tensors()} == {"1", "2"}


def test_training_from_saved_state_gives_the_same_weights() -> None:
    config = OptimConfig(lr=0.05)
    whole, broken = model(), model()
    one, two = EncoderOptimizer(whole, config), EncoderOptimizer(broken, config)
    for step in range(3):
        for module, optimizer in ((whole, one), (broken, two)):
            descend(module, step)
            optimizer.step(1.0)
    resumed = EncoderOptimizer(broken, config)
    resumed.load({name: tensor.clone() for name, tensor in two.tensors().items()})
    for step in range(3, 6):
        for module, optimizer in ((whole, one), (broken, resumed)):
            descend(module, step)
            optimizer.step(0.5)
    for a, b in zip(whole.parameters(), broken.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_that_is_not_finite_changes_nothing_and_its_norm_is_returned() -> None:
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = EncoderOptimizer(module, OptimConfig())
    descend(module, 0, size=float("inf"))
    assert not torch.isfinite(optimizer.step(1.0))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))
    assert all(p.grad is None for p in module.parameters())
