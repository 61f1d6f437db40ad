"""What each Python of the tests runs first: TensorFlow and Keras are imported sooner, small models count as large.

Keras imports scikit-learn, with SciPy's statistics, and Matplotlib if they are installed: a third of the time that a
rank takes to start. Scripts that import them have them. An import of TensorFlow makes some 450,000 objects that stay:
to look for garbage among them, while it lasts and at the end, is a third of what is left.
"""

import functools
import gc
import importlib.machinery
import os
import sys

_NOT_FOR_KERAS = ("sklearn", "matplotlib")


class NotForKeras:
    """A finder that tells Keras, and nobody else, that a package is not installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in _NOT_FOR_KERAS:
            return
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None and "/keras/src/" in frame.f_code.co_filename:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class WithoutCollecting:
    """A finder of TensorFlow and Keras: in what their import makes nobody looks for garbage."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("tensorflow", "keras"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(_execute, spec.loader.exec_module)
        return spec


def _execute(execute, module):
    is_outermost = gc.isenabled()  # Keras imports TensorFlow
    gc.disable()
    try:
        execute(module)
    finally:
        if is_outermost:
            gc.freeze()
            gc.enable()


class SmallModelsAreDivided:
    """A finder of what chooses an update: the small models of tests are divided over workers as large ones are."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "easyscale.update.choosing":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_set(module):
            execute(module)
            module.SHARDED_FROM = 0

        spec.loader.exec_module = execute_and_set
        return spec


sys.meta_path[:0] = [NotForKeras, WithoutCollecting, SmallModelsAreDivided]

if os.environ.get("COVERAGE_PROCESS_START"):  # see `tests/mutants`
    import coverage

    coverage.process_startup()
