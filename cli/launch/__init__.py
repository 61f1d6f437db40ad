"""`easyscale launch`: starts the ranks, shows what they write, watches them, and ends them all.

planning, plan       the options of the command, checked; what they start
script               the user's script: whether it can be started, and what its ranks are told
hosts                which hosts run how many ranks
runtimes/            which mpirun there is, and the command line that it wants
job                  runs mpirun, and reads what it and the ranks write, until the exit code
mpirun, mpirun_output       its process; which of its lines are those of ranks
signals, shutdown    signals to the launcher; how a job is asked to end, and killed when it does not
supervisor, ending   who has begun, joined and ended, and whether the job goes on; which rank is why it does not
membership, beginning       who takes part; who has begun with MPI, and for whom spares wait
messages             what a rank's worker says of it to the launcher
streams, output, logs       what the ranks write: where it comes from, how it is shown, files of it
rendezvous           the variables that scripts written for other tools look for
watch, stalls        on each host, and here: who waits for whom too long, and where that one is
worker               what mpirun starts once per rank; it starts the script
containers           what the control group of this process may have
limits               whether this process may start others at all
leftovers            ends what ranks have started and left behind
loopback             lets nobody but this user connect to mpirun
shared_memory        whether /dev/shm has room for what MPI keeps there
janitor              cleans up behind a launcher that is killed
"""
