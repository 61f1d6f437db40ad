"""The command line: `easyscale launch`, `bench` and `verify`. Imports neither TensorFlow, Keras nor mpi4py.

    main, group          the entry point, and how it finds its commands
    job, ending          runs mpirun: signals, exit code, the end of all ranks
    leftovers            ends what ranks have started and left behind
    loopback             has mpirun listen to this host alone
    shared_memory        whether /dev/shm has room for what MPI keeps there
    janitor              cleans up behind a launcher that is killed
    beginning            who has begun with MPI, for which spares wait
    watch, stalls        on each host, and here: who waits for whom too long, and where that one is
    runtime, open_mpi, hydra, hosts    which mpirun there is, and the command line that it wants
    streams, output      what the ranks write: where it comes from, how it is shown
    worker               what mpirun starts once per rank; it starts the script
    script               the user's script: whether it can be started, and what its ranks are told
    verify_runs, captured       starts the two runs of `easyscale verify`, and keeps what they write to stderr
    verify_script, recorder     its ranks' side: runs the script, and records its first steps
    recorded, verdict, hints    reads the recordings, compares them, and says what may be wrong

A new command is a new file in `commands/`.
"""
