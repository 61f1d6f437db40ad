"""Workers on the nodes of a Ray cluster, as `easyscale.run` has them on this host.

                    this process
                         |  the function, pickled
         ---------------- Ray ----------------
         |                                   |
    Node, on a.b.c.1                    Node, on a.b.c.2         one actor a node, in a placement group
         |  easyscale launch                 |
      mpirun ------- agent ----- Ray ----> daemon of mpirun
       |    |                             |    |
    rank 0  rank 1                     rank 2  rank 3            which exchange gradients by MPI, not by Ray

on_nodes    `run`, which one calls
hosts       the placement group, and an actor on each of its nodes
node        the actor: starts the launcher, or what mpirun wants to have started on its node
agent       what mpirun starts in the place of ssh
"""

from easyscale.integrations.ray.on_nodes import run

__all__ = ["run"]
