"""4.3, 4.5 over a real session, where it is at hand: projections against 484 counts of a provider."""

import pytest

from bench.g17_estimates import DATA, GOALS, run


@pytest.mark.skipif(not DATA.exists(), reason="the recorded session is not part of the checkout")
def test_4_5_projections_of_a_real_session_are_as_close_as_they_should_be() -> None:
    found = run()["errors"]
    assert found["product"]["readings"] > 400
    for name, goal in GOALS.items():
        assert found["product"][name] <= goal
        assert all(found["product"][name] < peer[name] for peer in found.values() if peer is not found["product"])
