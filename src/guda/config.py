"""The sections of a recipe as frozen configs. A field's description is its documentation and the help of its option."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from guda import parsing
from guda.errors import GudaError

LARGEST = 10**9  # of a setting; nothing that is counted in memory or steps is sensibly larger

SEED = 2**63 - 1  # the largest seed


class Config(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    # Field -> values with which it is not written: what was stored or named before the field existed stays valid.
    omitted: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and _allows(cls.model_fields[str(info.field_name)].annotation, int, float):
            raise ValueError("expected a number, not true or false")  # which Python would take for 1 and 0
        return value

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value not in self.omitted.get(key, ())}


def _allows(annotation: Any, *kinds: type) -> bool:
    """Whether a field takes numbers of these kinds, but no truth values."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return bool not in members and any(kind in members for kind in kinds)


class PartitionConfig(Config):
    fraction: float = Field(
        0.05, gt=0, lt=1, description="Share of the smallest group's images; this many leave and join every group."
    )
    seed: int = Field(42, ge=0, description="Seed of which images move and where to.")


class DataConfig(Config):
    omitted = {"options": ({},), "skip_bad": (None, False)}

    source: str = Field(description="A known source (digits) or an image folder, whose sub-folders are the groups.")
    size: int | None = Field(
        None, gt=0, le=16384, description="Resize the shorter side to this and centre-crop to a square."
    )
    group_by: str | None = Field(
        None,
        description="Folder level (level:1 is the first) or a column of metadata.jsonl / metadata.csv; several levels, "
        "top down and separated by slashes, make a tree. A list in metadata.jsonl puts an image into several groups.",
    )
    content_by: str | None = Field(
        None, description="What each image shows, for prompts: a folder level (level:2) or a metadata column."
    )
    groups: tuple[str, ...] | None = Field(None, min_length=2, description="Keep only these groups; default: all.")
    mode: Literal["L", "RGB"] | None = Field(None, description="Force greyscale or colour; default: as the images are.")
    split: Literal["train", "test"] | None = Field(
        None, description="Split of a published data set that has splits (cifar10); default: train."
    )
    variants: int | None = Field(
        None, gt=0, description="Images per object, for sources that draw them (fonts); default: the source's."
    )
    skip_bad: bool | None = Field(
        None, description="Leave out files that cannot be read; the run records which. Default: refuse them."
    )
    options: dict[str, Any] = Field({}, description="Further options of the source: the parameters of its function.")
    limit_per_group: int | None = Field(
        None, gt=0, description="Keep at most this many images of each group; of a tree, of each leaf."
    )
    limit_contents: int | None = Field(
        None, gt=0, description="Keep only this many contents (objects), the same in every group."
    )
    partition: PartitionConfig | None = Field(
        None, description="A noisy partition: some images of every group are labelled as other groups. Default: none."
    )


class PromptsConfig(Config):
    source: Literal["file", "similarity", "vlm"] = Field(
        "similarity",
        description="Where style descriptors come from: ready lists, words picked by similarity, or a VLM.",
    )
    path: str | None = Field(
        None,
        description="file: the lists (json, yaml, jsonl). similarity: words to pick from, one per line; optional.",
    )
    lists: dict[str, tuple[str, ...]] | None = Field(
        None, description="file: the descriptors of every style, given here instead of in a file."
    )
    encoder: str | None = Field(
        None, description="similarity: `statistics` of the pixels (default) or `clip:NAME_OR_PATH`."
    )
    model: str | None = Field(None, description="vlm: name or folder; default Qwen/Qwen2.5-VL-7B-Instruct.")
    images_per_style: int = Field(50, gt=0, description="Images of each style that are described.")
    words_per_image: int = Field(5, gt=0, description="similarity, vlm: descriptors of one image.")
    alpha: float = Field(0.5, ge=0, le=1, description="Penalty for sharing: score = freq / support^alpha.")
    min_freq: int = Field(2, gt=0, description="Images from which a style counts as support of a descriptor.")
    max_support: int = Field(20, gt=0, description="Descriptors of more styles than this are dropped.")
    vocabulary: int = Field(5, gt=0, description="Descriptors a style keeps.")
    per_prompt: int = Field(3, gt=0, description="Descriptors in one prompt.")
    seed: int = Field(0, ge=0, description="Seed of the described images, templates and descriptors.")

    @model_validator(mode="after")
    def _together(self) -> PromptsConfig:
        if self.source == "file" and (self.path is None) == (self.lists is None):
            raise ValueError(
                "source `file` needs path (a .json, .yaml or .jsonl with every style's descriptors) or lists"
            )
        if self.source != "file" and self.lists is not None:
            raise ValueError(f"lists belong to source `file`, the source is `{self.source}`")
        for field, owner in (("encoder", "similarity"), ("model", "vlm")):
            if getattr(self, field) is not None and self.source != owner:
                raise ValueError(f"{field} belongs to source `{owner}`, the source is `{self.source}`")
        if self.source == "vlm" and self.path is not None:
            raise ValueError("path belongs to sources `file` and `similarity`, the source is `vlm`")
        if self.per_prompt > self.vocabulary:
            raise ValueError(f"per_prompt ({self.per_prompt}) is more than vocabulary ({self.vocabulary})")
        return self


class ModelConfig(Config):
    omitted = {"size": (None,), "guidance": (None,)}

    path: str | None = Field(None, description="A trained diffusers model (folder or Hub id); none: `guda train`.")
    scheduler: str | None = Field(
        None,
        description="Noise schedule: KIND:STEPS[:PREDICTION] or a folder; needed unless `path` brings its own.",
    )
    lora: str | None = Field(
        None,
        description="A diffusers LoRA file (.safetensors). With `path`, base and LoRA are the model: only the LoRA is "
        "unlearned, retrained and stored. With `start`, it is added to the weights before fine-tuning.",
    )
    size: int | None = Field(
        None, gt=0, le=2**16, description="Pixels of a picture, for networks that take any size (FLUX: 1024)."
    )
    guidance: float | None = Field(
        None,
        ge=0,
        description="Guidance input of a guidance-distilled network (FLUX.1-dev) in scoring and training; "
        "default: 1, the plain conditional prediction.",
    )
    start: str | None = Field(
        None, description="A pretrained model (folder or Hub id) that the full and LOGO models are fine-tuned from."
    )
    net: str = Field(
        "unet2d",
        description="Family of the network to train when there is neither `path` nor `start`: unet2d, mlp, "
        "unet2d-condition, or one of an installed package.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Constructor arguments of that network.")
    text: Literal["minilm"] | None = Field(None, description="Text encoder of a unet2d-condition network.")
    text_length: int = Field(32, gt=0, le=2**16, description="Tokens of a prompt that this network receives.")
    patch: int = Field(
        1, gt=0, le=1024, description="A unet2d-condition network sees patches of this many pixels as channels."
    )

    @property
    def fine_tuned(self) -> bool:
        """Whether trainings begin from a pretrained model: `start`, or the base of a LoRA."""
        return self.start is not None or self.lora is not None


class TrainingConfig(Config):
    omitted = {"checkpointing": (False,), "optimizer": ("adamw",)}

    steps: int = Field(gt=0, description="Optimiser steps.")
    batch: int = Field(128, gt=0, le=2**20, description="Images per step, over all pieces and processes.")
    accumulate: int = Field(
        1, gt=0, description="Pieces a batch is cut into, one network call each: less memory, the same step."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Autocast of the network on a GPU; weights and EMA stay fp32, and a CPU always computes in fp32.",
    )
    lora: int | None = Field(
        None, gt=0, description="Fine-tune adapters of this rank only; the published weights have them merged in."
    )
    checkpointing: bool = Field(
        False,
        description="Compute activations again in the backward pass in place of keeping them: less memory, a forward "
        "pass more, the same step.",
    )
    optimizer: Literal["adamw", "adamw8bit"] = Field(
        "adamw", description="adamw8bit keeps the moments in 8 bits (needs the package bitsandbytes, and a GPU)."
    )
    lr: float = Field(1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    warmup: int = Field(100, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="Learning rate after the warm-up.")
    clip: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")
    ema: float | None = Field(0.9999, gt=0, lt=1, description="EMA decay of the scored weights; null scores raw ones.")
    flips: bool = Field(False, description="Random horizontal flips.")
    prompt_dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of images trained with the empty prompt, which guidance needs."
    )
    exposure_matched: bool | None = Field(
        None,
        description="Each epoch of the full model leaves out one group in turn, as LOGO always leaves out its own. "
        "Default: true from scratch, false with model.start (fine-tuning takes equal steps on all data).",
    )
    seed: int = Field(0, ge=0, description="Seed of the full model.")
    checkpoint_every: int = Field(500, gt=0, description="Steps between checkpoints; resume is exact.")

    @model_validator(mode="after")
    def _pieces(self) -> TrainingConfig:
        if self.accumulate > self.batch:
            raise ValueError(
                f"accumulate ({self.accumulate}) cuts a batch of {self.batch} into more pieces than images"
            )
        return self

    def matched(self, fine_tune: bool) -> bool:
        """Whether exposure is matched, where the recipe leaves it open too."""
        return not fine_tune if self.exposure_matched is None else self.exposure_matched


class QueriesConfig(Config):
    n: int = Field(
        200, gt=0, le=10**7, description="Samples to draw from the full model; text-to-image: see `objects`."
    )
    seed: int = Field(0, ge=0, description="Seed of the samples; text-to-image: every picture starts from it.")
    steps: int | None = Field(
        None, gt=0, le=10**6, description="Sampler steps; default: the schedule's own number, text-to-image 50."
    )
    objects: int | None = Field(
        None, gt=0, description="Text-to-image: draw this many objects in every style; default: all objects."
    )
    guidance: float = Field(7.5, ge=0, description="Text-to-image: classifier-free guidance; scoring uses none.")


class ScoringConfig(Config):
    estimand: Literal["elbo", "path", "paper"] = Field(
        "elbo",
        description="elbo: ELBO difference, unbiased for the sum over 1..t_max; path: path divergence, the same sum "
        "without its cross term; paper: the raw sum of ELBO differences over the paper's grid.",
    )
    excess: bool = Field(
        False,
        description="Score against the average of the run's own samples: path as a log ratio, elbo as a difference.",
    )
    stride: int = Field(10, gt=0, description="Grid spacing of `paper`.")
    plan: Literal["importance", "stratified", "uniform"] = Field(
        "importance", description="How timesteps are drawn: by a pilot, by the KL weights, or evenly; all are unbiased."
    )
    antithetic: bool = Field(True, description="Draw noise in pairs +eps, -eps, whose mean is one draw.")
    strata: int = Field(
        12, gt=0, le=100_000, description="Strata that partition 1..t_max; each gets one draw per round."
    )
    rounds: int = Field(3, gt=0, le=100_000, description="Independent rounds; at least 2 are needed for an error bar.")
    seed: int = Field(0, ge=0, description="Seed of the scoring noise.")
    block: int = Field(256, gt=0, le=2**16, description="Images per network call (short blocks are padded).")
    shard: int = Field(32, gt=0, description="Queries per task; belongs to the run, not to the machine.")
    groups: tuple[str, ...] | None = Field(
        None,
        min_length=2,
        description="Fit and score only these groups; training keeps all. Default: every group; in a tree, the leaves.",
    )
    drift: Literal["keep", "subtract"] = Field(
        "keep",
        description="`subtract` removes the average effect on *other* groups' images from every unlearned score.",
    )
    foreign: Literal["refuse", "accept", "skip"] = Field(
        "refuse",
        description="Pictures that the model does not make: refuse to name a group, accept them all the same (recorded "
        "in the scores), or skip the question.",
    )
    reference: int = Field(20, ge=2, description="Training images per group on which health and drift are measured.")


class LikelihoodConfig(Config):
    solver: Literal["heun", "rk4", "adaptive"] = Field(
        "heun", description="heun, rk4: a grid in log SNR that all models share; adaptive: dopri5, picture by picture."
    )
    steps: int = Field(
        100, gt=0, le=10**6, description="Steps of heun (2 evaluations each) or rk4 (4), from t = 0 to t_max."
    )
    tolerance: float = Field(1e-5, gt=0, lt=1, description="rtol and atol of the adaptive solver.")
    probes: Literal["fresh", "fixed"] = Field(
        "fresh",
        description="fresh: another Rademacher probe at every evaluation of a grid, which averages its noise; "
        "fixed: one for the whole path. The adaptive solver needs a smooth path and keeps one.",
    )
    seeds: int = Field(
        2, gt=0, le=10_000, description="Seeds of the probes, 0, 1, ...; log p is the mean, its error their spread."
    )
    n: int = Field(100, ge=2, description="Queries: the first n by id; all where there are fewer.")
    block: int = Field(
        50, gt=0, le=2**16, description="Queries per task and per network call (short blocks are padded)."
    )


class EvaluationConfig(Config):
    against: str = Field("logo", description="The method that is the oracle.")
    reference: str | None = Field(None, description="The paired difference of every method to this one is reported.")
    resamples: int = Field(2000, gt=0, le=10**6, description="Bootstrap resamples over queries.")
    seed: int = Field(0, ge=0, description="Seed of the bootstrap.")
    placebos: int = Field(
        0, ge=0, le=10_000, description="Random placebo groups that every operator also unlearns, as a null reference."
    )
    health: bool = Field(False, description="Also measure leakage and drift of every method.")
    calibration: int = Field(
        0,
        ge=0,
        le=10**6,
        description="Pictures of their own on which the demo calibrates answer sets against retraining; 0: no.",
    )


def check_numbers(value: Any, where: str) -> None:
    """Refuse NaN, infinity and absurdly large whole numbers anywhere among nested settings, free-form ones included."""
    for name in parsing.not_finite(value):
        raise GudaError(
            "setting-not-finite", f"{where}: {name or 'the value'} is not a finite number; write a number, or remove it"
        )
    for name, number in parsing.whole_numbers(value):
        limit = SEED if "seed" in name else LARGEST
        if abs(number) > limit:
            digits = f"{number:.1e}" if abs(number) < 10**300 else "a number of hundreds of digits"
            raise GudaError("setting-too-large", f"{where}: {name or 'the value'} is {digits}; at most {limit:,}")


def complaint(error: ValidationError, whole: str = "") -> tuple[bool, str]:
    """Whether a key is unknown, and what is wrong with which field. An unknown key comes first: where one is
    misspelt, another seems to be missing."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    unknown = first["type"] == "extra_forbidden"
    plain = {"extra_forbidden": "there is no such setting", "tuple_type": "give a list in square brackets"}
    text = plain.get(first["type"], first["msg"].removeprefix("Value error, "))
    field = ".".join(map(str, first["loc"])) or whole  # none: of several fields together
    return unknown, f"{field}: {text}" if field else text


def parse_config(cls: type[Config], value: dict[str, Any], where: str) -> Any:
    """Validate one method's settings; the error names the field."""
    check_numbers(value, where)
    try:
        return cls.model_validate(value)
    except ValidationError as e:
        unknown, text = complaint(e)
        known = ", ".join(cls.model_fields)
        raise GudaError(
            "setting-unknown" if unknown else "setting-invalid", f"{where}: {text} (settings: {known})"
        ) from None


def read_config(cls: type[Config], path: Path, what: str) -> Any:
    """Read a YAML file into a config; `what` names the file in error messages."""
    try:
        return cls.model_validate(parsing.read_yaml(path))
    except OSError:
        raise GudaError("config-unreadable", f"{what} {path} does not exist or cannot be read") from None
    except parsing.ParseError as e:
        raise GudaError("config-not-yaml", f"{what} {path} is not valid YAML: {e}") from None
    except ValidationError as e:
        unknown, text = complaint(e, "the file")
        raise GudaError("config-unknown-key" if unknown else "config-invalid-value", f"{what} {path}: {text}") from None
