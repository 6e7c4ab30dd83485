"""Prices of accelerators, and the price book of a team."""

from datetime import date
from typing import Annotated

from pydantic import Field, model_validator

from shardwise import catalog
from shardwise.config.base import NO_FLAG, ConfigBase

_CHOSEN = ("provider", "region", "term")


class Price(ConfigBase):
    """What an accelerator costs to rent."""

    usd_per_accelerator_hour: Annotated[float, Field(ge=1e-3, le=1e6), NO_FLAG]
    """From a tenth of a cent, less than its power costs, to what accelerators are bought for."""
    provider: str = ""
    region: str = ""
    term: str = ""
    """Such as on demand, spot, 1 year reserved."""
    as_of: date
    source: str = Field(min_length=1)

    @property
    def in_words(self) -> str:
        """The price and what it depends on: "$2.1 per GPU-hour (Lambda, on demand, 2026-09-20)"."""
        words = [getattr(self, name) for name in _CHOSEN]
        dated = [self.as_of.isoformat()] if self.as_of > date.min else []
        known = ", ".join(word for word in (*words, *dated) if word) or self.source
        return f"${self.usd_per_accelerator_hour:.4g} per GPU-hour ({known})"


class BookPrice(Price):
    """A price of a price book."""

    system: str
    """Catalog name, or the name that a file of a system has."""


class PriceBook(ConfigBase):
    """Prices in place of those of the catalog; of several for a system, the selected one."""

    provider: str | None = None
    """Selects prices of a provider; None: of all. Likewise below."""
    region: str | None = None
    term: str | None = None
    prices: tuple[BookPrice, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_for_each_system(self) -> "PriceBook":
        found: dict[str, int] = {}
        for place, one in enumerate(self.prices):
            if self._selects(one) and found.setdefault(_name(one.system), place) != place:
                other = found[_name(one.system)]
                select = f"select one by {', '.join(_CHOSEN)} at the top of the file"
                problem = f"{one.system} has a price in prices[{other}], too; {select}"
                raise ValueError(f"prices[{place}]: {problem}")
        return self

    def _selects(self, one: BookPrice) -> bool:
        return all(getattr(self, n) in (None, getattr(one, n)) for n in _CHOSEN)

    def of(self, system: str) -> Price | None:
        """Return the price of a system, if the book has one that is selected."""
        for one in self.prices:
            if self._selects(one) and _name(one.system) == _name(system):
                return Price(**{name: getattr(one, name) for name in Price.model_fields})
        return None


def _name(called: str) -> str:
    """The catalog entry that a name means, or the name itself."""
    path = catalog.find("systems", called)
    return called if path is None else path.stem
