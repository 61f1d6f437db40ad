"""`easyscale.run`: calls a function on several workers, from Python or a notebook.

run         starts the job; returns the chief's result, or raises a worker's exception
options     the options of `easyscale launch` as keyword arguments, checked
calling     the call: checks and pickles the function and its arguments
outcome     the result: the chief's return value, or an exception
folder      files that this process and the workers exchange: the function, its result, its failures
job         the launcher's processes: shows their output, interrupts them
guard       a process in between: if this process is gone, it ends the launcher and removes the folder
worker      each rank's entry point
"""
