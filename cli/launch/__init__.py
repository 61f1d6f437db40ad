"""`easyscale launch`: starts the ranks, shows their output, watches them, and ends them.

planning, plan       validation of the command's options; the resulting launch plan
script               checks of the user's script, and the settings of its ranks
hosts, reaching      parsing of hosts and slots; finding the hosts that answer
allocations/         hosts assigned by a cluster's scheduler
runtimes/            detection of the installed mpirun, and its command line
job                  runs mpirun, and reads what it and the ranks write, until it exits
mpirun, mpirun_output       its process; separates forwarded lines of ranks from its own
signals, shutdown    signals to the launcher; ending a job, by force if necessary
supervisor, ending   tracks the ranks and ends the job if it cannot go on; finds the rank that caused the end
membership, beginning       the members of the job; MPI startup of the ranks, and the spares that wait for it
messages             messages from a rank's worker to the launcher
streams, output, logs       the ranks' output: reading it, showing it, writing it to files
rendezvous           environment variables for scripts written for other tools
watch, stalls        stall detection: on each host, and in the launcher
worker               the process that mpirun starts for each rank; it starts the script
containers           limits of this process's control group
limits               checks that this process may start others
leftovers            ends processes that ranks have left behind
loopback             lets only this user connect to mpirun
shared_memory        checks that /dev/shm has room for MPI
janitor              cleans up after a launcher that was killed
"""
