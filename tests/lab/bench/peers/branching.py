"""What random numbers are asked for is answered with every possibility: the law itself."""

from collections import defaultdict

import torch


class Branches:
    """Every path of a program through ``torch.multinomial``, ``rand_like`` and ``rand``."""

    def __init__(self, patch):
        patch.setattr(torch, "multinomial", self.multinomial)
        patch.setattr(torch, "rand_like", self.rand_like)
        patch.setattr(torch, "rand", lambda *size, **kwargs: Uniform.of(self))

    def law(self, program):
        """{what the program returns: probability}."""
        out, self.path, paths = defaultdict(float), [], 0
        while True:
            self.step, self.weight = 0, 1.0
            out[program()] += self.weight
            paths += 1
            assert paths < 5000
            while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
                self.path.pop()
            if not self.path:
                return dict(out)
            self.path[-1] = (self.path[-1][0] + 1, self.path[-1][1])

    def choose(self, weights):
        """Which of the possible indices this path takes."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        if self.step == len(self.path):
            self.path.append((0, len(possible)))
        chosen = possible[self.path[self.step][0]]
        self.step += 1
        self.weight *= weights[chosen]
        return chosen

    def multinomial(self, probs, num_samples=1, **kwargs):
        rows = probs.double().reshape(-1, probs.shape[-1])
        if not bool(torch.isfinite(rows).all()):
            raise RuntimeError("probability tensor contains nan")
        drawn = [self.choose((row / row.sum()).tolist()) for row in rows]
        return torch.tensor(drawn).reshape(*probs.shape[:-1], 1)

    def below(self, bound):
        """Whether a uniform number is."""
        share = min(1.0, max(0.0, float(bound))) if bound == bound else 0.0
        return self.choose([1 - share, share]) == 1

    def rand_like(self, ratios):
        kept = [self.below(ratio) for ratio in ratios.flatten()]
        return torch.tensor([0.0 if one else 2.0 for one in kept]).reshape(ratios.shape)


class Uniform(torch.Tensor):
    """One uniform number, decided when it is compared, on either side."""

    @classmethod
    def of(cls, branches):
        out = torch.zeros(1).as_subclass(cls)
        out.branches = branches
        return out

    def __lt__(self, bound):
        return self.branches.below(bound)
