"""FAISS index files: opened memory-mapped, tuned, checked against a corpus, and put on the GPUs in shards."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from common.errors import ConfigError, DataError
from common.progress import progress_bar
from common.seeds import stable_hash
from envs.retrievers.index_folder import IndexFolder

if TYPE_CHECKING:
    from envs.retrievers.corpus import DocumentFile
    from envs.retrievers.watched_file import WatchedFile
    from envs.types import Document

log = logging.getLogger(__name__)

IndexDevice = Literal["auto", "cpu", "cuda"]
_BLOCK = 4096  # vectors checked at once
_PROBES = 16  # passages encoded again to check a file


def import_faiss() -> Any:
    """The module `faiss`, from either of its packages.

    Raises:
        ConfigError: none is installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "FAISS is not installed: install exactly one of the extras, pip install '.[cpu]' or '.[gpu]'"
        ) from error
    # FAISS 1.15 multiplies matrices only from 128,000 numbers in the queries on, else reads all vectors anew for each
    # query: of 384 numbers, 31 queries took 92 ms and take 19. Below four queries its way is the faster one.
    faiss.cvar.distance_compute_blas_threshold = min(faiss.cvar.distance_compute_blas_threshold, 1500)
    return faiss


def empty_index(dimension: int, factory: str) -> Any:
    """An inner-product index without vectors.

    Raises:
        ConfigError: FAISS makes no such index.
    """
    faiss = import_faiss()
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(f"FAISS makes no index of {factory!r}: {reason_of(error)}") from error


def open_index(path: Path, documents: DocumentFile, dimension: int, advice: str) -> Any:
    """The index in a file, memory-mapped; `advice` ends the messages.

    Raises:
        DataError: it cannot be read, compares by another metric, or has other vectors than one a passage.
    """
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise DataError(f"{path} holds no index that can be read: {advice}; {reason_of(error)}") from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise DataError(f"{path} compares vectors by a distance, not by their inner product: {advice}")
    if (index.ntotal, index.d) != (len(documents), dimension):
        raise DataError(
            f"{path} holds {index.ntotal} vectors of {index.d} numbers, but {documents.path} has "
            f"{len(documents)} passages and the encoder gives {dimension}: {advice}"
        )
    return index


def clusters(index: Any) -> int:
    """Inverted lists of an index; 0 for one of another kind."""
    ivf = import_faiss().try_extract_index_ivf(index)
    return 0 if ivf is None else ivf.nlist


def tune(index: Any, name: str, *, nprobe: int | None, ef_search: int | None) -> None:
    """Set how widely an index searches: by default the square root of its lists, or 64 in a graph.

    Raises:
        ConfigError: the index has no such setting; `name` is that of the index.
    """
    faiss = import_faiss()
    nprobe = nprobe or math.isqrt(clusters(index)) or None
    ef_search = ef_search or (64 if hasattr(faiss.downcast_index(index), "hnsw") else None)
    for setting, value in (("nprobe", nprobe), ("efSearch", ef_search)):
        if value is not None:
            try:
                faiss.ParameterSpace().set_index_parameter(index, setting, value)
            except RuntimeError as error:
                raise ConfigError(f"index {name} takes no {setting}: leave it out") from error


def file_identity(file: WatchedFile, index: Any, cache: Path) -> str:
    """Hash of an index file's bytes, kept in `cache` by the file's path and stamp once its vectors are checked.

    Raises:
        DataError: a vector holds a number that is not finite; only whole lists of vectors and graphs are checked.
    """

    def store(folder: Path) -> None:
        _check_finite(index, file.path)
        (folder / "identity").write_text(file.digest())

    key = stable_hash(str(file.path.resolve()), *file.stamp)
    return (IndexFolder(cache / f"index-{key:016x}", store).path / "identity").read_text()


def _check_finite(index: Any, path: Path) -> None:
    faiss = import_faiss()
    stored = faiss.downcast_index(getattr(faiss.downcast_index(index), "storage", index))  # that of a graph
    if not isinstance(stored, faiss.IndexFlatCodes):  # of others, FAISS aborts where a vector is missing
        return
    with progress_bar(index.ntotal, f"checking {path.name}", "vector") as bar:
        for start in range(0, index.ntotal, _BLOCK):
            count = min(_BLOCK, index.ntotal - start)
            wrong = ~np.isfinite(stored.reconstruct_n(start, count)).all(1)
            if wrong.any():
                raise DataError(f"{path}: vector {start + int(wrong.argmax())} is not finite: get the file again")
            bar.update(count)


def check_rows(index: Any, path: Path, documents: DocumentFile, encode: Callable[[list[Document]], np.ndarray]) -> None:
    """Encode some passages again: each must be nearer to its own vector than to those of the others.

    So an index of another corpus, another order or another encoder is found, while half precision or a title in quotes
    is allowed. A quarter may fail, for a corpus may hold a passage twice. Indexes that cannot give a vector back, such
    as those with inverted lists, are not checked.

    Raises:
        DataError: the vectors are not those of the passages.
    """
    count = min(_PROBES, len(documents))
    random = np.random.default_rng(stable_hash(documents.identity, "probes"))
    rows = random.choice(len(documents), count, replace=False)
    try:
        stored_ND = np.stack([index.reconstruct(int(row)) for row in rows])
    except RuntimeError:
        return
    encoded_ND = encode([documents[int(row)] for row in rows])
    similarity_NN = encoded_ND @ stored_ND.T
    own = int((similarity_NN.argmax(1) == np.arange(count)).sum())
    if 4 * own < 3 * count:
        raise DataError(
            f"{path}: only {own} of {count} passages of {documents.path} are nearest to their own vectors: it is an "
            "index of another corpus, or of another encoder, pooling or prefix"
        )


def on_device(index: Any, device: IndexDevice, *, half: bool) -> Any:
    """The index spread over all GPUs, a shard each, or as it is: on the CPU, where FAISS sees no GPU.

    With `auto`, an index that FAISS cannot put on a GPU, such as a graph, stays on the CPU, and the log says so.

    Raises:
        ConfigError: `device` is `cuda`, and there is no GPU or the index cannot be there.
    """
    faiss = import_faiss()
    gpus = faiss.get_num_gpus() if device != "cpu" and hasattr(faiss, "get_num_gpus") else 0
    if gpus == 0:
        if device == "cuda":
            raise ConfigError("index device cuda: FAISS sees no GPU; install the extra gpu, or set device cpu")
        return index
    options = faiss.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = True, half
    try:
        return faiss.index_cpu_to_all_gpus(index, co=options)
    except RuntimeError as error:
        if device == "cuda":
            raise ConfigError(
                f"index device cuda: FAISS cannot put it on {gpus} GPUs: {reason_of(error)}; half precision needs half "
                "the memory, device cpu none"
            ) from error
        log.warning("the index stays on the CPU: %s", reason_of(error))
        return index


def reason_of(error: Exception) -> str:
    """The message of a FAISS error without the place in FAISS's source."""
    return str(error).strip().rsplit(": ", 1)[-1]
