"""Membership of elastic jobs, whose ranks may fail and be replaced.

membership            the ranks of a communicator, and what changes them; here for ranks that never change
elastic_membership    the same for an elastic job
members               agreement of the remaining ranks on the members
spares                processes that replace ranks; `standby` is the program that they run
departures            ranks that end before the others
mail                  the control messages that all of these send
ending                the end of a process that the others survive
"""
