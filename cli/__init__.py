"""The command line. Imports neither TensorFlow, Keras nor mpi4py; the ranks' side of a command is in `easyscale`.

    main, group          the entry point, and how it finds its commands
    commands             one file a command: its options, and what is wrong with them
    launch, bench, verify, plan, suite    a room for what each does
    options              what options of several commands may be
    reports              progress, tables, files and plots

A new command is a new file in `commands/`.
"""
