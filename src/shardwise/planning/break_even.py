"""The price of a GPU-hour at which one system costs as much as another."""

from collections.abc import Iterable, Mapping


def break_even(costs: Iterable[tuple[str, float]], hours: Mapping[str, float]) -> dict[str, float]:
    """Price of a GPU-hour at which each system costs as much as the cheapest of the others [USD].

    p = C / h with C the lowest cost of the work on another system and h the fewest GPU-hours of the
    same work on this one. It needs no price of the system itself.

    Parameters
    ----------
    costs
        Names of systems, and what the work costs on each [USD]; a system may be there several
        times, or not at all without a price.
    hours
        Fewest GPU-hours of the work, by system.

    Returns
    -------
    dict
        By system, without those that have no other one with a price.
    """
    known, found = tuple(costs), dict[str, float]()
    for system, most in hours.items():
        others = [usd for name, usd in known if name != system]
        if others:
            found[system] = min(others) / most
    return found
