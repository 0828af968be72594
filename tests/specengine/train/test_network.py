"""The differentiable forward pass against the decoder, its gradients against differences."""

from __future__ import annotations

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.errors import LoadError
from specengine.models.targets import decoder_from
from specengine.train.network import LOSS_ROWS, Network
from tests.specengine.tiny import tiny_architecture, tiny_tensors

FAMILIES = ("llama", "qwen2", "qwen3")


def network_of(family: str = "llama", rank: int = 4) -> Network:
    architecture = tiny_architecture(family=family)
    weights = tiny_tensors(architecture)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    return Network(architecture, weights, rank, dtype=torch.float32, is_compiled=False)


def learn_something(network: Network, seed: int = 2) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for factor in network.parameters():
            factor.add_(torch.randn(factor.shape, generator=generator) * 0.05)
    network.merge()


def some_rows(network: Network, num_rows: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    vocab_size = network.architecture.vocab_size
    return torch.randint(0, vocab_size, (num_rows, length), generator=generator)


def losses_of(network: Network, rows: torch.Tensor) -> torch.Tensor:
    hidden = network.hidden(rows)[:, :-1].flatten(0, 1)
    losses, _ = network.losses(hidden, rows[:, 1:].flatten())
    return losses


def mean_loss(network: Network, rows: torch.Tensor) -> torch.Tensor:
    return losses_of(network, rows).mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_the_decoder_computes(family: str) -> None:
    network = network_of(family)
    architecture = network.architecture
    decoder = decoder_from(architecture, tiny_tensors(architecture), "float32")
    rows = some_rows(network, 2, 24)
    hidden = network.hidden(rows)[:, :-1].flatten(0, 1)
    losses, _ = network.losses(hidden, rows[:, 1:].flatten())
    for row, own in zip(rows.tolist(), losses.detach().view(2, -1), strict=True):
        logits = decoder.forward(row, KVCache(decoder.kv_shape, 24), num_logits=24)[:-1]
        expected = torch.nn.functional.cross_entropy(
            logits, torch.tensor(row[1:]), reduction="none"
        )
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_learnt_stands_in_the_adapter(family: str) -> None:
    network = network_of(family)
    learn_something(network)
    rows = some_rows(network, 1, 16)
    adapter = network.adapter()
    tensors = tiny_tensors(network.architecture)
    merged = {name: adapter.merge(name, tensor) for name, tensor in tensors.items()}
    plain = Network(network.architecture, merged, 1, dtype=torch.float32, is_compiled=False)
    changed, unchanged = losses_of(network, rows), losses_of(network_of(family), rows)
    torch.testing.assert_close(losses_of(plain, rows), changed, rtol=1e-4, atol=1e-4)
    assert float((changed - unchanged).detach().abs().max()) > 1e-2


def test_gradients_agree_with_small_differences_along_random_directions() -> None:
    network = network_of()
    learn_something(network)
    rows = some_rows(network, 2, 12)
    mean_loss(network, rows).backward()
    factors = network.parameters()
    generator = torch.Generator().manual_seed(3)
    for factor in factors:
        assert factor.grad is not None
        direction = torch.randn(factor.shape, generator=generator)
        direction *= 1e-2 / direction.norm()
        ahead, behind = (moved_loss(network, factor, sign * direction, rows) for sign in (1, -1))
        slope = float((factor.grad * direction).sum())
        assert (ahead - behind) / 2 == pytest.approx(slope, rel=0.05, abs=2e-6)


def moved_loss(
    network: Network, factor: torch.Tensor, by: torch.Tensor, rows: torch.Tensor
) -> float:
    with torch.no_grad():
        before = factor.clone()
        factor.add_(by)
        network.merge()
        loss = float(mean_loss(network, rows).detach())
        factor.copy_(before)
        network.merge()
    return loss


def test_padding_at_the_end_of_a_row_changes_nothing_before_it() -> None:
    network = network_of()
    rows = some_rows(network, 1, 20)
    padded = torch.cat((rows, torch.zeros(1, 12, dtype=torch.long)), 1)
    torch.testing.assert_close(network.hidden(padded)[:, :20], network.hidden(rows))


def test_a_network_goes_on_from_an_adapter() -> None:
    learnt, fresh = network_of(), network_of()
    learn_something(learnt)
    fresh.take(learnt.adapter())
    rows = some_rows(learnt, 1, 16)
    torch.testing.assert_close(mean_loss(fresh, rows), mean_loss(learnt, rows))


def test_an_adapter_of_another_rank_is_refused() -> None:
    with pytest.raises(LoadError, match="q_proj"):
        network_of(rank=4).take(network_of(rank=2).adapter())


def test_losses_and_gradients_are_those_of_cross_entropy_in_any_number_of_rows() -> None:
    network = network_of()
    generator = torch.Generator().manual_seed(4)
    num_rows = 2 * LOSS_ROWS + 7
    hidden = torch.randn(num_rows, network.architecture.hidden_size, generator=generator)
    targets = torch.randint(0, network.architecture.vocab_size, (num_rows,), generator=generator)
    weights = torch.rand(num_rows, generator=generator)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    losses, likeliest = network.losses(ours, targets)
    (losses * weights).sum().backward()
    scale = torch.rsqrt(theirs.pow(2).mean(-1, keepdim=True) + network.architecture.norm_eps)
    logits = (theirs * scale * network.final_norm) @ network.head.T
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    (expected * weights).sum().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert torch.equal(likeliest, logits.argmax(-1) == targets)
