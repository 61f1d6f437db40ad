"""`easyscale.run`: a function on several workers, from Python or a notebook.

run         starts the job, and returns what the chief's function returns, or raises what a worker's has raised
options     the options of `easyscale launch` as arguments of a function, checked
calling     what is to be called: checked, and made something that can travel
outcome     what comes of it
folder      what this process and the workers leave each other in files: the function, its result, its failures
job         the processes of the launcher as this process sees them: shows what they write, interrupts them
guard       stands between: ends the launcher when this process is gone, and removes the folder then
worker      what each rank runs
"""
