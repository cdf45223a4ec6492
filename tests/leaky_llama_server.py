"""A llama-server that answers what it is, and crashes at the start of a model with all it knows in its last words."""

import os
import signal
import sys

FLAGS = (
    "--threads-batch N",
    "--spec-draft-ngl N",
    "--parallel N",
    "-m, --model FNAME",
    "-md, --model-draft FNAME",
    "-c, --ctx-size N",
    "-t, --threads N",
    "-b, --batch-size N",
    "-ub, --ubatch-size N",
    "-ngl, --n-gpu-layers N",
    "--draft-max N",
    "--draft-min N",
    "--draft-p-min P",
    "--spec-type none,draft-simple,ngram-simple",
    "--spec-ngram-size-n N",
    "--spec-ngram-size-m N",
    "--spec-ngram-min-hits N",
)


def main() -> int:
    if "--version" in sys.argv:
        print("version: 10068 (abcdef12)\nbuilt with a compiler for x86_64", file=sys.stderr)
    elif "--help" in sys.argv:
        print("\n".join(f"{flag}                    (default: 0)" for flag in FLAGS))
    elif "--list-devices" in sys.argv:
        print("Available devices:")
    else:
        for name, value in os.environ.items():
            print(f"E {name}={value}", file=sys.stderr)
        print(f"error: cannot start {' '.join(sys.argv)}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return 0


if __name__ == "__main__":
    sys.exit(main())
