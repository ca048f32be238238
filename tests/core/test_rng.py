"""Randomness by seed, sequence and position."""

from hierspec.core.rng import PhiloxRng


def test_noise_belongs_to_its_place():
    rng = PhiloxRng(7, 2)
    rng.take(5)
    some = rng.noise(9, 10).copy()
    assert (rng.noise(9, 100)[:10] == some).all(), "fewer are the beginning of more"
    for position in range(100):
        rng.noise(position, 10)
    assert (rng.noise(9, 10) == some).all()
    assert (PhiloxRng(7, 2).noise(9, 10) == some).all()
    others = [PhiloxRng(7, 3).noise(9, 10), PhiloxRng(8, 2).noise(9, 10), rng.noise(10, 10)]
    assert all((other != some).all() for other in others)
    fresh = PhiloxRng(7, 2)
    fresh.noise(0, 1000)
    assert (fresh.take(8)[5:] == rng.take(3)).all(), "what is counted is not touched"
