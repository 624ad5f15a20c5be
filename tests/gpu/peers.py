#!/usr/bin/env python3
"""Time ringattn and PyTorch's attention on the same shapes and patterns, taking turns.

    peers.py --device cpu --ringattn build/release/src/tool/ringattn --dtypes bf16,f32 --dims 64,128
    peers.py --device cuda --bench build/release/tests/sparse/cuda_bench --tokens 16384 --heads 16

Forward passes, or with --backward what comes after them. A round times ours and then each peer, so
that what else the machine does meets all alike. Peers take turns in being the first, and on a GPU
each begins on one that has rested, as ours does, which is a process of its own. Ratios are taken
within a round, and their median over the rounds counts. On a GPU both sides are timed by CUDA
events (ours is cuda_bench), on a CPU both by a monotonic clock (ours is what `ringattn run`
measures). Backward, cuda_bench times the kernels alone, while the peers also compute delta and round
sums of dq: by estimate under 1 % of a dense pass of 16,384 tokens. Both sides must keep as many pairs; on
a CPU a small problem in float32 shows before that that they are the same pairs.

Peers: SDPA's backends flash (FlashAttention-2, as PyTorch brings it), cudnn, efficient and math
where the pattern is dense or causal, and
FlexAttention (compiled, with a block mask made from the same definition) everywhere. What cannot
run is in the result with its reason. The result is JSON, on standard output and in --json FILE,
which is written anew after each round.

Exit codes: 0, 2 usage, 1 ours failed or disagrees, 77 there is no PyTorch or no such device.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # nothing is left beside the sources

from peers_masks import PATTERNS, Mask, mask_of, pattern_keys

SDPA = ("flash", "cudnn", "efficient", "math")
REST_S = 1.0  # of a GPU between one side's launches and the next one's: its clocks follow its heat


# ---- ours -----------------------------------------------------------------------------------

class OursFailed(Exception):
    """Ours ended otherwise than well; the text says how."""


def start(command, limit_s):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise OursFailed(f"{command[0]}: not done after {limit_s} s") from error
    except OSError as error:
        raise OursFailed(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise OursFailed(f"{' '.join(command)}: exit code {done.returncode}: "
                         f"{done.stderr.strip()[-300:]}")
    return done.stdout


def job_text(point, pattern, repeats, threads):
    return (f"shape: {{seq: {point['tokens']}, heads: {point['heads']}, "
            f"head_dim: {point['head_dim']}, dtype: {point['dtype']}}}\n"
            f"pattern: {pattern}\nring: {{variant: base}}\n"
            f"compute: {{backend: cpu, threads: {threads}}}\n"
            f"job: {{warmup: 1, repeat: {repeats}}}\n")


def ours_cpu(args, point):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(job_text(point, pattern_keys(point["pattern"]), args.repeats, args.threads))
        more = ["--backward"] if args.backward else []
        out = start([args.ringattn, "run", "--config", path, "--json", "--quiet"] + more,
                    args.limit)
    report = json.loads(out)
    result = report["points"][0]
    return result[args.key], result["live_pairs"]


def ours_cuda(args, point):
    if point["dtype"] != "bf16":
        raise OursFailed(f"{args.bench}: it times bf16")
    isa = ["--" + args.isa] if args.isa != "auto" else []
    out = start([args.bench, "--json"] + isa + [str(point["tokens"]), str(point["heads"]),
                 str(point["head_dim"]), point["pattern"]], args.limit)
    report = json.loads(out)
    args.isa_taken = report["isa"]
    result = report["points"][0]
    return result[args.key], result["live_pairs"]


# ---- peers ----------------------------------------------------------------------------------

def summary(times):
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def time_cpu(call, repeats):
    times = []
    for i in range(-1, repeats):
        begin = time.perf_counter()
        call()
        if i >= 0:
            times.append((time.perf_counter() - begin) * 1e3)
    return summary(times)


def time_cuda(torch, call, repeats):
    """Nothing is waited for in between: what Python does before a launch is not the GPU's time."""
    events = []
    for _ in range(3 + repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return summary([begin.elapsed_time(end) for begin, end in events[3:]])


class Peer:
    """One way of PyTorch's to compute a point; made once, timed in every round."""

    def __init__(self, torch, name, point, mask, args):
        self.name, self.torch, device = name, torch, args.device
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        shape = (1, point["heads"], point["tokens"], point["head_dim"])
        generator = torch.Generator(device=device).manual_seed(0)
        self.qkv = [torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
                    .to(dtype[point["dtype"]]) for _ in range(3)]
        self.call = self.flex(mask) if name == "flex" else self.sdpa(point)
        if args.backward:
            self.call = self.backward(self.call)

    def sdpa(self, point):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        if point["pattern"] not in ("dense", "causal"):
            raise ValueError("SDPA has no such pattern but as a dense mask")
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                   "efficient": SDPBackend.EFFICIENT_ATTENTION,
                   "math": SDPBackend.MATH}[self.name]
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def call():
            with sdpa_kernel(backend):
                return attend(*self.qkv, is_causal=point["pattern"] == "causal")
        return call

    def flex(self, mask):
        from torch.nn.attention.flex_attention import flex_attention
        self.torch._dynamo.reset()  # after a few points it would no longer compile
        self.torch._functorch.config.donated_buffer = False  # `backward` keeps its graph
        compiled = self.torch.compile(flex_attention, dynamic=False, fullgraph=True)
        block_mask = mask.blocks()
        return lambda: compiled(*self.qkv, block_mask=block_mask)

    def backward(self, forward):
        """Gradients of one forward pass, over and over."""
        for tensor in self.qkv:
            tensor.requires_grad_(True)
        out = forward()
        dout = self.torch.randn_like(out)
        return lambda: self.torch.autograd.grad(out, self.qkv, dout, retain_graph=True)

    def measure(self, args):
        with self.torch.set_grad_enabled(args.backward):
            if args.device == "cuda":
                return time_cuda(self.torch, self.call, args.repeats)
            return time_cpu(self.call, args.repeats)


# ---- the same meaning -----------------------------------------------------------------------

def save(path, tensors):
    """safetensors: the header's length, the header, float32 data."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def load_o(torch, path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + length])["o"]
    begin, end = (8 + length + at for at in entry["data_offsets"])
    return torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry["shape"])


def agree(torch, args, name):
    """Relative Frobenius distance between ours and softmax over the peers' mask, 512 tokens."""
    n, heads, dim = 512, 4, 32
    q, k, v = (torch.randn((1, n, heads, dim), dtype=torch.float32,
                           generator=torch.Generator().manual_seed(i)) for i in range(3))
    with tempfile.TemporaryDirectory() as folder:
        source, target, job = (os.path.join(folder, f) for f in ("in", "out", "job.yaml"))
        save(source, {"q": q, "k": k, "v": v})
        point = {"tokens": n, "heads": heads, "head_dim": dim, "dtype": "f32"}
        with open(job, "w", encoding="utf-8") as file:
            file.write(job_text(point, pattern_keys(name, True), 1, args.threads))
        start([args.ringattn, "run", "--config", job, "--quiet", "--input", source,
               "--output", target], args.limit)
        ours = load_o(torch, target).transpose(1, 2).double()
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / dim**0.5
    mask = mask_of(torch, "cpu", name, n, True)
    if mask is not None:
        rows = torch.arange(n)
        keep = mask(None, torch.arange(heads)[:, None, None], rows[:, None], rows[None, :])
        scores = scores.masked_fill(~keep, float("-inf"))
    theirs = torch.softmax(scores, -1).nan_to_num(0.0) @ v.transpose(1, 2).double()
    return ((ours - theirs).norm() / theirs.norm()).item()


# ---- rounds ---------------------------------------------------------------------------------

def reason(error):
    return f"{type(error).__name__}: " + str(error).strip().split("\n")[0][:200]


def make_peers(torch, args, point, mask, row):
    peers = []
    for name in args.peers:
        try:
            peer = Peer(torch, name, point, mask, args)
            with torch.set_grad_enabled(args.backward):
                peer.call()  # compiles, and shows whether it can
            if args.device == "cuda":
                torch.cuda.synchronize()  # where it shows what a kernel made of it
            peers.append(peer)
            row["peers"][name] = {"status": "ok", "rounds": []}
        except Exception as error:  # whatever PyTorch cannot do is a finding, not an end
            row["peers"][name] = {"status": "absent", "why": reason(error)}
    return peers


def conclude(row):
    """Medians over rounds; how many times as fast as each peer ours is, round by round."""
    if not row["ours"]["rounds"]:
        return
    flops = (10.0 if row["pass"] == "backward" else 4.0) * row["head_dim"] * row["live_pairs"]
    entries = [row["ours"]] + [p for p in row["peers"].values() if p.get("rounds")]
    for entry in entries:
        entry["ms"] = statistics.median(r["median"] for r in entry["rounds"])
        entry["tflops"] = flops / (entry["ms"] * 1e9)
    for peer in entries[1:]:
        ratios = [theirs["median"] / ours["median"]
                  for theirs, ours in zip(peer["rounds"], row["ours"]["rounds"])]
        peer["ours_times_as_fast"] = summary(ratios)


def run_point(torch, args, point, publish, deadline):
    row = dict(point, status="ok", ours={"rounds": []}, peers={})
    if time.monotonic() > deadline:  # compiling takes long
        row["status"] = "not begun: out of time"
        return row
    ours = ours_cuda if args.device == "cuda" else ours_cpu
    try:
        mask = Mask(torch, point, args.device)
    except Exception as error:  # as in make_peers: an earlier point may have lost the GPU
        row["status"] = f"no mask: {reason(error)}"
        return row
    peers = make_peers(torch, args, point, mask, row)
    for number in range(args.rounds):
        if time.monotonic() > deadline:
            row["status"] = "cut short: out of time"
            break
        times, row["live_pairs"] = ours(args, point)
        if row["live_pairs"] != mask.pairs:
            raise OursFailed(f"{point['pattern']}: ours keeps {row['live_pairs']} pairs, "
                             f"the peers' mask {mask.pairs}")
        row["ours"]["rounds"].append(times)
        first = number % max(len(peers), 1)
        for peer in peers[first:] + peers[:first]:
            entry = row["peers"][peer.name]
            if args.device == "cuda":
                time.sleep(REST_S)
            try:
                entry["rounds"].append(peer.measure(args))
            except Exception as error:  # as in make_peers
                entry.update(status="failed", why=reason(error))
                peers.remove(peer)
        conclude(row)
        publish(row)
    return row


def points_of(args):
    for pattern in args.patterns:
        for dtype in args.dtypes:
            for dim in args.dims:
                yield {"pattern": pattern, "pass": args.key[:-3], "dtype": dtype, "head_dim": dim,
                       "tokens": args.tokens, "heads": args.heads}


def chosen(allowed):
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name}: there are {', '.join(allowed)}")
        return names
    return parse


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 on is wanted")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--ringattn", default="ringattn", help="the command, for --device cpu")
    parser.add_argument("--bench", default="cuda_bench", help="cuda_bench, for --device cuda")
    parser.add_argument("--isa", choices=("auto", "sm_80", "sm_90a_backward"), default="auto",
                        help="ours on a GPU, as compute.isa has it")
    parser.add_argument("--patterns", type=chosen(PATTERNS), default=["dense", "causal"])
    parser.add_argument("--dtypes", type=chosen(("bf16", "f16", "f32")), default=["bf16"])
    parser.add_argument("--dims", type=lambda t: [positive(d) for d in t.split(",")], default=[128])
    parser.add_argument("--peers", type=chosen(SDPA + ("flex",)), default=None)
    parser.add_argument("--backward", action="store_true", help="time backward passes")
    parser.add_argument("--tokens", type=positive, default=8192)
    parser.add_argument("--heads", type=positive, default=8)
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--repeats", type=positive, default=3, help="timed passes a round and side")
    parser.add_argument("--limit", type=positive, default=120, help="seconds for one run of ours")
    parser.add_argument("--budget", type=positive, default=100000, help="seconds for all of it")
    parser.add_argument("--json", help="file for the result, written after each round")
    args = parser.parse_args()
    args.key = "backward_ms" if args.backward else "forward_ms"
    if args.isa != "auto" and args.device != "cuda":
        parser.error("--isa: it is for a GPU")
    args.isa_taken = None  # until ours has said
    if args.peers is None:
        args.peers = ["flash", "flex"] if args.device == "cpu" else list(SDPA) + ["flex"]
    return args


def write(path, result):
    if path is not None:
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
        os.replace(path + ".part", path)


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(77)


def find_torch(args):
    try:
        import torch
    except (ImportError, OSError) as error:
        skip(f"PyTorch cannot be imported: {str(error).split(chr(10))[0]}")
    if args.device == "cuda" and not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} finds no GPU")
    torch.set_num_threads(args.threads)
    return torch


def main():
    args = parse_arguments()
    torch = find_torch(args)
    deadline = time.monotonic() + args.budget
    rows, result = [], {"torch": torch.__version__, "device": args.device, "threads": args.threads,
                        "command": " ".join(sys.argv), "agreement": {}, "points": []}
    if args.device == "cuda":
        result["gpu"] = torch.cuda.get_device_name(0)

    def publish(row):
        if args.device == "cuda":
            result["isa"] = args.isa_taken
        result["points"] = rows + [row]
        write(args.json, result)

    try:
        for name in args.patterns if args.device == "cpu" else ():
            error = result["agreement"][name] = agree(torch, args, name)
            if not error <= 2e-6:
                raise OursFailed(f"{name}: ours and the peers' mask differ by {error:.2g}")
        for point in points_of(args):
            rows.append(run_point(torch, args, point, publish, deadline))
    except OursFailed as error:
        print(f"peers.py: error: {error}", file=sys.stderr)
        sys.exit(1)
    result["points"] = rows
    write(args.json, result)
    print(json.dumps(result, indent=1))
    if not any(row["ours"]["rounds"] for row in rows):
        print(f"peers.py: error: nothing was timed: {rows[0]['status']}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
