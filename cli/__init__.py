"""The command line: `easyscale launch`, `easyscale bench`. Imports neither TensorFlow, Keras nor mpi4py.

    main, group          the entry point, and how it finds its commands
    job, ending          runs mpirun: signals, exit code, the end of all ranks
    runtime, open_mpi, hydra, hosts    which mpirun there is, and the command line that it wants
    streams, output      what the ranks write: where it comes from, how it is shown
    worker               what mpirun starts once per rank; it starts the script

A new command is a new file in `commands/`.
"""
