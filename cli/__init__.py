"""The command line. Imports neither TensorFlow, Keras nor mpi4py; code that runs on ranks is in `easyscale`.

    main, group          the entry point, and discovery of commands
    commands             one file per command: its options and their validation
    launch, bench, verify, plan, suite, doctor    the implementation of each command
    options, config      options shared by several commands; options from a file
    reports              progress bars, tables, JSON files and plots

A new command is a new file in `commands/`.
"""
