"""An exported folder to the Hugging Face Hub, by its own client; a failure is one line, without the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json

PURPOSE = "vaak publish requires huggingface_hub"
NAMES_BASE = ("adapter_config.json", "mixture.json")
"""Files that may name a base by a folder of this machine."""


EXPORTED_FILES = ("config.json", "adapter_config.json", "mixture.json", "*.onnx", "*.gguf")
"""Files of exports, besides the card; a folder of any format has one of them."""


def is_exported(folder: Path) -> bool:
    """Return whether ``vaak export`` wrote a folder: it isn't a run, and has a card and a model."""
    is_run = (folder / "config.yml").exists()
    return not is_run and (folder / "README.md").is_file() and any(any(folder.glob(name)) for name in EXPORTED_FILES)


def require_name(name: str) -> None:
    """Raise UserError for an invalid name of a repository."""
    with optional_import(PURPOSE, "hf"):
        from huggingface_hub import errors, utils
    check: Any = utils
    try:
        check.validate_repo_id(name)
    except errors.HFValidationError as error:
        raise UserError(f"{name} can't be the name of a repository: {_first_line(error)}") from error


def list_files(folder: Path) -> dict[str, int]:
    """Return the files that are sent of a folder, with their bytes.

    Raises UserError if one names a base by a folder of this machine, which nobody else could load.
    """
    for name in NAMES_BASE:
        file = folder / name
        about = read_json(file) if file.is_file() else {}
        base = about.get("base_model_name_or_path") or about.get("base")
        if isinstance(base, str) and Path(base).is_absolute():
            raise UserError(
                f"{name} names its base by a folder of this machine ({base}), which others don't have: publish "
                "--format hf, or train on a base of the Hub"
            )
    found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return dict(sorted(found.items()))


def send(folder: Path, name: str, *, public: bool = False, update: bool = False) -> str:
    """Create the repository ``name``, unless it is there and may be ``update``d; add the folder to it; return its URL.

    The token is the environment's (HF_TOKEN), or the one that ``hf auth login`` stored. Raises UserError without one,
    where it isn't accepted or has no right to do so, where the name is taken, and if the Hub can't be reached.
    """
    with optional_import(PURPOSE, "hf"):
        import huggingface_hub
    token = huggingface_hub.get_token()
    if token is None:
        raise UserError("no token of the Hugging Face Hub: run hf auth login, or set HF_TOKEN to one that may write")
    api: Any = huggingface_hub.HfApi(token=token)
    logging: Any = huggingface_hub.utils
    logging.disable_progress_bars()
    # Without exist_ok, a name that is taken fails here, before a file of somebody else's is replaced.
    made = _call_hub(name, lambda: api.create_repo(name, private=not public, exist_ok=update))
    try:
        _call_hub(
            made.repo_id, lambda: api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Vaak")
        )
    except UserError as error:
        raise UserError(
            f"{made.repo_id} is there, but the files weren't sent ({error}); --update tries again"
        ) from error
    return str(made)


def _call_hub(name: str, call: Any) -> Any:
    """Return the result of a call of the Hub. Raises UserError if it fails."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return call()
    except HfHubHTTPError as error:
        raise UserError(_explain_failure(name, error)) from error
    except OfflineModeIsEnabled as error:
        raise UserError("the Hugging Face Hub isn't asked: HF_HUB_OFFLINE is set") from error
    except Exception as error:
        # httpx, the operating system and the Hub's other clients each raise their own.
        raise UserError(f"the Hugging Face Hub can't be reached: {type(error).__name__}") from error


def _explain_failure(name: str, error: Any) -> str:
    status = getattr(error.response, "status_code", None)
    if status == 401:
        return "the Hugging Face Hub doesn't accept the token: run hf auth login, or set HF_TOKEN to a valid one"
    if status == 403:
        return f"the token has no right to write to {name}: make one that may, or choose another owner"
    if status == 409:
        return f"{name} is taken: choose another name, or give --update to add to it"
    return f"the Hugging Face Hub answered {status}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
