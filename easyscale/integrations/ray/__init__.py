"""Workers on the nodes of a Ray cluster: the counterpart of `easyscale.run`, whose workers run on this host.

                    this process
                         |  the function, pickled
         ---------------- Ray ----------------
         |                                   |
    Node, on a.b.c.1                    Node, on a.b.c.2         one actor a node, in a placement group
         |  easyscale launch                 |
      mpirun ------- agent ----- Ray ----> daemon of mpirun
       |    |                             |    |
    rank 0  rank 1                     rank 2  rank 3            exchange gradients by MPI, not by Ray

on_nodes    `run`, the public function
hosts       the placement group, with an actor on each of its nodes
node        the actor: starts the launcher, or mpirun's command for its node
agent       the program that mpirun starts in place of ssh
"""

from easyscale.integrations.ray.on_nodes import run

__all__ = ["run"]
