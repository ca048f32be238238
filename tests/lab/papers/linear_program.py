"""P1's reduction solved as printed: generalized shortest path as a linear program.

It serves as an independent check of :mod:`hierspec_lab.planning.dynamic`, which finds the same
plans hundreds of times faster; nothing else uses it.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from hierspec.planner.estimates import Chain
from hierspec_lab.planning.dynamic import Graph

_TIGHT = {
    "presolve": True,
    "dual_feasibility_tolerance": 1e-10,
    "primal_feasibility_tolerance": 1e-10,
}


def solve(graph: Graph) -> tuple[float, Chain]:
    """Return the lowest price a token in P1's graph, and the chain that has it.

    Minimise Σ_e f(e) c(e) over flows f ≥ 0 in which every vertex sends out what reaches it, and the
    source one unit more: Σ_out f − Σ_in μ f = 1[source] [P1 Definition 3.3, Table 2]. Vertices are
    the target (0), the states (i, t), and the lossy loops (i, L), which absorb what arrives. Unlike
    in P1 a level may be handed more than it asks for, and the target may decode plainly.
    """
    start, end, multiplier, cost = _edges(graph)
    edge = np.arange(len(start))
    vertices = int(end.max()) + 1
    balance = coo_array(
        (
            np.concatenate((np.ones(len(edge)), -multiplier)),
            (np.concatenate((start, end)), np.concatenate((edge, edge))),
        ),
        shape=(vertices, len(edge)),
    ).tocsr()  # a loop's two entries add up
    supply = np.zeros(vertices)
    supply[0] = 1.0
    solution = linprog(cost, A_eq=balance, b_eq=supply, method="highs-ds", options=_TIGHT)
    if not solution.success:
        raise RuntimeError(f"the linear program was not solved: {solution.message}")
    return float(solution.fun), _path(graph, start, end, np.asarray(solution.x))


def _edges(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end, multiplier, cost of every edge [P1 Table 2]; see :func:`_vertex`."""
    target, top = graph.estimates.target, graph.estimates.max_budget
    loops = 1 + target * top
    edges: list[tuple[int, int, float, float]] = [
        (0, loops + target, 1.0, graph.plain),  # plain decoding: straight into a loop
        (loops + target, loops + target, 0.5, 0.0),
    ]
    for i in range(target):
        edges.append((loops + i, loops + i, 0.5, 0.0))
        for t in range(1, top + 1):
            vertex = _vertex(i, t, top)
            edges.append((vertex, loops + i, 1.0, float(graph.draft[i, t])))
            share = 1.0 / max(float(graph.tokens[i, t]), 1.0)
            edges.append((0, vertex, share, share * float(graph.call[i, target, t])))
            for k in range(i):
                for length in range(1, top + 1):
                    gamma = float(graph.rounds[k, i, length, t])
                    price = gamma * float(graph.call[k, i, length])
                    edges.append((vertex, _vertex(k, length, top), gamma, price))
    columns = np.array([edge for edge in edges if np.isfinite(edge[3])]).T
    return columns[0].astype(int), columns[1].astype(int), columns[2], columns[3]


def _vertex(i: int, t: int, top: int) -> int:
    """Return the number of state (i, t)."""
    return 1 + i * top + t - 1


def _path(graph: Graph, start: np.ndarray, end: np.ndarray, flow: np.ndarray) -> Chain:
    """Follow the widest flow; where several are optimal any of them is [P1 Lemma 3.6]."""
    target, top = graph.estimates.target, graph.estimates.max_budget
    models, budgets, vertex = [target], [], 0
    while True:
        edges = np.flatnonzero(start == vertex)
        vertex = int(end[edges[flow[edges].argmax()]])
        if vertex > target * top:
            return Chain(tuple(models[::-1]), tuple(budgets[::-1]))
        i, t = divmod(vertex - 1, top)
        models.append(i)
        budgets.append(t + 1)
