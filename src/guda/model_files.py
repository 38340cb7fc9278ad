"""What is read of a model folder that somebody else made: data, never code.

A folder in the diffusers or transformers layout can name classes, modules, other repositories and pickled weights. All
of it is looked at here before a library loads anything:

    weights    safetensors alone; pickled files (.bin, .pt, .ckpt) beside them are never opened
    configs    JSON within limits, without a setting that makes a library import, download or run something
    names      classes of diffusers, transformers and guda, which each reader then compares with its own list
    files      regular files; links are followed, to regular files as well

A Hub id is downloaded first, only the kinds of files that are read, and then is such a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from guda.errors import GudaError
from guda.parsing import ParseError, check_regular, parse_json, read_text

NOT_A_MODEL = ("model-missing", "model-hub-error", "model-folder-invalid", "model-config-unreadable")  # nothing there

CONFIG_BYTES = 16 * 2**20  # of a config; tokenizers have larger files, which are vocabularies

PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")  # what is downloaded: configs, weights, vocabularies

VOCABULARIES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")

# settings that make transformers or diffusers import a module, fetch a repository, or unpickle
EXECUTING = ("auto_map", "custom_pipelines", "custom_pipeline", "custom_generate", "trust_remote_code")

ATTENTION = (None, "eager", "sdpa")  # others are packages, or kernels that are fetched from the Hub

LIBRARIES = ("diffusers", "transformers", "guda", "stable_diffusion", None)  # [module, class] of model_index.json


def find_model(name: str, patterns: Iterable[str] = PATTERNS, ignore: Sequence[str] = ()) -> Path:
    """The folder itself, or that of a Hub id, of which only `patterns` are downloaded."""
    folder = Path(name).expanduser()
    if os.path.isdir(folder):  # false, and no error, of a name that is too long
        return folder
    if os.path.exists(folder):
        raise GudaError("model-folder-invalid", f"{folder} is a file; give a model folder")
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise GudaError("model-missing", f"model {name!r}: no such folder, and not a Hub id (owner/name)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=list(ignore)))
    except Exception as e:  # offline, missing, gated: huggingface_hub has a class for each
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise GudaError("model-hub-error", f"model {name!r}: no such folder, and the Hub says: {reason}") from e


def read_model_config(path: Path) -> dict[str, Any]:
    """A JSON file of a model folder; refused if it would run code."""
    value = _read(path)
    if not isinstance(value, dict):
        raise GudaError("model-config-unreadable", f"{path} cannot be read: expected an object, {{...}}")
    _check_settings(path, value)
    return value


def _read(path: Path) -> Any:
    try:
        return parse_json(read_text(path, CONFIG_BYTES))
    except (OSError, ParseError, UnicodeDecodeError) as e:
        raise GudaError("model-config-unreadable", f"{path} cannot be read: {e}") from None


def _check_settings(path: Path, value: Any) -> None:
    for key, setting in _settings(value):
        if key in EXECUTING and setting:
            raise GudaError(
                "model-code-refused", f"{path} has {key!r}, which runs code of the model's author; guda loads data only"
            )
        if key in ("attn_implementation", "_attn_implementation") and setting not in ATTENTION:
            raise GudaError(
                "model-code-refused", f"{path} has {key} {setting!r}, a kernel to be fetched; write sdpa or eager there"
            )
        if key == "quantization_config" and setting:
            raise GudaError(
                "model-quantized", f"{path}: quantised weights are not supported; get the model in full precision"
            )


def check_part(folder: Path) -> None:
    """Refuse a folder of one network, tokenizer or processor that would do more than be read."""
    if not folder.is_dir():
        raise GudaError("model-folder-invalid", f"{folder} is not a folder; get the whole model again")
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):  # which no library reads
        if path.suffix in (".json", ".safetensors", ".txt", ".model"):
            _check_file(path)
        if path.name.endswith(".index.json"):
            _check_shards(path)
        elif path.suffix == ".json" and path.name not in VOCABULARIES:
            _check_settings(path, _read(path))
    if (folder / "adapter_config.json").exists():
        raise GudaError(
            "model-adapter-refused", f"{folder} is an adapter of another model, which would be fetched; merge it first"
        )


def check_index(folder: Path, index: dict[str, Any]) -> None:
    """Refuse a model_index.json that names a module beside it, or one that is not a model library."""
    for part, value in index.items():
        if isinstance(value, list) and (len(value) != 2 or value[0] not in LIBRARIES):
            raise GudaError(
                "model-class-not-allowed",
                f"{folder}/model_index.json: {part} is of {value[0] if value else None!r}; guda reads classes of "
                "diffusers and transformers, no code of the model's author",
            )


def weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise GudaError(
            "weights-not-safetensors",
            f"{folder} holds no .safetensors weights (pickled .bin files are not read); re-save it",
        )
    return files


def check_type(folder: Path, allowed: Sequence[str], what: str) -> str:
    """`model_type` of a transformers folder, if it is one of `allowed`."""
    check_part(folder)
    found = read_model_config(folder / "config.json").get("model_type")
    if found not in allowed:
        raise GudaError(
            "model-class-not-allowed", f"{folder} is a {found!r} model; as {what} guda reads {', '.join(allowed)}"
        )
    return str(found)


def _check_file(path: Path) -> None:
    try:
        check_regular(path)
    except OSError as e:  # a broken link, a folder
        raise GudaError("model-config-unreadable", f"{path} cannot be read: {e}") from None


def _check_shards(path: Path) -> None:
    """An index may send a library to any file; it may name safetensors beside it."""
    shards = read_model_config(path).get("weight_map")
    for name in set(shards.values()) if isinstance(shards, dict) else ():
        if not isinstance(name, str) or not name.endswith(".safetensors") or PurePath(name).name != name:
            if path.name.endswith(".bin.index.json"):
                continue  # of pickled weights, which are not read
            raise GudaError(
                "weights-not-safetensors", f"{path} sends to {name!r}; weights are .safetensors files beside it"
            )


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, sub in value.items():
            yield key, sub
            yield from _settings(sub)
    elif isinstance(value, list):
        for sub in value:
            yield from _settings(sub)
