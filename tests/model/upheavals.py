"""What happens to the server, and many callers at once."""

from __future__ import annotations

import threading

from tests.model.changes import Changes
from tests.model.crowd import Crowd
from tests.model.host import Scene
from tests.model.kept_looks import settle as settle_list


class Upheavals(Changes):
    """Restarts, kills, crowds, deadlines, sources that begin to fail."""

    def weather(self, scene: Scene) -> None:
        self.backend.source.rate = self.rng.choice((0.0, 0.0, 0.0, 0.4))
        self.backend.paid.rate = self.rng.choice((0.0, 0.0, 0.4, 1.0))

    def restart(self, scene: Scene) -> None:
        self.backend.restart()
        for other in self.scenes:
            self.look.settle(other.state, thorough=True)
        for kept in self.lists:
            settle_list(self, kept, thorough=True)

    def crowd(self, scene: Scene) -> None:
        """Many callers of one session at once (H)."""
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(self.rng.choice((2, 4, 8)), self.rng.choice((1, 3)))
        self.backend.source.slow = self.rng.choice((0.0, 0.02))
        crowd.run(self.client, plans)
        self.backend.source.slow = 0.0
        self.aftermath(scene, crowd)

    def impatient(self, scene: Scene) -> None:
        """Deadlines that come in the middle of anything (W9, A5)."""
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(2, 3)
        self.backend.source.slow = 0.05
        crowd.run(self.client, plans, timeout=lambda: self.rng.choice((0.001, 0.003, 0.01, 0.03)))
        self.backend.source.slow = 0.0
        self.aftermath(scene, crowd)

    def kill(self, scene: Scene) -> None:
        """SIGKILL under callers; what was acknowledged is there, what was lost is asked for again (V10, W10)."""
        if not self.backend.separate:
            return
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(self.rng.choice((1, 3)), 4)
        delay = self.rng.random() * 0.06
        killer = threading.Timer(delay, self.backend.kill)
        killer.start()
        crowd.run(self.client, plans)
        killer.join()
        self.backend.start()
        self.aftermath(scene, crowd)
        for other in self.scenes:
            self.look.settle(other.state, thorough=True)
        for kept in self.lists:
            settle_list(self, kept, thorough=True)

    def aftermath(self, scene: Scene, crowd: Crowd) -> None:
        crowd.ask_again(self.client)
        crowd.settle()
        scene.repeats = []
        scene.state.cools_until, scene.state.fruitless = 0.0, 0
        self.counts["calls of crowds"] += len(crowd.sent)
