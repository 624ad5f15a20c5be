#!/bin/sh
# peers.py PYTHON FOLDER COMMAND: bad usage, no PyTorch, and a stand-in for it in whose place
# nothing is computed: what is checked is what peers.py makes of times and failures.
set -eu
python=$1
peers=$2/peers.py
command=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_peers: $*" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}

# run CODE ARG...: peers.py ends with that code.
run() {
    want=$1
    shift
    code=0
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work/lib "$python" "$peers" "$@" \
        > "$work/out" 2> "$work/err" || code=$?
    [ "$code" -eq "$want" ] || fail "$*: exit code $code, not $want"
}

mkdir -p "$work/lib/torch"
echo 'raise ImportError("this PyTorch is none")' > "$work/lib/torch/__init__.py"
run 77 --device cpu
grep -q '^skipped: PyTorch cannot be imported: this PyTorch is none$' "$work/err" ||
    fail "the reason is missing"
run 2 --patterns dense,diagonal
grep -q 'diagonal: there are dense, causal' "$work/err" || fail "the names are missing"
run 2 --tokens 0
run 2 --isa sm_90a
run 2 --isa sm_80 --device cpu
grep -q 'it is for a GPU' "$work/err" || fail "the reason is missing"

cat > "$work/lib/torch/__init__.py" <<'END'
__version__ = "none"
class cuda:
    is_available = staticmethod(lambda: False)
END
run 77 --device cuda
grep -q 'finds no GPU' "$work/err" || fail "the reason is missing"

# Patterns as definitions: which keys a query of 64 tokens sees, against sets written out.
cat > "$work/masks.py" <<'END'
import contextlib
import sys
import time
import types
sys.path.insert(0, sys.argv[1])
import peers
from peers_masks import block_rates, mask_of

class Number(int):
    """An index, as masks see it."""
    def __sub__(self, other): return Number(int(self) - int(other))
    def __floordiv__(self, other): return Number(int(self) // int(other))
    def __mod__(self, other): return Number(int(self) % int(other))
    def abs(self): return Number(abs(int(self)))

class Tensor:
    """Rows of columns."""
    def __init__(self, rows, device): self.rows = rows
    def __getitem__(self, at): return self.rows[at[0]][at[1]]

def keys(name, query, head=0):
    mask = mask_of(types.SimpleNamespace(tensor=Tensor), "cpu", name, 512, True)
    return [k for k in range(512) if mask(0, Number(head), Number(query), Number(k))]

assert mask_of(None, "cpu", "dense", 512) is None
assert keys("causal", 5) == [0, 1, 2, 3, 4, 5]
assert keys("window", 100) == list(range(37, 101))
assert keys("blocks", 40) == list(range(33, 48))
assert keys("random", 40) == [3 * b + i for b in (13, 26, 31, 105, 125, 126) for i in range(3)]
assert keys("global", 40) == [0, 1, 2] + list(range(27, 54))
assert keys("global", 2) == list(range(512))
assert block_rates(512 * 128, 128) == [1, 2, 4, 8, 16]
assert block_rates(16384, 128) == [1]
assert keys("dilated", 129, head=1) == list(range(129, 256, 4))
assert keys("dilated", 128, head=1) == []

row = {"pass": "forward", "head_dim": 64, "live_pairs": 10**9,
       "ours": {"rounds": [{"median": 2.0}, {"median": 4.0}, {"median": 3.0}]},
       "peers": {"a": {"rounds": [{"median": 4.0}, {"median": 4.0}, {"median": 9.0}]},
                 "b": {"status": "absent"}}}
peers.conclude(row)
assert row["ours"]["ms"] == 3.0
assert abs(row["ours"]["tflops"] - 4 * 64 * 1e9 / 3e-3 / 1e12) < 1e-9
assert row["peers"]["a"]["ours_times_as_fast"] == {"min": 1.0, "median": 2.0, "max": 3.0}
assert "tflops" not in row["peers"]["b"]
row["pass"] = "backward"
peers.conclude(row)
assert abs(row["ours"]["tflops"] - 10 * 64 * 1e9 / 3e-3 / 1e12) < 1e-9

# On a GPU: three calls to warm up, and no wait before the last.
log = []
class Event:
    def __init__(self, enable_timing): self.number = len(log)
    def record(self): log.append("record")
    def elapsed_time(self, end): return float(end.number)
cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: log.append("wait"))
times = peers.time_cuda(types.SimpleNamespace(cuda=cuda), lambda: log.append("call"), 2)
assert log == ["record", "call", "record"] * 5 + ["wait"], log
assert times == {"min": 9.0, "median": 10.5, "max": 12.0}, times

# A point: ours keeps 10 pairs.
class Mask:
    """Of a peer; as many pairs as a test wants."""
    pairs = 10
    def __init__(self, torch, point, device): pass

def run_point(torch=None, device="cpu", names=(), budget=1000):
    args = types.SimpleNamespace(device=device, peers=names, rounds=2, backward=False)
    point = {"pattern": "causal", "pass": "forward", "head_dim": 64}
    return peers.run_point(torch, args, point, lambda row: None, time.monotonic() + budget)

def no_mask(torch, point, device):
    raise RuntimeError("the GPU is lost")

peers.Mask, peers.REST_S = no_mask, 0
assert run_point()["status"] == "no mask: RuntimeError: the GPU is lost"
peers.Mask = Mask
peers.ours_cpu = lambda args, point: ({"median": 2.0}, 10)
assert run_point()["live_pairs"] == 10
late = run_point(names=["flex"], budget=-1)
assert late["status"] == "not begun: out of time" and late["peers"] == {}, late

# Peers that fail: one where it is made, one where its kernel ends, one in its second round.
class Peer:
    def __init__(self, torch, name, point, mask, args):
        self.name, self.rounds = name, 0
        if name == "math":
            raise ValueError("no such thing\nat all")
    def call(self): waits.append(self.name)
    def measure(self, args):
        measured.append(self.name)
        self.rounds += 1
        if self.name == "efficient" and self.rounds == 2:
            raise RuntimeError("out of memory")
        return {"median": 3.0}

def wait():
    if waits[-1] == "cudnn":
        raise RuntimeError("illegal address")

ours_cuda = peers.ours_cuda
waits, measured, peers.Peer, peers.ours_cuda = [], [], Peer, peers.ours_cpu
torch = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=wait),
                              set_grad_enabled=lambda yes: contextlib.nullcontext())
theirs = run_point(torch, device="cuda", names=["math", "cudnn", "efficient", "flash"])["peers"]
assert theirs["math"] == {"status": "absent", "why": "ValueError: no such thing"}, theirs
assert theirs["cudnn"] == {"status": "absent", "why": "RuntimeError: illegal address"}, theirs
assert theirs["efficient"]["status"] == "failed" and len(theirs["efficient"]["rounds"]) == 1
assert theirs["efficient"]["why"] == "RuntimeError: out of memory", theirs
assert theirs["flash"]["status"] == "ok" and len(theirs["flash"]["rounds"]) == 2, theirs
assert measured == ["efficient", "flash", "flash", "efficient"], measured

# Which of our kernels: cuda_bench is told, and says which it took.
asked = []
def bench(command, limit_s):
    asked.append(command)
    isa = command[2][2:] if command[2].startswith("--") else "sm_90a"
    return '{"isa": "%s", "points": [{"forward_ms": {"median": 1.0}, "live_pairs": 10}]}' % isa
started, peers.start, peers.ours_cuda = peers.start, bench, ours_cuda
point = {"dtype": "bf16", "tokens": 8, "heads": 2, "head_dim": 64, "pattern": "causal"}
for isa, taken in ("auto", "sm_90a"), ("sm_80", "sm_80"), ("sm_90a_backward", "sm_90a_backward"):
    args = types.SimpleNamespace(bench="bench", isa=isa, limit=1, key="forward_ms")
    assert peers.ours_cuda(args, point) == ({"median": 1.0}, 10)
    assert args.isa_taken == taken, args
assert asked == [["bench", "--json", "8", "2", "64", "causal"],
                 ["bench", "--json", "--sm_80", "8", "2", "64", "causal"],
                 ["bench", "--json", "--sm_90a_backward", "8", "2", "64", "causal"]], asked
peers.start = started

Mask.pairs = 11
try:
    run_point()
    raise SystemExit("another mask passed")
except peers.OursFailed as error:
    assert "causal: ours keeps 10 pairs, the peers' mask 11" in str(error), error

try:
    peers.start([sys.argv[2], "--nothing"], 30)
    raise SystemExit("a failure of ours passed")
except peers.OursFailed as error:
    assert "exit code 2" in str(error), error
try:
    peers.start(["sleep", "20"], 0.2)
    raise SystemExit("a command that hangs passed")
except peers.OursFailed as error:
    assert "not done after" in str(error), error
END
PYTHONDONTWRITEBYTECODE=1 "$python" "$work/masks.py" "$2" "$command" > "$work/out" 2> "$work/err" ||
    fail "definitions or figures are wrong"
