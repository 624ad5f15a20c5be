"""peers_masks.py beside FlexAttention's own ways: needs PyTorch, but no GPU."""
import sys

try:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
except (ImportError, OSError) as error:
    print(f"skipped: PyTorch cannot be imported: {error}", file=sys.stderr)
    sys.exit(77)

sys.dont_write_bytecode = True

from peers_masks import PATTERNS, Mask

TOKENS, HEADS = 8400, 4  # several slabs, a last block and a last segment that are not full


def same_blocks(ours, theirs):
    """Which blocks of keys each row of queries has, and of queries each row of keys."""
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, indices = (getattr(theirs, f"{name}_{what}") for what in ("num_blocks", "indices"))
        assert torch.equal(getattr(ours, f"{name}_num_blocks"), counts), name
        listed = torch.arange(indices.shape[-1]) < counts[..., None]
        assert torch.equal(getattr(ours, f"{name}_indices")[listed], indices[listed]), name
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE


def like_create_block_mask(name):
    mask = Mask(torch, {"tokens": TOKENS, "heads": HEADS, "pattern": name}, "cpu")
    if name == "dense":
        assert mask.blocks() is None and mask.pairs == TOKENS * TOKENS * HEADS
        return
    heads = HEADS if name == "dilated" else 1
    same_blocks(mask.blocks(), create_block_mask(mask.mod, 1, heads, TOKENS, TOKENS, device="cpu"))
    kept = create_mask(mask.mod, 1, heads, TOKENS, TOKENS, device="cpu").sum().item()
    assert mask.pairs == kept * HEADS // heads, (name, mask.pairs, kept)


def flex_takes_it():
    q, k, v = (torch.randn((1, 2, 300, 16), generator=torch.Generator().manual_seed(i))
               for i in range(3))
    mask = Mask(torch, {"tokens": 300, "heads": 2, "pattern": "causal"}, "cpu")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    error = (flex_attention(q, k, v, block_mask=mask.blocks()) - wanted).abs().max().item()
    assert error < 1e-5, error


for pattern in PATTERNS:
    like_create_block_mask(pattern)
flex_takes_it()
