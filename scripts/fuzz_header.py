"""Feed damaged GGUF files to the header reader and the pre-check, with a bound on time and on memory for each file.

    python scripts/fuzz_header.py [--minutes 2] [--seed N] [--keep FOLDER]

Starts from small valid files and damages them: bits, counts and lengths set to extreme values, pieces cut out,
doubled, moved. Every file must end in a header or a GgufError, within the bounds. Exit code 1 with the file kept
where one does not; each such file belongs into tests/unit/test_gguf_header.py.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from findings.gguf_header import GgufError, read_header
from findings.model_facts import facts
from findings.precheck import Question, precheck_files
from findings.writing import command

SECONDS, EXTRA_BYTES, GROWTH_BYTES = 2.0, 60_000_000, 120_000_000
EXTREMES = (0, 1, 5, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, raw: bytes) -> bytes:
    return _text(name.encode()) + struct.pack("<I", kind) + raw


def _array(kind: int, items: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def seed_file(order: random.Random) -> bytes:
    """A small valid file with keys of every type, a vocabulary and tensors."""
    tokens = [_text(f"t{number}".encode()) for number in range(order.choice((8, 40, 300)))]
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    keys = [
        _key("general.architecture", 8, _text(b"llama")),
        _key("general.alignment", 4, struct.pack("<I", 32)),
        _key("llama.block_count", 4, struct.pack("<I", 2)),
        _key("llama.embedding_length", 4, struct.pack("<I", 32)),
        _key("llama.context_length", 4, struct.pack("<I", 512)),
        _key("llama.attention.head_count", 4, struct.pack("<I", 4)),
        _key("llama.attention.sliding_window", 4, struct.pack("<I", 64)),
        _key("llama.attention.sliding_window_pattern", 9, _array(7, [b"\1", b"\0"])),
        _key("llama.feed_forward_length", 9, _array(5, [struct.pack("<i", 64)] * 2)),
        _key("llama.expert_count", 4, struct.pack("<I", 4)),
        _key("split.count", 2, struct.pack("<H", 1)),
        _key("tokenizer.ggml.model", 8, _text(b"llama")),
        _key("tokenizer.ggml.tokens", 9, _array(8, tokens)),
        _key("tokenizer.ggml.scores", 9, _array(6, [struct.pack("<f", 0.0)] * len(tokens))),
        _key("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
        _key("nested", 9, _array(9, [_array(4, [struct.pack("<I", 7)] * 3)] * 2)),
        *(_key(f"scalar.{kind}", kind, struct.pack("<" + code, 1)) for kind, code in numbers.items()),
    ]
    order.shuffle(keys)
    names = ("token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_norm.weight")
    tensors = [
        _text(name.encode()) + struct.pack("<IQQIQ", 2, 32, 4, order.choice((0, 1, 8)), place * 512)
        for place, name in enumerate(names)
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    return head + b"".join(keys) + b"".join(tensors) + b"\0" * 2048


def damaged(content: bytes, order: random.Random) -> bytes:
    """`content` with one to six damages."""
    data = bytearray(content)
    for _ in range(order.randint(1, 6)):
        place = order.randrange(max(1, len(data)))
        kind = order.randrange(7)
        if kind == 0 and data:
            data[place] ^= 1 << order.randrange(8)
        elif kind == 1:
            data[place : place + 8] = struct.pack("<Q", order.choice(EXTREMES))
        elif kind == 2:
            data[place : place + 4] = struct.pack("<I", order.choice(EXTREMES) & 0xFFFFFFFF)
        elif kind == 3:
            del data[place : place + order.choice((1, 8, 100))]
        elif kind == 4:
            data[place:place] = data[place : place + order.choice((1, 8, 100, 2000))] * order.choice((1, 3, 50))
        elif kind == 5:
            # The counts of tensors and keys.
            at = 8 + 8 * order.randrange(2)
            data[at : at + 8] = struct.pack("<Q", order.choice(EXTREMES))
        else:
            del data[place:]
        del data[4_000_000:]
    return bytes(data)


def attempt(path: Path, whole: Path) -> str:
    """What one file ends as; anything but a GgufError passes through."""
    try:
        header = read_header(path)
    except GgufError as error:
        precheck_files(whole, path, Question())
        return error.fault.value
    for entry in header.fields.values():
        header.decode(entry)
    json.dumps(facts(header))
    for target, drafter in ((path, whole), (whole, path), (path, path)):
        prediction = precheck_files(target, drafter, Question(deep=True, budget=1 << 30))
        json.dumps(prediction.as_json())
        prediction.text().encode("utf-8", "surrogateescape")
    return "header"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run for the given time; 1 where a file broke a bound or raised something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (2)")
    parser.add_argument("--seed", type=int, default=20260506, help="start of the random numbers")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="folder for files that broke it")
    arguments = parser.parse_args(argv)
    order = random.Random(arguments.seed)  # noqa: S311 - repeatable, not secret
    ends: Counter[str] = Counter()
    until = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        path, whole = Path(folder) / "damaged.gguf", Path(folder) / "whole.gguf"
        whole.write_bytes(seed_file(order))
        attempt(whole, whole)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # Beyond this, Python raises MemoryError instead of the machine suffering.
        limit = _address_space() + GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        slowest = 0.0
        while time.monotonic() < until:
            content = damaged(seed_file(order), order)
            path.write_bytes(content)
            begun = time.process_time()
            try:
                ends[attempt(path, whole)] += 1
                taken = time.process_time() - begun
                problem = f"{taken:.1f} s of CPU" if taken > SECONDS else ""
                slowest = max(slowest, taken)
            except Exception as error:  # any other exception is what is looked for
                problem = f"{type(error).__name__}: {error}"
            if problem:
                return _found(arguments.keep, content, problem)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    files = sum(ends.values())
    print(f"{files} files, slowest {slowest:.2f} s, peak memory {grown / 1e6:.1f} MB above the start; {dict(ends)}")
    if grown > EXTRA_BYTES:
        print(f"memory grew by more than {EXTRA_BYTES / 1e6:.0f} MB")
        return 1
    return 0


def _address_space() -> int:
    """Bytes of address space in use (Linux); a generous guess elsewhere."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 8 << 30


def _found(keep: Path, content: bytes, problem: str) -> int:
    keep.mkdir(parents=True, exist_ok=True)
    place = keep / f"finding-{len(list(keep.iterdir())) + 1}.gguf"
    place.write_bytes(content)
    print(f"{place}: {problem}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
