"""Engine: vLLM's AsyncLLM behind a token-in, token-out interface. Together with the weight loader the only vLLM import."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from actors.policy import Completion, FinishReason, Sampling
from actors.sockets import name_sockets_apart, unname_sockets
from actors.weights import BACKEND, SharedMemoryUpdate
from cacherl.errors import DeadlineExceeded, EngineDied, EngineError
from cacherl.policy import FIRST_VERSION, WeightManifest
from cacherl.trajectory import NO_VERSION, Source

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

#: Seconds that the engine's processes get to end by themselves.
_SHUTDOWN_S = 2.0
#: Where POSIX shared memory and named semaphores live on Linux.
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What one engine is started with.

    Attributes:
        model: Hugging Face folder.
        dtype: 'float32', 'bfloat16' or 'auto' (float32 on CPU, the model's own on GPU).
        max_length: tokens of one sequence.
        max_sequences: sequences scheduled at once.
        end_of_turn: token id that ends a completion.
        gpus: of the engine, which splits the model over them; 0: on CPU.
        gpu_memory_utilization: share of GPU memory; not used on CPU.
        seed: of the engine; each request carries its own as well.
    """

    model: Path
    dtype: str
    max_length: int
    max_sequences: int
    end_of_turn: int
    gpus: int
    gpu_memory_utilization: float
    seed: int


def engine_environment(*, threads: int, kv_cache_gib: int, gpus: int) -> dict[str, str]:
    """Environment variables that must be set before the process of an engine imports vLLM."""
    common = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if gpus:
        return common
    return common | {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
    }


class Engine:
    """A running engine; a `Policy` whose tokens carry the version of the weights that sampled them."""

    def __init__(self, llm: AsyncLLM, settings: EngineSettings) -> None:
        self._llm = llm
        self._settings = settings
        self._ids = itertools.count()

    @classmethod
    async def start(cls, settings: EngineSettings) -> Engine:
        """Load the model and answer one warm-up request.

        Raises:
            EngineError: vLLM refused the model or the settings.
        """
        # An error that is kept since this import keeps the present frame, and so whatever it holds, until the interpreter ends.
        # Were the engine among it, vLLM's object would outlive `close`, and fail when its modules are taken apart before it.
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        def load() -> AsyncLLM:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**_engine_args(settings)))

        return await cls._started(load, settings)

    @classmethod
    async def _started(cls, load: Callable[[], AsyncLLM], settings: EngineSettings) -> Engine:
        name_sockets_apart()
        try:
            # In a thread: it takes long, and who gives up on it meanwhile must be able to say so (`abandon_start`).
            engine = cls(await asyncio.to_thread(load), settings)
        except (RuntimeError, ValueError, OSError) as error:
            unname_sockets()
            raise EngineError(f"vLLM could not start on {settings.model}: {error}") from error
        await engine._llm.update_weight_version(str(FIRST_VERSION))
        await engine.complete([settings.end_of_turn], Sampling(temperature=1.0, max_new_tokens=2), seed=0)
        await asyncio.to_thread(unname_shared_memory)
        unname_sockets()
        return engine

    @property
    def source(self) -> Source:
        return "policy"

    @property
    def dead(self) -> bool:
        """Its processes have ended; no call will be answered any more."""
        return bool(self._llm.errored)

    async def complete(self, prefix: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """Sample one turn after `prefix` (see `Policy`)."""
        from vllm.exceptions import VLLMError
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=0.0 if sampling.greedy else sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=[self._settings.end_of_turn],
            logprobs=0,
            seed=seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request = self._llm.generate({"prompt_token_ids": list(prefix)}, params, request_id=f"{os.getpid()}-{next(self._ids)}")
        try:
            output = [item async for item in request][-1].outputs[0]
        except (RuntimeError, ValueError, IndexError, VLLMError) as error:
            raise EngineError(f"no completion for a prefix of {len(prefix)} tokens: {error}") from error
        return _completion(output)

    async def load_weights(self, manifest: WeightManifest, path: str, *, deadline_s: float) -> None:
        """Swap the weights in flight: freeze running requests, load, go on. Cached prefixes are dropped.

        Raises:
            DeadlineExceeded: not done after `deadline_s` seconds.
            EngineDied: it ended meanwhile.
            EngineError: the engine refused the weights.
        """
        from vllm.exceptions import VLLMServerError

        try:
            async with asyncio.timeout(deadline_s):
                await self._swap(manifest, path)
        except TimeoutError:
            raise DeadlineExceeded(f"the engine to load weights of version {manifest.version}", deadline_s) from None
        except (RuntimeError, ValueError, VLLMServerError) as error:
            kind = EngineDied if self.dead else EngineError
            raise kind(f"weights of version {manifest.version} were refused: {error}") from error

    async def _swap(self, manifest: WeightManifest, path: str) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        update = {"update": SharedMemoryUpdate.of(manifest, path).as_dict()}
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.start_weight_update()
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))
            await self._llm.finish_weight_update(weight_version=str(manifest.version))
        finally:
            await self._llm.resume_generation()

    def close(self) -> None:
        """Stop the engine's processes."""
        self._llm.shutdown(timeout=_SHUTDOWN_S)


def abandon_start() -> None:
    """End an engine that is still starting, or refused to, so that there is nothing to `close`; leaves no shared memory
    and no socket.

    Python's resource trackers live on: what was only just named, they remove when the last of the others is gone.
    """
    children = [child for child in psutil.Process().children(recursive=True) if not _tracks_resources(child)]
    for child in children:  # held first, or they would go on to make names that nobody removes
        with contextlib.suppress(psutil.Error):
            child.suspend()
    unname_shared_memory()
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    unname_shared_memory()  # this process was not held
    unname_sockets()


def _tracks_resources(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    return False


def unname_shared_memory() -> None:
    """Remove the names of the message queues and semaphores between vLLM's processes from /dev/shm.

    All of them are mapped by the time that the first request is answered, and a mapping needs no name. Processes that are
    killed would leave the names, and with them the memory, behind.
    """
    this = psutil.Process()
    held = set().union(*(_mapped_inodes(process.pid) for process in (this, *this.children(recursive=True))))
    for pattern in ("psm_*", "sem.mp-*"):
        for path in _SHARED_MEMORY.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino in held:
                    path.unlink()


def _mapped_inodes(pid: int) -> set[int]:
    """Inodes of the shared memory that a process has mapped. Names will not do: a new semaphore is mapped under another one."""
    inodes = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            _, _, _, _, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith(str(_SHARED_MEMORY)):
                inodes.add(int(inode))
    return inodes


def _engine_args(settings: EngineSettings) -> dict[str, Any]:
    on_gpu = settings.gpus > 0
    return {
        "model": str(settings.model),
        "dtype": settings.dtype,
        "max_model_len": settings.max_length,
        "max_num_seqs": settings.max_sequences,
        "tensor_parallel_size": max(1, settings.gpus),
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "distributed_executor_backend": "uni" if settings.gpus == 1 else "mp",
        "enforce_eager": not on_gpu,
        # A chunked prefill rewinds the request's generator, which a CPU generator cannot: the engine would die of it.
        "enable_chunked_prefill": on_gpu,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "disable_log_stats": True,
        "weight_transfer_config": {"backend": BACKEND},
        "seed": settings.seed,
    }


def _completion(output: Any) -> Completion:
    """vLLM's `CompletionOutput` as ours."""
    ids = np.array(output.token_ids, dtype=np.int32)
    logprobs = np.array(
        [position[token].logprob for position, token in zip(output.logprobs, output.token_ids, strict=True)], dtype=np.float32
    )
    versions = np.full(len(ids), NO_VERSION, dtype=np.int32)
    for span in output.weight_versions or ():
        versions[span.start : span.end] = int(span.version)
    if (versions == NO_VERSION).any():
        raise EngineError("the engine did not say which weights sampled its tokens")
    reason: FinishReason = output.finish_reason if output.finish_reason in ("stop", "length") else "abort"
    return Completion(token_ids=ids, logprobs=np.minimum(logprobs, 0.0), versions=versions, finish_reason=reason)
