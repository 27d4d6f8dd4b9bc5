"""Quantiles of bootstrap resamples: one walk along the values in order for each resample."""

from __future__ import annotations

from .jit import Floats, Longs, jit


@jit
def first_beyond(group: Longs, drawn: Longs, wanted: Floats, out: Longs) -> None:
    """out[b] = the first i at which drawn[b, group[0]] + ... + drawn[b, group[i]] > wanted[b].

    group int64[n]: of the values in rising order; drawn int64[resamples, groups]; 0 where none is.
    """
    for b in range(drawn.shape[0]):
        out[b] = 0
        mass = 0
        for i in range(group.size):
            mass += drawn[b, group[i]]
            if mass > wanted[b]:
                out[b] = i
                break
