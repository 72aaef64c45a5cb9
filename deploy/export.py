"""Export: the policy of a checkpoint as a Hugging Face folder of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cacherl.durable import rename_durably, sync_folder
from cacherl.errors import CheckpointError, boundary
from deploy.checkpoints import MANIFEST, Checkpoint, CheckpointStore, read_checkpoint
from deploy.run_config import config_of
from deploy.run_record import CONFIG_FILE
from learner.checkpoint import POLICY_FOLDER


def export_policy(source: Path, target: Path, *, best: bool = False) -> Checkpoint:
    """Copy the policy of `source` to the new folder `target`, all or nothing, after its files have been checked.

    Args:
        source: a checkpoint, or a run's folder, which stands for its newest one.
        best: of a run, the checkpoint of the highest held-out success.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged or removed meanwhile, or `target` is there or unwritable.
        ConfigError: this version refuses the run's settings, which say where its checkpoints are.
    """
    checkpoint = _chosen(source, best)
    if target.exists():
        raise CheckpointError(f"{target} exists; name a new folder")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with boundary(CheckpointError, f"exporting {checkpoint.folder} to {target}"):
        try:
            partial.mkdir(parents=True)
            for file in checkpoint.files:
                if file.name.startswith(f"{POLICY_FOLDER}/"):
                    shutil.copy2(file.verify(checkpoint.folder), partial)
            sync_folder(partial)
            rename_durably(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return checkpoint


def _chosen(source: Path, best: bool) -> Checkpoint:
    if (source / MANIFEST).is_file():
        return read_checkpoint(source)
    if not (source / CONFIG_FILE).is_file():
        raise CheckpointError(f"{source} is neither a checkpoint (no {MANIFEST}) nor the folder of a run (no {CONFIG_FILE})")
    section = config_of(source, otherwise="export one of the run's checkpoints by its own folder (step-…)").checkpoint
    folder = source / "checkpoints" if section.dir is None else section.dir.expanduser() / source.resolve().name
    store = CheckpointStore(folder, keep_last=section.keep_last, keep_best=section.keep_best)
    checkpoint = store.best() if best else store.newest()
    if checkpoint is None:
        raise CheckpointError(f"{source} has no {'evaluated' if best else 'complete'} checkpoint in {folder}")
    return checkpoint
