"""Reads and writes run directories; no finished trial is ever lost.

RUN/run.json        RunInfo; replaced atomically
RUN/trials.jsonl    one TrialRecord a line, appended and fsynced
RUN/kpis.jsonl      KpiSample: a line a second while a chain is measured; not fsynced
RUN/packets/        Parquet files named by the trials
RUN/recordings/     recordings of an allocator's daemon by trial, JSON lines
RUN/recommendation.json  Recommendation, where the run has one; replaced atomically
RUN/report.html     written by `planewise report`
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import polars as pl
from pydantic import ValidationError

from planewise.errors import (
    BadInputError,
    NewerVersionWarning,
    PlanewiseError,
    StorageError,
    first_fault,
)
from planewise.store.files import replace_file
from planewise.store.models import FORMAT, KpiSample, Record, RunInfo, TrialRecord
from planewise.store.recommendation import Recommendation

RUN_FILE = "run.json"
CAMPAIGN_FILE = "campaign.json"
"""The design of a campaign, in the folder that holds a run directory for each of its curves."""
TRIALS_FILE = "trials.jsonl"
KPIS_FILE = "kpis.jsonl"
PACKETS_DIR = "packets"
RECORDINGS_DIR = "recordings"
RECOMMENDATION_FILE = "recommendation.json"


class RunReader:
    """Reads a run directory. Tolerates a last line that a kill cut short."""

    def __init__(self, path: Path) -> None:
        """Reads run.json. BadInputError when `path` is not a run directory of this format."""
        self.path = path
        self.info = _read_info(path)
        self._tell_unknown(self.info)

    def _tell_unknown(self, *records: Record) -> None:
        """Warns of fields that this version doesn't know; Python repeats no warning."""
        unknown = sorted({name for record in records for name in record.model_extra or ()})
        if unknown:
            message = (
                f"{self.path} was written by a newer planewise ({self.info.planewise}); "
                f"fields that this version doesn't know are ignored: {', '.join(unknown)}"
            )
            warnings.warn(message, NewerVersionWarning, stacklevel=3)

    def trials(self) -> list[TrialRecord]:
        """All finished trials, in the order in which they were written.

        Of a trial that failed and was tried again on resume, the last attempt counts. A cut last
        line is left out (`is_cut` says so); any other bad line is a BadInputError with its number.
        """
        latest: dict[str, TrialRecord] = {}
        for record, _ in _parse_trials(self.path / TRIALS_FILE):
            latest.pop(record.trial, None)
            latest[record.trial] = record
        self._tell_unknown(*latest.values())
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
        """Per-packet samples of an RTT trial, None when not kept.

        Columns: docs/reference/formats.md.
        """
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
        """The run's recommendation; None when it has none."""
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
    """Checks that a run can be written to `path`, before anything is measured. Writes nothing.

    Raises:
        BadInputError: `path` is not empty, or not a directory.
        StorageError: `path` cannot be made or written.
    """
    try:
        if path.exists() and not path.is_dir():
            raise BadInputError(
                "there is a file where the run directory should be",
                where=str(path),
                remedy="name another with --out",
            )
        if path.exists() and any(path.iterdir()):
            raise BadInputError(
                "the output directory exists and is not empty",
                where=str(path),
                remedy="name another with --out; continue an unfinished run with `planewise run "
                "--resume`, a sweep or search with the command that started it",
            )
        parent = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    if not parent.is_dir():
        raise _unwritable(path, f"{parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _unwritable(path, f"{parent} may not be written to")


def _unwritable(path: Path, why: str) -> StorageError:
    return StorageError(
        f"cannot write the run directory {path}: {why}",
        remedy="check the path and its permissions, or name another with --out",
    )


class RunWriter:
    """Writes a run directory; only one process at a time can. A context manager."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        """Use `create` or `resume`."""
        self.path = path
        self.info = info
        self.on_sample: Callable[[KpiSample], None] = lambda _: None
        self.next_order = 0
        """`order` of the next trial."""
        self._lock = _lock(path)
        finished, end = set[str](), 0
        try:
            for record, end in _parse_trials(path / TRIALS_FILE):  # noqa: B007, its last value
                self.next_order = max(self.next_order, record.order + 1)
                whole = record.status == "done" and _is_whole(path, record.packets)
                (finished.add if whole else finished.discard)(record.trial)
            with _disk_errors(path):
                (path / PACKETS_DIR).mkdir(exist_ok=True)
                # Unbuffered: closing the file must not write what a full disk refused.
                self._trials = (path / TRIALS_FILE).open("ab", buffering=0)
                self._trials.truncate(end)
                replace_file(path / RUN_FILE, _json(info), synced=True)
        except BaseException:
            os.close(self._lock)
            raise
        self.finished = frozenset(finished)
        """Trials that are finished; a resumed run skips them."""

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> Self:
        """Makes `path` (must be new or empty) and writes run.json."""
        check_free(path)
        with _disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path, info)

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Opens a run that was cut short.

        A line cut in the middle is dropped. A trial whose packets are incomplete on the disk will
        be measured again.
        """
        again = {"status": "running", "reason": "", "finished": None}
        return cls(path, _read_info(path).model_copy(update=again))

    def append(
        self,
        trial: TrialRecord,
        packets: pl.DataFrame | None = None,
        recording: bytes | None = None,
    ) -> None:
        """Appends a finished trial, fsynced: its packets and its recording first, then its line.

        A full disk is an error that names the directory; earlier trials stay whole.
        """
        with _disk_errors(self.path):
            if packets is not None:
                name = packets_file(trial.trial)
                buffer = io.BytesIO()  # in memory first, so that a full disk is an OSError
                packets.write_parquet(buffer, compression="zstd")
                replace_file(self.path / name, buffer.getvalue(), synced=True)
                trial = trial.model_copy(update={"packets": name})
            if recording is not None and trial.alloc is not None:
                name = f"{RECORDINGS_DIR}/{_file_stem(trial.trial)}.jsonl"
                (self.path / RECORDINGS_DIR).mkdir(exist_ok=True)
                replace_file(self.path / name, recording, synced=True)
                alloc = trial.alloc.model_copy(update={"recording": name})
                trial = trial.model_copy(update={"alloc": alloc})
            start = os.fstat(self._trials.fileno()).st_size
            line = memoryview(trial.model_dump_json(exclude_defaults=True).encode() + b"\n")
            try:
                while line:  # a write may be partial, and the next one fail
                    line = line[self._trials.write(line) :]
                os.fsync(self._trials.fileno())
            except OSError:
                os.truncate(self.path / TRIALS_FILE, start)
                raise

    def sample(self, kpi: KpiSample) -> None:
        """Appends a second of a running trial, without fsync, and shows it to live views."""
        with _disk_errors(self.path):
            line = kpi.model_dump_json().encode() + b"\n"
            with (self.path / KPIS_FILE).open("ab") as handle:
                handle.write(line)
        self.on_sample(kpi)

    def finish(self, info: RunInfo) -> None:
        """Replaces run.json by `info` (status, end time)."""
        self.info = info
        with _disk_errors(self.path):
            replace_file(self.path / RUN_FILE, _json(info), synced=True)

    def recommend(self, recommendation: Recommendation) -> None:
        """Writes or replaces recommendation.json."""
        with _disk_errors(self.path):
            replace_file(self.path / RECOMMENDATION_FILE, _json(recommendation), synced=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._trials.close()
        os.close(self._lock)


def _json(record: Record) -> bytes:
    return record.model_dump_json(indent=2).encode() + b"\n"


def _is_whole(run: Path, packets: str | None) -> bool:
    """Whether a Parquet file has its footer, which is written last."""
    try:
        return packets is None or bool(pl.read_parquet_schema(run / packets))
    except (OSError, pl.exceptions.PolarsError):
        return False


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turns an OSError, as of a full disk, into a StorageError that names the directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise _unwritable(path, error.strerror or str(error)) from error
        raise StorageError(
            f"no space left to write the run directory {path}",
            remedy="finished trials are safe; free some space and continue with "
            "`planewise run --resume`",
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
        place, fault = first_fault(error)
        return f"{place}: {fault}" if place else fault
    return str(error).splitlines()[0]


def packets_file(trial: str) -> str:
    """File of a trial's packets, relative to the run directory."""
    return f"{PACKETS_DIR}/{_file_stem(trial)}.parquet"


def _file_stem(trial: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", trial)
