"""A workload as a file: YAML with the keys of `planewise advise`'s options."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from planewise.advise.demand import Workload
from planewise.advise.model.capacity import ChainWorkload
from planewise.errors import BadInputError, first_fault
from planewise.store.files import read_yaml

_MOST_BYTES = 65_536
_REMEDY = "docs/guide/advise.md has a whole example"


class WorkloadText(BaseModel):
    """A workload in the units in which people write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str | None = None
    vnfs: int = 1
    chains: int = 1
    switch_cores: int = 1
    vnf_cores: int = 1
    frame_bytes: int = 64
    application: str = "polling"
    rate_mpps: float | None = None
    latency_us: float | None = None
    live_migration: bool = False
    isolation: tuple[str, ...] = ()
    guests: int | None = None
    vfs: int | None = None
    cores: int | None = None
    spare_cores: int | None = None

    def workload(self) -> Workload:
        """The workload as the advice takes it.

        Raises:
            BadInputError: there is no such workload.
        """
        if self.pattern is None:
            raise BadInputError(
                "a workload needs a pattern",
                where="pattern",
                remedy="--pattern north-south (each function sends back) or east-west (a chain)",
            )
        return Workload(
            chain=ChainWorkload(
                self.pattern,  # type: ignore[arg-type]
                self.vnfs,
                self.frame_bytes,
                self.chains,
                self.switch_cores,
                self.vnf_cores,
            ),
            application=self.application,  # type: ignore[arg-type]  # both refuse what is none
            rate_pps=None if self.rate_mpps is None else self.rate_mpps * 1e6,
            latency_ns=None if self.latency_us is None else self.latency_us * 1e3,
            live_migration=self.live_migration,
            isolation=self.isolation,  # type: ignore[arg-type]
            guests=self.guests,
            vfs=self.vfs,
            cores=self.cores,
            spare_cores=self.spare_cores,
        )


def read_workload(path: Path) -> WorkloadText:
    """The workload in a YAML file.

    Raises:
        BadInputError: it is no workload; what and where.
    """
    raw = read_yaml(path, "workload", "pattern", _REMEDY, _MOST_BYTES)
    try:
        return WorkloadText.model_validate({str(key): value for key, value in raw.items()})
    except ValidationError as error:
        place, fault = first_fault(error)
        keys = ", ".join(WorkloadText.model_fields)
        unknown = error.errors()[0]["type"] == "extra_forbidden"
        raise BadInputError(
            f"there is no key {place}" if unknown else f"{place}: {fault}",
            where=str(path),
            remedy=f"keys: {keys}" if unknown else _REMEDY,
        ) from error
