"""Serves a checkpoint with transformers over HTTP, in the dialect of llama-server; started by drivers.py.

usage: transformers_host.py serve SETTINGS.json STATUS.json | transformers_host.py probe

Runs under the Python of an environment with torch and transformers, so nothing of the project is imported here.
SETTINGS.json holds the keys of `Settings`; STATUS.json appears (by rename) when the server listens ({"address": ...}).
The API key comes in the environment variable FINDINGS_ENGINE_KEY, so that no file and no command line holds it.

What an answer means, in every arm alike:
- the text is greedy and as long as asked; end-of-text tokens are suppressed, as llama-server does for `ignore_eos`;
- prompt_ms ends with the target's first forward pass, which sees the prompt alone. transformers would already verify a
  draft in that pass where an ordinary assistant or prompt lookup has one; here the first draft comes a step later, as
  transformers itself does it for Gemma 4 assistants. Otherwise drafts would be verified in the prompt's time;
- predicted_ms is all the rest: drafting (with an assistant's own pass over the prompt) and verifying;
- a drafted token is one that was handed to the target, an accepted one was in the text because of it.
Only safetensors are read, only local files, and no code of a checkpoint runs.
"""

import hmac
import json
import os
import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
)

BODY_LIMIT = 8 * 2**20
MIB = 2**20
GENERATORS = (
    "AssistedCandidateGenerator",
    "SinglePositionMultiTokenCandidateGenerator",
    "PromptLookupCandidateGenerator",
)
MTP_CLASSES = ("Gemma4Assistant", "Gemma4UnifiedAssistant")
# Architectures whose checkpoints hold more than text: the class of the text alone, and where its weights lie.
TEXT_ONLY = {"Gemma4ForConditionalGeneration": ("Gemma4ForCausalLM", {r"^model\.language_model\.": "model."})}
OPTIONS = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
)


class RefusedError(Exception):
    """A checkpoint or a request that cannot be served; the message says why."""


@dataclass(frozen=True)
class Settings:
    """What is loaded and how it generates; `generator` is one of GENERATORS or "" for none, the last four are its own.

    Devices as torch names them; `dtype` as torch names it, or `stored` for the checkpoint's own; `ctx` in tokens.
    """

    model: str
    device: str
    dtype: str
    threads: int
    ctx: int
    attn_implementation: str
    generator: str = ""
    assistant: str = ""
    assistant_device: str = "cpu"
    num_assistant_tokens: int = 0
    num_assistant_tokens_schedule: str = "constant"
    assistant_confidence_threshold: float = 0.0
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 0


@dataclass
class Counts:
    """Drafting of one request, or of all: verification steps with a draft, tokens, accepted tokens by position."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """One verification step; those without a draft do not count."""
        if drafted <= 0:
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for position in range(accepted):
            self.accepted_at[position] += 1

    def total(self, other: "Counts") -> None:
        """Add the counts of a request to these."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.accepted_at += [0] * (len(other.accepted_at) - len(self.accepted_at))
        for position, count in enumerate(other.accepted_at):
            self.accepted_at[position] += count


class CountingGenerator:
    """Stands before transformers' generator of candidates: counts, and lets the first pass see the prompt alone.

    `make(input_ids)` makes the real one, at the first step that drafts.
    """

    def __init__(self, make: Any, needs_outputs: bool, overrides: dict[str, Any], counts: Counts) -> None:
        self.requires_model_outputs = needs_outputs
        self.model_kwargs_overrides = overrides
        self._make, self._counts = make, counts
        self._inner: Any = None
        self._prefilled = False
        self._drafted = 0

    def get_candidates(self, input_ids: Any, **told: Any) -> tuple[Any, Any]:
        """Candidates of the real generator; none for the first pass."""
        self._drafted = 0
        if not self._prefilled:
            return input_ids, None
        if self._inner is None:
            self._inner = self._make(input_ids)
        candidates, logits = self._inner.get_candidates(input_ids, **told)
        self._drafted = int(candidates.shape[1] - input_ids.shape[1])
        return candidates, logits

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: Any) -> None:
        """What became of the last candidates."""
        if self._prefilled and self._inner is not None:
            self._counts.add(self._drafted, int(num_matches))
            self._inner.update_candidate_strategy(input_ids, scores, num_matches)
        self._prefilled = True


def without_code(folder: Path) -> None:
    """Refuse what is no checkpoint with safetensors."""
    if not folder.exists():
        raise RefusedError(f"{folder.name}: No such file or directory")
    if not folder.is_dir():
        raise RefusedError(f"{folder.name} is a file; transformers reads a checkpoint (a folder with safetensors)")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        why = f"; {', '.join(pickles)} may hold code (a pickle) and is not read" if pickles else ""
        raise RefusedError(f"no safetensors in {folder.name}{why}")
    if not (folder / "config.json").is_file():
        raise RefusedError(f"no config.json in {folder.name}")


def configuration(folder: str) -> dict[str, Any]:
    """The config.json of a checkpoint, with `text` for the part that is about text."""
    found = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return {**found, "text": found.get("text_config", found)}


def vocabulary(folder: str) -> Any:
    """What a checkpoint's tokenizer.json says about its tokens, for comparing; None without that file."""
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    return found["model"].get("vocab"), sorted((token["id"], token["content"]) for token in found["added_tokens"])


def check_pair(settings: Settings) -> None:
    """Refuse an assistant that the generator cannot use with this target."""
    target, assistant = configuration(settings.model), configuration(settings.assistant)
    kind = (assistant.get("architectures") or ["?"])[0]
    mtp = kind.startswith(MTP_CLASSES)
    if mtp != (settings.generator == "SinglePositionMultiTokenCandidateGenerator"):
        raise RefusedError(f"assistant {kind} is not compatible with {settings.generator}")
    ours, theirs = target["text"].get("vocab_size"), assistant["text"].get("vocab_size")
    if ours != theirs:
        raise RefusedError(f"vocabs are not compatible: {ours} tokens in the target, {theirs} in the assistant")
    if vocabulary(settings.assistant) not in (None, vocabulary(settings.model)):
        raise RefusedError("vocabs are not compatible: the same number of tokens, but other texts")
    wide, hidden = assistant.get("backbone_hidden_size"), target["text"].get("hidden_size")
    if mtp and wide != hidden:
        raise RefusedError(
            f"assistant and target are not compatible: made for a width of {wide}, the target has {hidden}"
        )


def load_model(path: str, device: str, dtype: str, attention: str) -> Any:
    """The model of a checkpoint's folder, its text part alone, every weight of it from the file."""
    import torch  # noqa: PLC0415 - only the environment of an engine has it
    import transformers  # noqa: PLC0415

    folder = Path(path)
    architecture = (configuration(path).get("architectures") or [""])[0]
    text_class, mapping = TEXT_ONLY.get(architecture, ("", None))
    known = hasattr(transformers, architecture) if architecture else True
    if not known:
        raise RefusedError(f"unknown model architecture: '{architecture}' (transformers {transformers.__version__})")
    loader = getattr(transformers, text_class) if text_class else transformers.AutoModelForCausalLM
    model, loading = loader.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        dtype="auto" if dtype == "stored" else getattr(torch, dtype),
        attn_implementation=attention,
        output_loading_info=True,
        **({"key_mapping": mapping} if mapping else {}),
    )
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers would go on with random weights
        raise RefusedError(f"missing tensor '{missing[0]}' ({len(missing)} missing) in {folder.name}")
    return model.to(device).eval().requires_grad_(False)


def end_tokens(folder: Path, config: Any, tokenizer: Any) -> list[int]:
    """Every token that would end a text, as checkpoint, configuration and tokenizer name them."""
    named: list[Any] = [getattr(config.get_text_config(), "eos_token_id", None), tokenizer.eos_token_id]
    file = folder / "generation_config.json"
    if file.is_file():
        named.append(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id"))
    found = [token for entry in named for token in (entry if isinstance(entry, list) else [entry])]
    return sorted({int(token) for token in found if token is not None})


class Engine:
    """A loaded target, perhaps with an assistant, that answers one request at a time."""

    def __init__(self, settings: Settings) -> None:
        without_code(Path(settings.model))  # all of this before the seconds that torch takes to load
        if settings.assistant:
            without_code(Path(settings.assistant))
            check_pair(settings)
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        self._torch, self._transformers, self.settings = torch, transformers, settings
        torch.set_num_threads(settings.threads)
        transformers.utils.logging.disable_progress_bar()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(
            settings.model, local_files_only=True, trust_remote_code=False
        )
        self.model = load_model(settings.model, settings.device, settings.dtype, settings.attn_implementation)
        self.assistant: Any = None
        if settings.assistant:
            self.assistant = load_model(
                settings.assistant, settings.assistant_device, settings.dtype, settings.attn_implementation
            )
            self.assistant.generation_config = transformers.GenerationConfig(
                num_assistant_tokens=settings.num_assistant_tokens,
                num_assistant_tokens_schedule=settings.num_assistant_tokens_schedule,
                assistant_confidence_threshold=settings.assistant_confidence_threshold,
            )
        self.ends = end_tokens(Path(settings.model), self.model.config, self.tokenizer)
        # The checkpoint's own would fill in what a request leaves open: sampling, end-of-text tokens, lengths.
        self.model.generation_config = transformers.GenerationConfig()
        self.counts, self.totals = Counts(), Counts()
        self._original = self.model._get_candidate_generator if settings.generator else None
        if settings.generator:
            self.model._get_candidate_generator = self._counting_generator
        self.used = False
        self._tell()

    def _counting_generator(self, **arguments: Any) -> CountingGenerator:
        """What transformers gets in the place of its generator."""
        generator = self.settings.generator
        classes = sys.modules[f"{self._transformers.__name__}.generation.candidate_generator"]
        real = getattr(classes, generator)

        def make(input_ids: Any) -> Any:
            # The prompt has grown by a token since; there is one sequence and no padding, so the mask is all ones.
            told = dict(arguments["model_kwargs"])
            told = {key: value for key, value in told.items() if key not in ("position_ids", "cache_position")}
            told["attention_mask"] = self._torch.ones_like(input_ids)
            made = self._original(**{**arguments, "input_ids": input_ids, "model_kwargs": told})  # type: ignore[misc]
            if type(made).__name__ != generator:
                raise RefusedError(f"transformers chose {type(made).__name__} instead of {generator}")
            return made

        needs = bool(getattr(real, "requires_model_outputs", False))
        overrides = dict(getattr(real, "model_kwargs_overrides", {}))
        return CountingGenerator(make, needs, overrides, self.counts)

    def _tell(self) -> None:
        """Print what runs where, in the words that the pipeline reads from llama.cpp's logs."""
        torch, dtype = self._torch, str(self.model.dtype).removeprefix("torch.")
        threads = torch.get_num_threads()
        print(f"system_info: n_threads = {threads} (n_threads_batch = {threads}) | {self.build_info()}")
        print(f"target {type(self.model).__name__} in {dtype}, attention {self.model.config._attn_implementation}")
        sizes: dict[str, int] = {}
        for model in (self.model, self.assistant) if self.assistant is not None else (self.model,):
            for weight in model.parameters():
                name = (
                    "CPU" if weight.device.type == "cpu" else f"{weight.device.type.upper()}{weight.device.index or 0}"
                )
                sizes[name] = sizes.get(name, 0) + weight.numel() * weight.element_size()
        for name, size in sizes.items():
            print(f"{name} model buffer size = {size / MIB:.2f} MiB")
        sys.stdout.flush()

    def build_info(self) -> str:
        """Both versions."""
        return f"transformers {self._transformers.__version__}, torch {self._torch.__version__}"

    def token_ids(self, text: str) -> list[int]:
        """Token ids of a text, with <bos> where the family wants it (a checkpoint's tokenizer may leave it out)."""
        ids = [int(token) for token in self.tokenizer(text)["input_ids"]]
        bos = self.tokenizer.bos_token_id
        if bos is not None and self.model.config.model_type.startswith("gemma") and ids[:1] != [bos]:
            ids.insert(0, int(bos))
        return ids

    def _now(self) -> float:
        """Milliseconds, when everything asked of a GPU has been done."""
        for device in {self.settings.device, self.settings.assistant_device if self.assistant is not None else "cpu"}:
            if device != "cpu":
                self._torch.cuda.synchronize(device)
        return time.perf_counter() * 1000.0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to POST /completion."""
        prompt, wanted = body.get("prompt"), body.get("n_predict")
        if not isinstance(wanted, int) or wanted < 1:
            raise RefusedError(f"n_predict is {wanted!r}; a number of at least 1 is needed")
        if body.get("temperature", 0.0) != 0.0 or body.get("ignore_eos") is not True:
            raise RefusedError("only temperature 0 and ignore_eos true are served")
        ids = self.token_ids(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
            raise RefusedError("prompt is neither a text nor a list of token ids")
        if len(ids) + wanted > self.settings.ctx:
            raise RefusedError(f"{len(ids)} + {wanted} tokens exceed the context of {self.settings.ctx}")
        torch, settings = self._torch, self.settings
        own = {
            "prompt_lookup_num_tokens": settings.prompt_lookup_num_tokens,
            "max_matching_ngram_size": settings.max_matching_ngram_size,
        }
        config = self._transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=wanted,
            eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id or 0,
            suppress_tokens=self.ends or None,
            use_cache=True,
            disable_compile=True,
            **(own if settings.generator == "PromptLookupCandidateGenerator" else {}),
        )
        self.counts = Counts()
        prefilled: list[float] = []

        def first_pass(*_: Any) -> None:
            handle.remove()
            prefilled.append(self._now())

        with torch.inference_mode():
            given = torch.tensor([ids], device=settings.device)
            handle = self.model.register_forward_hook(first_pass)
            begun = self._now()
            try:
                made = self.model.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    generation_config=config,
                    **({"assistant_model": self.assistant} if self.assistant is not None else {}),
                )
            finally:
                handle.remove()
            ended = self._now()
        tokens = made[0, len(ids) :].tolist()
        self.used = True
        self.totals.total(self.counts)
        return self._answer(tokens, len(ids), prefilled[0] - begun, ended - prefilled[0])

    def _answer(self, tokens: list[int], prompt_n: int, prompt_ms: float, predicted_ms: float) -> dict[str, Any]:
        counts = self.counts
        timings: dict[str, Any] = {
            "prompt_n": prompt_n,
            "prompt_ms": prompt_ms,
            "predicted_n": len(tokens),
            "predicted_ms": predicted_ms,
            "cache_n": 0,
        }
        if counts.drafted:
            timings |= {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted}
            share, length = counts.accepted / counts.drafted, 1.0 + counts.accepted / counts.rounds
            print(
                f"draft acceptance = {share:.5f} ({counts.accepted} accepted / {counts.drafted} generated), "
                f"mean len = {length:.2f}",
                flush=True,
            )
        return {
            "content": self.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": tokens,
            "stop_type": "limit",
            "timings": timings,
        }

    def information(self, path: str) -> Any:
        """The answer to GET `path`; None for a path that is not served."""
        settings, config = self.settings, self.model.config.get_text_config()
        name = Path(settings.model).name
        if path == "/props":
            return {
                "total_slots": 1,
                "build_info": self.build_info(),
                "model_path": name,
                "model_ftype": str(self.model.dtype).removeprefix("torch."),
                "default_generation_settings": {"n_ctx": settings.ctx},
            }
        if path == "/v1/models":
            weights = list(self.model.parameters())
            meta = {
                "size": sum(weight.numel() * weight.element_size() for weight in weights),
                "n_params": sum(weight.numel() for weight in weights),
                "n_vocab": config.vocab_size,
                "vocab_type": type(self.tokenizer).__name__,
            }
            return {"data": [{"id": name, "meta": meta}]}
        if path == "/slots":
            sampling = {"temperature": 0.0, "ignore_eos": True} if self.used else {}
            own = {
                f"speculative.{key}": value
                for key, value in vars(settings).items()
                if settings.generator and key in ("generator", *OPTIONS)
            }
            return [{"id": 0, "n_ctx": settings.ctx, "speculative": bool(settings.generator), "params": sampling | own}]
        if path == "/metrics":
            return self._metrics()
        return None

    def _metrics(self) -> str:
        totals, name = self.totals, "llamacpp:spec_decode_num"
        lines = [
            f"{name}_drafts_total {totals.rounds}",
            f"{name}_draft_tokens_total {totals.drafted}",
            f"{name}_accepted_tokens_total {totals.accepted}",
        ]
        per = f"{name}_accepted_tokens_per_pos_total"
        lines += [f'{per}{{position="{at}"}} {count}' for at, count in enumerate(totals.accepted_at)]
        return "\n".join(lines) + "\n"


@dataclass
class Asked:
    """A request on its way to the thread that computes, and the answer on its way back."""

    path: str
    body: dict[str, Any]
    done: threading.Event = field(default_factory=threading.Event)
    status: int = 500
    answer: Any = None


def handler_of(engine: Engine, key: str, waiting: "queue.Queue[Asked]") -> type[BaseHTTPRequestHandler]:
    """The class of HTTP requests: information at once, work through the queue."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

        def _send(self, status: int, answer: Any) -> None:
            text = isinstance(answer, str)
            data = answer.encode() if text else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _refuse(self, status: int, message: str) -> None:
            self._send(status, {"error": {"code": status, "message": message}})

        def _allowed(self) -> bool:
            said = self.headers.get("Authorization", "").encode()
            if not key or hmac.compare_digest(said, f"Bearer {key}".encode()):
                return True
            self.close_connection = True
            self._refuse(401, "Invalid API Key")
            return False

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200, {"status": "ok"})
            elif self._allowed():
                answer = engine.information(self.path)
                if answer is None:
                    self._refuse(404, "not served")
                else:
                    self._send(200, answer)

        def do_POST(self) -> None:
            if not self._allowed():
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > BODY_LIMIT:
                self.close_connection = True
                self._refuse(413, f"a body of at most {BODY_LIMIT} bytes, with its length, is needed")
                return
            try:
                body = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                body = None
            if not isinstance(body, dict) or self.path not in ("/completion", "/tokenize"):
                self._refuse(404 if isinstance(body, dict) else 400, "not served")
                return
            asked = Asked(self.path, body)
            waiting.put(asked)
            asked.done.wait()
            self._send(asked.status, asked.answer)

    return Handler


def work(engine: Engine, waiting: "queue.Queue[Asked]") -> None:
    """Answer requests in this thread, one after the other, for ever. MemoryError and torch's own pass through."""
    while True:
        asked = waiting.get()
        try:
            if asked.path == "/tokenize":
                asked.answer = {"tokens": engine.token_ids(str(asked.body.get("content", "")))}
            else:
                asked.answer = engine.complete(asked.body)
            asked.status = 200
        except RefusedError as error:
            asked.status, asked.answer = 400, {"error": {"code": 400, "message": str(error)}}
        asked.done.set()


def report(path: str, content: dict[str, str]) -> None:
    """Write the status file whole."""
    temporary = Path(path + ".part")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def fail(error: BaseException, doing: str) -> None:
    """Print why, the decisive line last, and end the process, also with threads and a half-used GPU in it."""
    if not isinstance(error, RefusedError):
        for frame in traceback.extract_tb(error.__traceback__)[-6:]:  # without folders: they are this machine's
            print(f"  at {Path(frame.filename).name}:{frame.lineno} in {frame.name}", file=sys.stderr)
    words = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
    print(f"error {doing}: {' '.join(words.split())}", file=sys.stderr, flush=True)
    os._exit(1)


def read_settings(path: str) -> Settings:
    """Settings from their file. Raises RefusedError for a key too many or too few."""
    given = json.loads(Path(path).read_text(encoding="utf-8"))
    unknown = sorted(set(given) - {item.name for item in fields(Settings)})
    if unknown:
        raise RefusedError(f"invalid argument: {unknown[0]}")
    try:
        return Settings(**given)
    except TypeError as error:
        raise RefusedError(f"invalid argument: {error}") from error


def serve(settings_path: str, status_path: str) -> int:
    """Load, listen, and answer until the process is ended."""
    key = os.environ.pop("FINDINGS_ENGINE_KEY", "")
    doing = "reading settings"
    try:
        settings = read_settings(settings_path)
        doing = "loading model"
        engine = Engine(settings)
        doing = "listening"
        waiting: queue.Queue[Asked] = queue.Queue()
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(engine, key, waiting))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        report(status_path, {"address": f"http://127.0.0.1:{server.server_address[1]}"})
        doing = "generating"
        work(engine, waiting)
    except BaseException as error:
        fail(error, doing)
    return 1


def probe() -> int:
    """Print as JSON what this transformers offers: version, generators of candidates, options with their defaults."""
    import transformers  # noqa: PLC0415 - only the environment of an engine has it
    from transformers.generation import candidate_generator, utils  # noqa: PLC0415

    # Without this method there is no place to count at, so nothing that drafts can be offered.
    counted = hasattr(utils.GenerationMixin, "_get_candidate_generator")
    defaults = transformers.GenerationConfig()
    facts = {
        "version": transformers.__version__,
        "generators": [name for name in GENERATORS if counted and hasattr(candidate_generator, name)],
        "options": {name: getattr(defaults, name) for name in OPTIONS if hasattr(defaults, name)},
    }
    print("\n" + json.dumps(facts))
    return 0


def main(argv: list[str]) -> int:
    """Dispatch by the first argument."""
    if argv[:1] == ["probe"] and len(argv) == 1:
        return probe()
    if argv[:1] == ["serve"] and len(argv) == 3:
        return serve(argv[1], argv[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
