"""An exit from the target behind some of its layers: what a row would say if it ended there.

Its tensors; the one layer that it reads is the exit:

    norm.weight      [hidden]          of the stream that leaves
    adapter.weight   [hidden, hidden]  from what these layers know to what the output layer reads
    lm_head.weight   [Vd, hidden]

Source:  LayerSkip, Elhoushi et al. 2024, arXiv 2404.16710. There the whole model is trained so that
    its own output layer can read an early stream; here the target stays, and the exit is trained.
"""

from __future__ import annotations

import torch

from specengine.heads.head import Head


def exit_norm(head: Head) -> torch.Tensor:
    """Return the weight of the exit's norm, [hidden]."""
    return head.tensor("norm.weight", head.sizes.hidden_size)


def exit_output(head: Head) -> torch.Tensor:
    """Return the output layer with the adapter in it, [Vd, hidden]: one product, not two."""
    hidden = head.sizes.hidden_size
    adapter = head.tensor("adapter.weight", hidden, hidden)
    output = head.tensor("lm_head.weight", len(head.draft_ids), hidden)
    return output.float() @ adapter.float()
