#!/usr/bin/env python3
"""Run random jobs, plan them, and say how far the two are apart.

    launch/plan-jobs.py memory build/release/src/tool/ringattn
    launch/plan-jobs.py memory build/release/src/tool/ringattn --pool off --ranks 1,2,4
    launch/plan-jobs.py times build/release/src/tool/ringattn --prefix "chrt -f 10 taskset -c 1" \\
        --hardware configs/hardware/cpu-2-cores.yaml

memory  bytes by category at the moment of the peak, and their sum, agree within 1 %; what a pool
        keeps idle is not planned, and agrees where it is at most --idle bytes. Jobs that do not
        agree are printed with what differs.
times   medians of forward and backward passes on one rank, by kind: how far plans are off, in the
        median and at most. What else the machine does is in the times, so let it do nothing.

The same seed draws the same jobs. Exit codes: 0 all agree (times: always), 1 some do not, 2 usage,
3 a job did not run.
"""
import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys

KINDS = ["flash", "standard", "linear", "chunked", "recurrent", "cumsum"]
LINEAR = KINDS[2:]
LAUNCH = os.path.dirname(os.path.realpath(__file__))
START_RANKS = '. "$0/common.sh" && set_mpi_environment "$1" && exec mpirun -n "$@"'


def draw_shape(rng, kind, tokens_most):
    most = min(tokens_most, 3000) if kind == "standard" else tokens_most
    kv_heads = rng.randint(1, 4)
    return {
        "shape.seq": rng.choice([rng.randint(300, 1000), rng.randint(1000, most)]),
        "shape.batch": rng.randint(1, 2),
        "shape.kv_heads": kv_heads,
        "shape.heads": kv_heads * rng.randint(1, 2),
        "shape.head_dim": rng.choice([16, 32, 48, 64, 80, 96, 128]),
        "shape.dtype": rng.choice(["f32", "f16", "bf16"]),
        "ring.head_groups": rng.randint(1, kv_heads),
    }


def draw_pattern(rng, seq):
    keys = {}
    if rng.random() < 0.5:
        keys["pattern.causal"] = "true"
    if rng.random() < 0.4:
        keys["pattern.window.left"] = rng.randint(50, seq)
    if rng.random() < 0.2:
        keys["pattern.sinks"] = rng.randint(1, 9)
    blocks = rng.choice(["none", "none", "none", "local_window", "dilated_sparse", "random"])
    if blocks != "none":
        keys["pattern.blocks.kind"] = blocks
        keys["pattern.blocks.size"] = rng.choice([64, 128, 256])
    if blocks == "random":
        keys["pattern.blocks.density"] = rng.choice([0.1, 0.5])
    elif rng.random() < 0.25:
        short, long = rng.randint(100, 1000), rng.randint(1000, 4000)
        keys["pattern.dilated.segments"] = f"[{short},{long}]"
        keys["pattern.dilated.rates"] = f"[1,{rng.randint(2, 4)}]"
    return keys


def draw_ring(rng):
    return {
        "ring.layout": rng.choice(["auto", "contiguous", "zigzag", "striped", "balanced"]),
        "ring.schedule": rng.choice(["auto", "ring", "direct", "shared"]),
        "ring.comm_buffers": rng.randint(0, 2),
    }


def draw(rng, kind, ranks, tokens_most):
    """A job as keys and their values, and whether a backward pass follows."""
    keys = draw_shape(rng, kind, tokens_most)
    backward = kind not in ("recurrent", "cumsum") and rng.random() < 0.5
    if kind in LINEAR:
        keys["attention.kind"] = "linear" if kind == "linear" else "linear_causal"
        if kind != "linear":
            keys["attention.linear_method"] = kind
        return keys, backward
    keys["attention.kind"] = kind
    keys.update(draw_pattern(rng, keys["shape.seq"]))
    if ranks > 1:
        keys.update(draw_ring(rng))
    return keys, backward


def did_not_run(command, why):
    sys.stderr.write(f"plan-jobs: {shlex.join(command)}: {why}\n")
    sys.exit(3)


def point_of(command, limit_s):
    try:
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    except OSError as error:
        did_not_run(command, error.strerror)
    try:
        out, err = job.communicate(timeout=limit_s)
    except BaseException as error:
        os.killpg(job.pid, signal.SIGKILL)  # what a prefix has started, too
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        did_not_run(command, f"not done after {limit_s} s")
    if job.returncode != 0:
        did_not_run(command, f"exit {job.returncode}\n{err}")
    try:
        return json.loads(out)["points"][0]
    except (ValueError, LookupError, TypeError):
        did_not_run(command, "wrote no report")


def words_of(keys, backward):
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    return words + (["--backward"] if backward else [])


def run_and_plan(args, keys, backward, ranks):
    words = words_of(keys, backward)
    launcher = ["bash", "-c", START_RANKS, LAUNCH, str(ranks)] if ranks > 1 else []
    run = point_of(launcher + args.prefix + [args.ringattn, "run", "--quiet", "--json"]
                   + words, args.limit)
    plan = [args.ringattn, "plan", "--quiet", "--json", "--ranks", str(ranks)] + words
    plan += ["--hardware", args.hardware] if args.hardware else []
    return run, point_of(plan, args.limit)


def differences(run, plan, idle_most):
    """Categories, and the sum, in which a plan is off by more than 1 %, each with both figures."""
    taken = dict(run["memory_bytes"])
    idle = taken.pop("pool_idle")
    pairs = {name: (plan["memory_bytes"][name], amount) for name, amount in taken.items()}
    pairs["peak but for pool_idle"] = (plan["peak_bytes"], run["peak_bytes"] - idle)
    found = {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) > pair[1] // 100}
    if idle > idle_most:
        found["pool_idle"] = (0, idle)
    return found


def compare_memory(args, rng):
    apart, off, most_idle = 0, [], 0
    for index in range(args.jobs):
        ranks = rng.choice(args.ranks)
        kind = rng.choice(args.kinds)
        keys, backward = draw(rng, kind, ranks, args.tokens)
        keys["memory.pool.mode"] = args.pool
        keys["compute.threads"] = 1
        run, plan = run_and_plan(args, keys, backward, ranks)
        found = differences(run, plan, args.idle)
        off.append(plan["peak_bytes"] / run["peak_bytes"] - 1)
        idle = run["memory_bytes"].get("pool_idle", 0)
        most_idle = max(most_idle, idle)
        apart += bool(found)
        if args.verbose or found:
            said = " ".join(f"{name}: planned {a}, taken {b};" for name, (a, b) in found.items())
            print(f"{index}: peak {run['peak_bytes']}, {100 * off[-1]:+.3f} %, pool_idle {idle}; "
                  f"{said} {ranks} ranks {shlex.join(words_of(keys, backward))}", flush=True)
    sizes = sorted(abs(x) for x in off)
    print(f"{args.jobs} jobs: {apart} do not agree; peaks are off {100 * statistics.median(sizes):.3f} "
          f"% in the median, {100 * sizes[-1]:.3f} % at most, {sum(x > 0.01 for x in sizes)} by more "
          f"than 1 %; pool_idle is {most_idle} bytes at most")
    return 1 if apart else 0


def compare_times(args, rng):
    errors, without = {}, 0
    for index in range(args.jobs):
        kind = args.kinds[index % len(args.kinds)]
        keys, backward = draw(rng, kind, 1, args.tokens)
        keys.update({"compute.threads": 1, "job.repeat": 5, "job.warmup": 1, "comm.backend": "self"})
        backward = kind not in ("recurrent", "cumsum")
        run, plan = run_and_plan(args, keys, backward, 1)
        without += "forward_ms" not in plan
        for name in ("forward_ms", "backward_ms"):
            if name in run and name in plan:
                ratio = plan[name]["median"] / run[name]["median"]
                errors.setdefault((kind, name), []).append(ratio - 1)
                if args.verbose:
                    print(f"{index}: {kind} {name} {run[name]['median']:.3f} planned "
                          f"{ratio:.3f} times that: {shlex.join(words_of(keys, backward))}",
                          flush=True)
    for (kind, name), off in errors.items():
        sizes = sorted(abs(x) for x in off)
        print(f"{kind:10} {name:12} {len(off):4} jobs, off {100 * statistics.median(sizes):.0f} % in "
              f"the median, {100 * sizes[-1]:.0f} % at most, bias {100 * statistics.median(off):+.0f} %")
    if without:
        print(f"{without} jobs are of kinds whose speed the hardware file does not say")
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "times"])
    parser.add_argument("ringattn")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ranks", default="1", help="that memory is compared on, one of them each",
                        type=lambda text: [int(ranks) for ranks in text.split(",")])
    parser.add_argument("--tokens", type=int, default=6000, help="at most")
    parser.add_argument("--pool", choices=["size_class", "off"], default="size_class")
    parser.add_argument("--idle", type=int, default=65536, help="bytes of pool_idle that agree")
    parser.add_argument("--hardware", help="of times")
    parser.add_argument("--limit", type=int, default=600, help="seconds that a job may take")
    parser.add_argument("--prefix", default="", help="before the command that runs")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.kinds = args.kinds.split(",")
    if set(args.kinds) - set(KINDS):
        parser.error(f"--kinds: of {','.join(KINDS)}")
    if args.jobs < 1 or min(args.ranks) < 1 or args.tokens < 1000:
        parser.error("--jobs and --ranks are at least 1, --tokens at least 1000")
    if args.what == "times" and not args.hardware:
        parser.error("times: --hardware FILE says how fast the machine is")
    if args.what == "memory" and args.hardware:
        parser.error("memory: --hardware is of times")
    try:
        args.prefix = shlex.split(args.prefix)
    except ValueError as error:
        parser.error(f"--prefix: {error}")
    return args


def main():
    args = parse()
    rng = random.Random(args.seed)
    return compare_memory(args, rng) if args.what == "memory" else compare_times(args, rng)


if __name__ == "__main__":
    sys.exit(main())
