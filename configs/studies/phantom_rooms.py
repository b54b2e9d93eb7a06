"""Register an open grid with and without phantom rooms for the study `rq5_learned`, small enough to be learned.

Both are the grid of `Gridverse/Memory-Empty-13x13-v0` in 7 x 7 cells. The phantom walls form 2 x 2 rooms, like the
walls of `Gridverse/Memory-FourRooms-7x7-v0`.
"""

import envs

OPEN = {"size": 7, "rooms": (2, 2)}
envs.register("Study/Memory-Empty-7x7-v0", envs.Entry("envs.gridverse.tasks:MemoryEmpty", OPEN))
envs.register(
    "Study/Memory-7x7-Hallucinated-v0", envs.Entry("envs.gridverse.tasks:MemoryEmpty", OPEN | {"phantom_rooms": (2, 2)})
)
