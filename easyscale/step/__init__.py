"""What every backend has in common in a step: what workers tell each other, and what travels. NumPy only.

interfaces                  what updates, training and models ask of all workers
step_protocol, agreement    what workers do in turn, and what they tell each other before
gradients                   reduce, update, gather: what becomes of a step's gradients
gradient_exchange, route    the plan of a step: which gradients travel together, and what comes back
owned_parts, served         weights of which each worker, or each server, owns a part
equality, statistics        variables that are equal on all workers; moments of all workers' data together
shared, python_calls        what optimizers have in common; where steps call Python, and what a call has raised
background                  the thread that exchanges meanwhile
one_replica                 the model of a process that has one copy of it
batch_of_processes          what layers and losses ask of the batches of all workers
current_step                the step that is being traced
accumulation, random_state  gradients that wait for the optimizer's next update; the generators of a process
"""
