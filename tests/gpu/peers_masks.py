"""The patterns that peers.py times: as our configuration has them and as FlexAttention does."""
PATTERNS = ("dense", "causal", "window", "blocks", "random", "global", "dilated")
BLOCK = 128  # tokens a side of FlexAttention's blocks
SLAB = 2048  # queries whose pairs are looked at together; a multiple of BLOCK


def sizes(small):
    """Window, block and segment of the patterns; as cuda_bench and configs/bench have them."""
    return (63, 3, 128) if small else (1023, 128, 8192)


def block_rates(n, block):
    """Powers of two until the density of `dilated_sparse` is 0.02."""
    rates, count = [], -(-n // block)
    while (1 + 2 * len(rates)) / count < 0.02 and 2 ** len(rates) < count:
        rates.append(2 ** len(rates))
    return rates


def splitmix64(x):
    word = 2**64 - 1
    x = x + 0x9E3779B97F4A7C15 & word
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & word
    x = (x ^ x >> 27) * 0x94D049BB133111EB & word
    return x ^ x >> 31


def drawn_blocks(n, block):
    """For each block of queries, which blocks of keys `random` keeps, of density 0.02, seed 0."""
    count, limit = -(-n // block), int(0.02 * 2.0**64)
    return [[q == k or splitmix64(q << 32 ^ k) < limit for k in range(count)] for q in range(count)]


def pattern_keys(name, small=False):
    """The `pattern` of our configuration, in YAML."""
    window, block, segment = sizes(small)
    return {
        "dense": "{}",
        "causal": "{causal: true}",
        "window": f"{{causal: true, window: {{left: {window}}}}}",
        "blocks": f"{{blocks: {{kind: dilated_sparse, size: {block}}}}}",
        "random": f"{{blocks: {{kind: random, size: {block}}}}}",
        "global": f"{{blocks: {{kind: global_local, size: {block}, width: 4}}}}",
        "dilated": f"{{dilated: {{segments: [{segment}], rates: [4]}}}}",
    }[name]


def mask_of(torch, device, name, n, small=False):
    """FlexAttention's mask_mod for a pattern; None: everything attends to everything."""
    window, block, segment = sizes(small)
    if name == "dense":
        return None
    if name == "causal":
        return lambda b, h, q, k: k <= q
    if name == "window":
        return lambda b, h, q, k: (k <= q) & (k >= q - window)
    if name == "dilated":
        return lambda b, h, q, k: (
            (q // segment == k // segment)
            & (q % segment % 4 == h % 4) & (k % segment % 4 == h % 4))
    if name == "random":
        drawn = torch.tensor(drawn_blocks(n, block), device=device)
        return lambda b, h, q, k: drawn[q // block, k // block]
    if name == "global":
        return lambda b, h, q, k: (
            (q < block) | (k < block) | ((q // block - k // block).abs() <= 4))
    rates = block_rates(n, block)

    def blocks(b, h, q, k):
        distance = (q // block - k // block).abs()
        keep = distance == 0
        for rate in rates:
            keep = keep | (distance == rate)
        return keep
    return blocks


class Mask:
    """What FlexAttention attends to at a point."""

    def __init__(self, torch, point, device):
        n, heads, name = point["tokens"], point["heads"], point["pattern"]
        self.torch, self.tokens, self.mod = torch, n, mask_of(torch, device, name, n)
        self.pairs = n * n * heads  # kept, over heads
        if self.mod is not None:
            self.counts = self.count(heads if name == "dilated" else 1, device)
            self.pairs = self.counts.sum().item() * heads // len(self.counts)

    def count(self, heads, device):
        """Kept pairs of each block: [heads, blocks of queries, blocks of keys].

        All pairs at once, as in create_block_mask where it is not compiled, need not fit; compiled,
        it takes long, and has failed for some lengths.
        """
        at, slabs = self.torch.arange(self.tokens, device=device), []
        for head in range(heads):
            for q in at.split(SLAB):
                keep = self.mod(None, head, q[:, None], at[None, :])
                keep = self.torch.nn.functional.pad(keep, (0, -len(at) % BLOCK, 0, -len(q) % BLOCK))
                slabs.append(keep.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).sum((1, 3)))
        return self.torch.cat(slabs).unflatten(0, (heads, -1))

    def blocks(self):
        """FlexAttention's block mask; None: everything attends to everything."""
        from torch.nn.attention.flex_attention import BlockMask
        if self.mod is None:
            return None
        integer = self.torch.int32

        def ordered(chosen):
            """How many blocks of keys are chosen in each row, and all of them, those first."""
            chosen = chosen[None].to(integer)
            return (chosen.sum(-1, dtype=integer),
                    chosen.argsort(dim=-1, descending=True, stable=True).to(integer))
        full = self.counts == BLOCK * BLOCK
        return BlockMask.from_kv_blocks(*ordered((self.counts > 0) & ~full), *ordered(full),
                                        BLOCK_SIZE=BLOCK, mask_mod=self.mod,
                                        seq_lengths=(self.tokens, self.tokens))
