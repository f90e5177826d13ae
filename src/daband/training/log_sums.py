"""What the parts of a log teach a policy that learns by sums over rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daband.domains.readers.parquet_log import LogPart, ParquetLog
from daband.errors import DataError, InvalidInput
from daband.linear import RidgeSums
from daband.policies.summed import SummedPolicy

__all__ = ["sums_in_turn", "sums_of_part"]


def sums_of_part(policy: SummedPolicy, log: ParquetLog, part: LogPart, weighting: str | None) -> RidgeSums:
    """What one part of a log teaches; ``policy`` stays as it is."""
    sums = policy.empty_sums()
    for batch in log.batches(part):
        try:
            policy.add_to_sums(
                sums,
                batch.contexts,
                batch.arms,
                batch.rewards,
                propensity=batch.propensities,
                propensity_weighting=weighting,
            )
        except InvalidInput as error:
            raise DataError(f"{part.label} cannot be learned: {error}") from None
    return sums


def sums_in_turn(
    policy: SummedPolicy, log: ParquetLog, parts: Sequence[LogPart], weighting: str | None
) -> Iterator[tuple[LogPart, RidgeSums | DataError]]:
    """Every part with its sums, or with the error that its rows gave, one after the other."""
    for part in parts:
        outcome: RidgeSums | DataError
        try:
            outcome = sums_of_part(policy, log, part, weighting)
        except DataError as error:
            outcome = error
        yield part, outcome
