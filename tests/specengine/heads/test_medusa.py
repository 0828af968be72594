"""Medusa heads, and the token that ours see besides."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from specengine.heads.head import Head
from specengine.heads.medusa import MedusaNetwork
from specengine.models.targets import embedding_of
from specengine.train.objectives import plain_product
from tests.specengine.heads.tiny_heads import DEPTH, tiny_head
from tests.specengine.tiny import tiny_architecture, tiny_decoder

TINY = tiny_architecture()
EMBEDDING = embedding_of(tiny_decoder(architecture=TINY))
GENERATOR = torch.Generator().manual_seed(4)
STREAM = torch.randn(5, TINY.hidden_size, generator=GENERATOR)
FOLLOWING = torch.tensor([7, 8, 9, 10, 11])


def network(head: Head) -> MedusaNetwork:
    return MedusaNetwork(head, EMBEDDING, plain_product)


def rms(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(rows.double(), rows.shape[-1:], weight.double(), 1e-5)


def test_each_head_sees_the_row_and_the_token_behind_it() -> None:
    head = tiny_head("medusa", TINY)
    tensors = {name: tensor.double() for name, tensor in head.tensors.items()}
    row = rms(STREAM, head.tensors["norm.weight"])
    token = rms(EMBEDDING[FOLLOWING], head.tensors["token_norm.weight"])
    expected: list[torch.Tensor] = []
    for number in range(DEPTH):
        change = row @ tensors[f"heads.{number}.linear.weight"].T
        change = change + token @ tensors[f"heads.{number}.token.weight"].T
        change = change + tensors[f"heads.{number}.linear.bias"]
        expected.append((row + F.silu(change)) @ tensors["lm_head.weight"].T)
    logits = network(head).logits({head.layers[0]: STREAM}, FOLLOWING)
    torch.testing.assert_close(logits.double(), torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


def test_heads_that_have_learnt_without_the_token_do_not_see_it() -> None:
    head = tiny_head("medusa", TINY)
    tensors = {name: each for name, each in head.tensors.items() if "token" not in name}
    ours = network(replace(head, tensors=tensors))
    streams = {head.layers[0]: STREAM}
    assert torch.equal(ours.logits(streams, FOLLOWING), ours.logits(streams, FOLLOWING.flip(0)))
