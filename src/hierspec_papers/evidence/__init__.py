"""Experiments that decide what the papers claim, with intervals and sequential stopping.

:mod:`.sequential` holds the statistics, :mod:`.families` and :mod:`.experiments` what is run on
which models, :mod:`.measuring` runs it into files that can be resumed, :mod:`.recorded` reads
reproductions as such files, :mod:`.claims` reads verdicts off them, :mod:`.items` lists every
table, figure and algorithm of the five papers, and :mod:`.page` writes them down.
"""
