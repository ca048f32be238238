"""Experiments that decide whether the papers' claims hold, with intervals and sequential stopping.

:mod:`.sequential` holds the statistics, :mod:`.families` and :mod:`.experiments` the models and
what is run on them. :mod:`.measuring` writes the runs to files that can be resumed, :mod:`.files`
says what is in such a file, :mod:`.recorded` reads reproductions as such files, and :mod:`.claims`
computes verdicts from them. :mod:`.items` lists every table, figure and algorithm of the five
papers, and :mod:`.page` writes the page of verdicts.
"""
