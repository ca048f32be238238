"""Windows by themselves: where a draft stops, and what is remembered from round to round."""

from hierspec.core.windows import Counting, Counts, EntropyWindow


def test_counting_is_transparent():
    inner, window = EntropyWindow(), Counting(EntropyWindow())
    assert (window.signal, window.fixed_length) == ("entropy", False)
    state = window.observe(window.init(), (0.5, 2.0, 1.0), 1)
    assert window.counts(state) == Counts(drafts=1, drafted=3, accepted=1, rejected=1)
    own = inner.observe(inner.init(), (0.5, 2.0, 1.0), 1)
    assert window.clear_counts(state) == (*Counts(), *own)
    for value in (1.9, 2.1):
        assert window.stops((value,), state) == inner.stops((value,), own)
    assert window.counts(window.observe(state, (1.0,), 1)) == Counts(2, 4, 2, 1)
