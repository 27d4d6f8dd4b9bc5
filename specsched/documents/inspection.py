"""What `inspect --json` prints of a profile, a trace, a calibration, acceptance rates or a drafter."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from .shared import Interval, Loose, Warnings

Findings = Annotated[list[str], "what deserves a look"]


class CliffRow(TypedDict):
    """A jump of the cost between neighbouring sizes."""

    before: Annotated[int, "tokens"]
    after: Annotated[int, "tokens"]
    ratio: Annotated[float, "cost after / cost before"]
    kind: str


class DraftShare(TypedDict):
    """Share of a step spent drafting, at whole blocks and 1,024 tokens of context a request."""

    requests: int
    share: float


class ProfileInspection(TypedDict):
    """What a step profile holds."""

    kind: Literal["profile"]
    name: str
    gpu: str | None
    gpus: int
    model: str | None
    method: str | None
    source: str | None
    licence: str | None
    points: int
    tokens: Annotated[list[int], "[first, last] of the table"]
    lookup: str
    decides_by: Annotated[str | None, "the scheduler's own table; null: the costs"]
    capture_limit: int | None
    captured_sizes: int
    first_pass_seconds: float
    knee_tokens: int | None
    cliffs: list[CliffRow]
    draft_share: list[DraftShare]
    kv_capacity_tokens: Annotated[int | None, "without a drafter"]
    kv_capacity_drafting: Annotated[int | None, "beside the drafter's weights and KV, as far as known"]
    drafter_memory_known: bool
    fit: Loose | None
    warnings: Warnings
    lint: Findings


class Lengths(TypedDict):
    """Of the requests, in tokens."""

    min: int
    median: float
    mean: float
    max: int


class PositionRow(TypedDict):
    """One position of the block."""

    position: int
    accepted_share: float
    ece: Annotated[float, "expected calibration error of the raw survival"]
    noise_floor: Annotated[float, "the ECE that perfect calibration would show here"]
    auc: Annotated[float | None, "null: only one outcome occurs"]
    brier: float


class TraceInspection(TypedDict):
    """What a trace holds."""

    kind: Literal["trace"]
    name: str
    mode: Literal["dense", "sequential"]
    block_size: int
    rows: int
    requests: int
    drafter: str | None
    target: str | None
    temperature: float | None
    licence: str | None
    synthetic: bool
    confidence_sees_token: bool
    output_tokens: Lengths
    prompt_tokens: Lengths
    arrivals: bool
    domains: Annotated[dict[str, int], "requests of each"]
    emitted_per_anchor: float
    emitted_per_step: Annotated[float, "along a decoder's way"]
    conditional_acceptance: Annotated[list[float | None], "P(k accepted | all before it accepted)"]
    positions: list[PositionRow]
    warnings: Warnings
    lint: Findings


class CalibrationInspection(TypedDict):
    """What a calibration holds."""

    kind: Literal["calibration"]
    name: str
    method: str
    block_size: int
    temperatures: list[float]
    shifts: list[float]
    about: Loose
    fit_requests: int
    held_out_requests: int
    report: Annotated[dict[str, Any], "as the file has it: ECE, AUC and Brier score before and after"]
    warnings: Warnings
    lint: Findings


class AcceptanceInspection(TypedDict):
    """What acceptance rates hold, ours or another tool's counters."""

    kind: Literal["acceptance"]
    name: str
    file: str
    format: str
    block_size: int
    conditional: Annotated[list[float], "P(k accepted | all before it accepted)"]
    survival: Annotated[list[float], "P(the first k accepted)"]
    mean_length: Annotated[float, "tokens a step, the bonus included"]
    steps: Annotated[int, "draft blocks"]
    censored: bool
    source: str
    notes: list[str]
    tried: NotRequired[Annotated[list[float], "blocks in which each position was tried"]]
    intervals: NotRequired[Annotated[list[Interval], "of the conditional rates"]]
    warnings: Warnings
    lint: Findings


class RunRow(TypedDict):
    """One run of a benchmark client at one load."""

    source: str
    arm: str | None
    policy: Annotated[str | None, "null: nobody said"]
    users: int | None
    user: Annotated[float | None, "tokens/s of one user, 1 / median time per token"]
    total: Annotated[float | None, "output tokens/s of all users"]
    prompt_tokens: int | None
    output_tokens: int | None
    prompts: int | None
    accept_length: Annotated[float | None, "tokens a step, the bonus included"]


class BenchmarkInspection(TypedDict):
    """What a result of a benchmark client holds."""

    kind: Literal["benchmark"]
    name: str
    file: str
    tool: str
    runs: list[RunRow]
    warnings: Warnings
    lint: Findings


class DrafterInspection(TypedDict):
    """What a drafter's folder holds."""

    kind: Literal["drafter"]
    name: str
    folder: str
    drafter: Annotated[str, "dspark, dflash or eagle3"]
    layout: Annotated[str, "whose layout the files have"]
    block_size: Annotated[int, "drafts a step"]
    hidden_size: int
    vocab_size: int
    draft_vocab_size: Annotated[int | None, "tokens it may draft; null: all"]
    layers: int
    target_layers: Annotated[int | None, "of the target it was trained on; null: not said"]
    features: Annotated[list[int] | None, "layers of the target whose outputs it reads; null: default ones"]
    confidence_head: bool
    markov_head: str
    norms: Annotated[list[str], "what is normed otherwise than in DeepSpec's"]
    rope_scaled: bool
    holds: Annotated[list[str], "embedding, LM head: its own, or a copy of the target's"]
    parameters: Annotated[int, "in the files"]
    dtypes: list[str]
    file_bytes: int
    warnings: Warnings
    lint: Findings


Inspection = (
    ProfileInspection | TraceInspection | CalibrationInspection | AcceptanceInspection | DrafterInspection
)
