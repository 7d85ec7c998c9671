"""A kind of piece from outside: one model for each two neighbouring symbols."""

from itertools import pairwise

from trainer.job.pieces.piece import Kind, models_of


def pieces(job, series, timeframe):
    made = []
    for pair in pairwise(series):
        stem = "+".join(one.symbol for one in pair)
        made += models_of(job, pair, kind="pair", stem=stem, timeframe=timeframe)
    return tuple(made)


PAIRS = Kind(name="pair", takes=lambda job: job.name == "pairs", pieces=pieces, one_split=True)
