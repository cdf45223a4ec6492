"""Train the tiny Gemma 4 target and its drafters.

Needs torch and transformers 5.24 or newer, so it runs in an environment of its own, never in the pipeline's.
One step of a drafter (transformers' `Gemma4AssistantForCausalLM`, and llama.cpp's draft-mtp alike):

- in: the target's scaled embedding of the newest token x[p+1], and the target's last hidden state h[p] (after the final
  norm), side by side: `2 * backbone_hidden_size`;
- keys and values: those of the target's last sliding and last full layer, for positions 0..p;
- position: p+1, the newest verified token's, for every token drafted in that round;
- out: logits of x[p+2], and a state of the target's width that takes the place of h in the next drafted step.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma4 import Gemma4Config, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4TextConfig
from transformers.models.gemma4_assistant.configuration_gemma4_assistant import Gemma4AssistantConfig
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantForCausalLM

from findings.checkpoint import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    AssistantSpec,
    TargetSpec,
    TrainingPlan,
    documents,
)

Model = Any
Tensor = Any
REPORT_EVERY_S = 5.0
MODEL_MAX_LENGTH = 2048
UNKNOWN = SPECIAL_TOKENS[3]


@dataclass(frozen=True)
class Trained:
    """A trained model with what the card says about it.

    `loss` in nats a token at the end; `agreement[k]` is the share of held-out positions at which the (k+1)-th drafted
    token is the target's greedy choice, all earlier ones being right.
    """

    model: Model
    loss: float
    seconds: float
    agreement: tuple[float, ...] = ()


class _Progress:
    """One line on stderr every few seconds, so that a log file shows it, too."""

    def __init__(self, what: str, steps: int) -> None:
        self.what, self.steps, self.started, self.last = what, steps, time.monotonic(), 0.0

    def step(self, at: int, loss: float) -> None:
        now = time.monotonic()
        if now - self.last < REPORT_EVERY_S and at + 1 < self.steps:
            return
        self.last = now
        left = (now - self.started) / (at + 1) * (self.steps - at - 1)
        line = f"[train {self.what}] step {at + 1} of {self.steps}, loss {loss:.3f}, {left:.0f} s left"
        print(line, file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def versions() -> dict[str, str]:
    """Versions which the result depends on."""
    names = ("torch", "transformers", "tokenizers", "safetensors")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def build_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-fallback BPE tokenizer of exactly `vocab_size` tokens, laid out as Gemma's.

    Newlines stand alone and spaces are written as U+2581, the two rules which the engine's `gemma4` vocabulary applies;
    the 256 byte tokens let any text of a user through. Raises ValueError where the text has too few merges.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+|[^\n]+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    reserved = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=reserved, max_token_length=9, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"vocab_size: the text gives {tokenizer.get_vocab_size()} tokens instead of {vocab_size}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json with the special tokens named; byte tokens stay ordinary ones."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[BOS_ID],
        eos_token=SPECIAL_TOKENS[EOS_ID],
        unk_token=UNKNOWN,
        pad_token=SPECIAL_TOKENS[PAD_ID],
        mask_token=SPECIAL_TOKENS[4],
    )
    wrapped.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes a class that 4 does not have, and the converters of these builds were pinned to 4.57 or 5.5.
    config = {key: value for key, value in config.items() if key != "backend"} | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MODEL_MAX_LENGTH,
    }
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _text_config(spec: TargetSpec, **changes: Any) -> Gemma4TextConfig:
    values: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": 1,
        "head_dim": spec.head_dim,
        "global_head_dim": spec.global_head_dim,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": spec.vocab_size,
        "num_kv_shared_layers": 0,
        "max_position_embeddings": spec.max_positions,
        "sliding_window": spec.sliding_window,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }
    return Gemma4TextConfig(**(values | changes))


def new_target(spec: TargetSpec) -> Model:
    """An untrained target."""
    return Gemma4ForCausalLM(_text_config(spec))


def new_assistant(spec: AssistantSpec, target: TargetSpec) -> Model:
    """An untrained drafter: two layers without keys and values of their own, a sliding and a full one."""
    spec.check_against(target)
    text = _text_config(
        target,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=2,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=0,
        use_double_wide_mlp=False,
        layer_types=["sliding_attention", "full_attention"],
    )
    ordered = {
        "use_ordered_embeddings": True,
        "num_centroids": spec.centroids,
        "centroid_intermediate_top_k": spec.top_k,
    }
    config = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=target.hidden_size, **(ordered if spec.centroids else {})
    )
    return Gemma4AssistantForCausalLM(config)


def encode(tokenizer: Tokenizer, plan: TrainingPlan) -> list[Tensor]:
    """Training documents as token ids, each with <bos> first; those shorter than a training window are left out."""
    rows = [torch.tensor([BOS_ID, *tokenizer.encode(text).ids]) for text in documents(plan.documents, plan.seed)]
    need = plan.length + plan.unroll + 2
    return [row for row in rows if len(row) >= need]


def _batch(rows: Sequence[Tensor], plan: TrainingPlan, source: torch.Generator) -> Tensor:
    """(batch, length + unroll + 2) token ids: windows of documents whose first token is <bos>."""
    need = plan.length + plan.unroll + 2
    picked = []
    for index in torch.randint(len(rows), (plan.batch,), generator=source).tolist():
        row = rows[index]
        start = int(torch.randint(len(row) - need + 1, (1,), generator=source))
        window = row[start : start + need].clone()
        window[0] = BOS_ID
        picked.append(window)
    return torch.stack(picked)


def _optimise(optimizer: Any, loss: Tensor, parameters: Sequence[Tensor], rate: float, progress: float) -> None:
    """One step with clipped gradients and a rate that falls linearly to 1 % (`progress` 0..1)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * (1.0 - 0.99 * progress)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()


def train_target(spec: TargetSpec, plan: TrainingPlan, rows: Sequence[Tensor]) -> Trained:
    """Train a target on next tokens."""
    torch.manual_seed(plan.seed)
    source = torch.Generator().manual_seed(plan.seed)
    model = new_target(spec)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=plan.target_rate, weight_decay=0.01)
    progress, mean = _Progress("target", plan.target_steps), 0.0
    for step in range(plan.target_steps):
        ids = _batch(rows, plan, source)[:, : plan.length + 1]
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        _optimise(optimizer, loss, parameters, plan.target_rate, step / plan.target_steps)
        mean = loss.item() if not step else 0.95 * mean + 0.05 * loss.item()
        progress.step(step, mean)
    model.eval()
    return Trained(model, mean, progress.seconds)


def cluster_tokens(embedding: Tensor, clusters: int) -> Tensor:
    """Token ids ordered so that slice i of `vocabulary / clusters` ids is cluster i.

    `embedding` is (vocabulary, width). Splits the rows at the median along their main direction until the slices have
    the wanted size; `clusters` is a power of two. Clusters of one size are what the architecture's ordering needs.
    """
    order = torch.arange(len(embedding))
    size = len(embedding)
    while size > len(embedding) // clusters:
        pieces = []
        for piece in order.split(size):
            centred = embedding[piece] - embedding[piece].mean(0)
            direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
            pieces.append(piece[torch.argsort(centred @ direction, stable=True)])
        order, size = torch.cat(pieces), size // 2
    return order


@dataclass(frozen=True)
class _Round:
    """Inputs of drafting rounds that start at `positions` (batch, m): states, keys and values, masks by layer type."""

    ids: Tensor
    positions: Tensor
    hidden: Tensor
    shared: Any
    masks: dict[str, Tensor]
    logits: Tensor


def _rounds(target: Model, ids: Tensor, positions: Tensor) -> _Round:
    """What the target hands over when p = `positions` is the last verified position before the newest token."""
    with torch.no_grad():
        out = target.model(input_ids=ids, use_cache=False, return_shared_kv_states=True)
        logits = target.lm_head(out.last_hidden_state).float()
    keys = torch.arange(ids.shape[1])
    near = positions[..., None] + 1 - keys < target.config.sliding_window
    seen = keys <= positions[..., None]
    masks = {}
    for name, allowed in (("full_attention", seen), ("sliding_attention", seen & near)):
        masks[name] = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)[:, None]
    hidden = torch.gather(
        out.last_hidden_state, 1, positions[..., None].expand(-1, -1, out.last_hidden_state.shape[-1])
    )
    return _Round(ids, positions, hidden, out.shared_kv_states, masks, logits)


def _draft_step(
    assistant: Model, target: Model, rounds: _Round, tokens: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """(last hidden state of the drafter, state for its next step); `tokens` (batch, m) are the newest ones."""
    embedded = target.get_input_embeddings()(tokens)
    out = assistant.model(
        inputs_embeds=assistant.pre_projection(torch.cat([embedded, hidden], -1)),
        attention_mask=rounds.masks,
        position_ids=rounds.positions + 1,
        shared_kv_states=rounds.shared,
        use_cache=False,
        # Without this transformers keeps the last position alone, since nothing here writes a cache.
        output_hidden_states=True,
    )
    return out.last_hidden_state, assistant.post_projection(out.last_hidden_state)


def _pick(ids: Tensor, positions: Tensor) -> Tensor:
    return torch.gather(ids, 1, positions)


def train_assistant(
    spec: AssistantSpec, plan: TrainingPlan, target: Trained, shape: TargetSpec, rows: Sequence[Tensor]
) -> Trained:
    """Distil the target's distribution over the next `plan.unroll` tokens into a drafter."""
    torch.manual_seed(plan.seed + 1)
    source = torch.Generator().manual_seed(plan.seed + 1)
    teacher = target.model.requires_grad_(False)
    model = new_assistant(spec, shape)
    parameters = list(model.parameters())
    cluster_of = _prepare_centroids(model, spec, teacher) if spec.centroids else None
    optimizer = torch.optim.AdamW(parameters, lr=plan.assistant_rate, weight_decay=0.01)
    progress, mean = _Progress("centroids" if spec.centroids else "dense", plan.assistant_steps), 0.0
    for step in range(plan.assistant_steps):
        ids = _batch(rows, plan, source)
        positions = torch.randint(4, plan.length - 1, (plan.batch, plan.positions), generator=source)
        rounds = _rounds(teacher, ids, positions)
        loss, hidden = torch.zeros(()), rounds.hidden
        for k in range(plan.unroll):
            state, hidden = _draft_step(model, teacher, rounds, _pick(ids, positions + 1 + k), hidden)
            goal = torch.gather(
                rounds.logits, 1, (positions + 1 + k)[..., None].expand(-1, -1, rounds.logits.shape[-1])
            ).softmax(-1)
            loss = loss - (goal * model.lm_head(state).log_softmax(-1)).sum(-1).mean() / plan.unroll
            if cluster_of is not None:
                clusters = torch.zeros(*goal.shape[:-1], spec.centroids).index_add_(-1, cluster_of, goal)
                scores = model.masked_embedding.centroids(state).log_softmax(-1)
                loss = loss - (clusters * scores).sum(-1).mean() / plan.unroll
        _optimise(optimizer, loss, parameters, plan.assistant_rate, step / plan.assistant_steps)
        mean = loss.item() if not step else 0.95 * mean + 0.05 * loss.item()
        progress.step(step, mean)
    model.eval()
    return Trained(model, mean, progress.seconds, agreement(model, teacher, plan, rows))


def _prepare_centroids(model: Model, spec: AssistantSpec, teacher: Model) -> Tensor:
    """Set the token ordering from the target's embeddings; the result gives each token's cluster."""
    order = cluster_tokens(teacher.get_input_embeddings().weight.detach(), spec.centroids)
    model.masked_embedding.token_ordering.copy_(order)
    cluster_of = torch.empty_like(order)
    cluster_of[order] = torch.arange(len(order)) // (len(order) // spec.centroids)
    return cluster_of


def agreement(model: Model, teacher: Model, plan: TrainingPlan, rows: Sequence[Tensor]) -> tuple[float, ...]:
    """Share of positions, by drafted token, at which the drafter's own head names the target's greedy choice.

    Only positions whose earlier drafted tokens were right count for the later ones, as in a verification.
    """
    source = torch.Generator().manual_seed(plan.seed + 2)
    ids = torch.cat([_batch(rows, plan, source) for _ in range(4)])
    positions = torch.arange(4, plan.length - 1, 3).expand(len(ids), -1)
    rounds = _rounds(teacher, ids, positions)
    choice = rounds.logits.argmax(-1)
    alive = torch.ones_like(positions, dtype=torch.bool)
    shares, hidden = [], rounds.hidden
    with torch.no_grad():
        for k in range(plan.unroll):
            # A later drafted token is fed the text's own token; it counts only where the target would have chosen it.
            alive = alive & (_pick(choice, positions + k) == _pick(ids, positions + 1 + k))
            state, hidden = _draft_step(model, teacher, rounds, _pick(ids, positions + 1 + k), hidden)
            head = model.masked_embedding
            logits = head(state, model.lm_head.weight) if head is not None else model.lm_head(state)
            right = logits.argmax(-1) == _pick(choice, positions + 1 + k)
            shares.append(float(right[alive].float().mean()))
            alive = alive & right
    return tuple(shares)


def greedy_text(model: Model, tokenizer: Tokenizer, prompt: str, tokens: int) -> str:
    """The target's greedy continuation of `prompt` (for the card and for a look)."""
    ids = [BOS_ID, *tokenizer.encode(prompt).ids]
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return str(tokenizer.decode(ids[-tokens:]))


def save_weights(model: Model, folder: Path) -> None:
    """config.json and weights as safetensors in bfloat16 (the official precision); `model` is rounded to it.

    A target is saved as the class that the official ones have, without vision and audio: older converters know
    `Gemma4ForConditionalGeneration` only, and it is the drafter they are to be tested with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16)
    whole = _with_official_class(model) if isinstance(model, Gemma4ForCausalLM) else model
    whole.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
    write_official_head_dim(folder / "config.json")
    model.to(torch.float32)


def _with_official_class(model: Model) -> Model:
    config = Gemma4Config(
        text_config=model.config,
        vision_config=None,
        audio_config=None,
        **dict.fromkeys(("boi_token_id", "eoi_token_id", "image_token_id", "video_token_id")),
        **dict.fromkeys(("boa_token_id", "eoa_token_index", "audio_token_id")),
    )
    config.dtype = torch.bfloat16
    whole = Gemma4ForConditionalGeneration(config).to(torch.bfloat16)
    whole.model.language_model.load_state_dict(model.model.state_dict())
    return whole


def write_official_head_dim(path: Path) -> None:
    """Put `global_head_dim` into a config.json, as the published checkpoints have it.

    transformers 5.24 writes `per_layer_config` instead, and nothing where both widths are equal; converters up to
    b9538 then stop at KeyError: 'global_head_dim', and that of b11434 at a bare AssertionError.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config["text_config"]
    full = text["layer_types"].index("full_attention")
    text["global_head_dim"] = text.pop("per_layer_config", {}).get(str(full), {}).get("head_dim", text["head_dim"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def save_model(model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    """A whole checkpoint: weights, config and tokenizer; no other file."""
    save_weights(model, folder)
    save_tokenizer(tokenizer, folder)


def parameters_of(model: Model) -> int:
    """Number of weights (tied ones once)."""
    return sum(int(p.numel()) for p in model.parameters())


def shape_of(spec: TargetSpec | AssistantSpec) -> dict[str, int]:
    """A specification as JSON values."""
    return dict(asdict(spec))
