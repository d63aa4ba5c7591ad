"""Writing and reading a run directory, so that nothing finished is ever lost.

RUN/run.json        RunInfo; replaced atomically
RUN/trials.jsonl    one TrialRecord a line, appended and fsynced
RUN/packets/        Parquet files named by the trials
RUN/recommendation.json  Recommendation, when the run came to one; replaced atomically
RUN/report.html     written by `planewise report`
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl
from pydantic import ValidationError

from planewise.errors import BadInputError, PlanewiseError, StorageError
from planewise.store.models import FORMAT, Recommendation, Record, RunInfo, TrialRecord

RUN_FILE = "run.json"
TRIALS_FILE = "trials.jsonl"
PACKETS_DIR = "packets"
RECOMMENDATION_FILE = "recommendation.json"


class RunReader:
    """A run directory as data. Tolerates what a kill leaves: a last line cut short."""

    def __init__(self, path: Path) -> None:
        """Reads run.json. BadInputError when `path` is not a run directory of this format."""
        self.path = path
        self.info = _read_info(path)

    def trials(self) -> list[TrialRecord]:
        """All finished trials, in the order in which they were written.

        Of a trial that failed and was tried again on resume, the last attempt counts. A cut last
        line is left out (`is_cut` says so); any other bad line is a BadInputError with its number.
        """
        latest: dict[str, TrialRecord] = {}
        for record, _ in _parse_trials(self.path / TRIALS_FILE):
            latest.pop(record.trial, None)
            latest[record.trial] = record
        return list(latest.values())

    def is_cut(self) -> bool:
        """Whether the last line of trials.jsonl was cut short by a kill or a full disk."""
        file = self.path / TRIALS_FILE
        if not file.exists() or file.stat().st_size == 0:
            return False
        with file.open("rb") as handle:
            handle.seek(-1, os.SEEK_END)
            return handle.read(1) != b"\n"

    def packets(self, trial: TrialRecord) -> pl.DataFrame | None:
        """Per-packet samples of an RTT trial (columns: docs/formats.md), None when not kept."""
        if trial.packets is None:
            return None
        file = self.path / trial.packets
        try:
            return pl.read_parquet(file)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise BadInputError(
                f"the packet samples of trial {trial.trial} cannot be read: {error}",
                where=str(file),
                remedy="the trial's summary in trials.jsonl is still good; restore the file or "
                "leave the trial out",
            ) from error

    def recommendation(self) -> Recommendation | None:
        """What the run advises; None when it came to no recommendation."""
        file = self.path / RECOMMENDATION_FILE
        try:
            return Recommendation.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise BadInputError(
                f"the recommendation cannot be read: {_first_line(error)}",
                where=str(file),
                remedy="delete that file; everything else of the run is still good",
            ) from error


def check_free(path: Path) -> None:
    """Whether a run may go to `path`, before minutes are spent on measuring. Writes nothing.

    Raises:
        BadInputError: it holds something, or is no directory.
        StorageError: it may not be made or written.
    """
    try:
        if path.exists() and not path.is_dir():
            raise BadInputError(
                "the run directory would be where a file is",
                where=str(path),
                remedy="name another with --out",
            )
        if path.exists() and any(path.iterdir()):
            raise BadInputError(
                "the output directory exists and is not empty",
                where=str(path),
                remedy="name another with --out, or continue that run with "
                "`planewise run --resume`",
            )
        above = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    if not above.is_dir():
        raise _unwritable(path, f"{above} is no directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _unwritable(path, f"{above} may not be written to")


def _unwritable(path: Path, why: str) -> StorageError:
    return StorageError(
        f"cannot write the run directory {path}: {why}",
        remedy="check the path and its permissions, or name another with --out",
    )


class RunWriter:
    """A run directory being written, by one process at a time."""

    def __init__(self, path: Path, info: RunInfo, finished: frozenset[str], lock: int) -> None:
        """Use `create` or `resume`."""
        self.path = path
        self.info = info
        self.finished = finished
        """Trials that are there already; a resumed run skips them."""
        self._lock = lock
        self._trials = (path / TRIALS_FILE).open("ab")

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> Self:
        """Makes `path` (must be new or empty) and writes run.json."""
        check_free(path)
        with _disk_errors(path):
            (path / PACKETS_DIR).mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        with _disk_errors(path):
            writer = cls(path, info, frozenset(), lock)
            writer._write_info()
        return writer

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Opens a run that was cut short; a trial line cut in the middle is dropped."""
        info = _read_info(path)
        lock = _lock(path)
        file = path / TRIALS_FILE
        end = 0
        finished = set()
        for record, offset in _parse_trials(file):
            end = offset
            if record.status == "done":
                finished.add(record.trial)
            else:
                finished.discard(record.trial)
        with _disk_errors(path):
            if file.exists():
                os.truncate(file, end)
            writer = cls(
                path, info.model_copy(update={"status": "running"}), frozenset(finished), lock
            )
            writer._write_info()
        return writer

    def append(self, trial: TrialRecord, packets: pl.DataFrame | None = None) -> None:
        """Adds a finished trial for good: its packets first, then its line, fsynced.

        A full disk is an error that names the directory; what was written before stays whole.
        """
        with _disk_errors(self.path):
            if packets is not None:
                name = packets_file(trial.trial)
                _write_parquet(packets, self.path / name)
                trial = trial.model_copy(update={"packets": name})
            start = self._trials.tell()
            try:
                self._trials.write(trial.model_dump_json(exclude_defaults=True).encode() + b"\n")
                self._trials.flush()
                os.fsync(self._trials.fileno())
            except OSError:
                os.truncate(self.path / TRIALS_FILE, start)
                raise

    def finish(self, info: RunInfo) -> None:
        """Replaces run.json by `info` (status, end time)."""
        self.info = info
        with _disk_errors(self.path):
            self._write_info()

    def recommend(self, recommendation: Recommendation) -> None:
        """Writes or replaces recommendation.json."""
        with _disk_errors(self.path):
            self._replace(RECOMMENDATION_FILE, recommendation)

    def _write_info(self) -> None:
        self._replace(RUN_FILE, self.info)

    def _replace(self, name: str, record: Record) -> None:
        new = self.path / f".{name}.new"
        with new.open("wb") as handle:
            handle.write(record.model_dump_json(indent=2).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        new.replace(self.path / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._trials.close()
        os.close(self._lock)


def _write_parquet(table: pl.DataFrame, file: Path) -> None:
    """Whole or not at all. Made in memory first, so that a full disk is an OSError as elsewhere."""
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd")
    try:
        file.write_bytes(buffer.getvalue())
    except OSError:
        file.unlink(missing_ok=True)
        raise


class _disk_errors:  # noqa: N801 - reads as a statement
    """Turns a full or read-only disk into an error that names the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StorageError(
                f"no space left to write the run directory {self.path}"
                if full
                else f"cannot write the run directory {self.path}: {error.strerror}",
                remedy="finished trials are safe; free some space and continue with "
                "`planewise run --resume`"
                if full
                else "check the path and its permissions, or name another with --out",
            ) from error


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise PlanewiseError(
            f"another planewise is writing to {path}",
            remedy="wait for it, or name another directory with --out",
        ) from error
    return handle


def _read_info(path: Path) -> RunInfo:
    file = path / RUN_FILE
    remedy = "give the directory that `planewise quick` or `planewise run` printed"
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BadInputError(
            f"not a run directory: {RUN_FILE} cannot be read ({error.strerror})",
            where=str(path),
            remedy=remedy,
        ) from error
    try:
        raw = json.loads(text)
        version = raw.get("format") if isinstance(raw, dict) else None
        if version != FORMAT:
            raise BadInputError(
                f"run directory of format {version!r}, this planewise reads format {FORMAT}",
                where=str(file),
                remedy="use the planewise version that wrote it",
            )
        return RunInfo.model_validate_json(text)
    except (ValueError, ValidationError) as error:
        raise BadInputError(
            f"{RUN_FILE} is damaged: {_first_line(error)}", where=str(file), remedy=remedy
        ) from error


def _parse_trials(file: Path) -> Iterator[tuple[TrialRecord, int]]:
    """Yields each whole record with the offset of its end."""
    if not file.exists():
        return
    offset = 0
    with file.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.endswith(b"\n"):
                return  # cut short: the trial in flight when the writer died
            offset += len(line)
            try:
                yield TrialRecord.model_validate_json(line), offset
            except ValidationError as error:
                raise BadInputError(
                    f"not a trial record: {_first_line(error)}",
                    where=f"{file}:{number}",
                    remedy="delete that line (one trial is lost), or restore the file",
                ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}" if place else str(first["msg"])
    return str(error).splitlines()[0]


def packets_file(trial: str) -> str:
    """Where a trial's packets go, relative to the run directory."""
    return f"{PACKETS_DIR}/{re.sub(r'[^A-Za-z0-9._=-]+', '_', trial)}.parquet"
