# `make demo` and `make test` need Python 3.10 to 3.14 and nothing else: no MPI, no compiler.
#
# PYTHON=python3.12   the Python to use; by default the first of the supported ones that is found
# VENV=.venv          where everything is installed
#
# `make test-all` also runs what takes long: the tests marked `full`, which are all rows of what `make test` runs some of,
# and which install EasyScale for each other Python.
#
# `make test-slice N=k/20` runs the k-th of twenty parts of those.
#
# `make test-versions PART=k` runs one part of what is tested with other releases of Keras, TensorFlow, PyTorch and JAX, for
# any number k; `make test-all` runs all of them.
#
# `make fuzz` draws training scripts at random for MINUTES, from SEED on, and prints those that EasyScale trains otherwise;
# with BACKEND=torch or BACKEND=jax, of that backend of Keras.
#
# `make mutants` plants COUNT faults in EasyScale, one at a time, drawn from SEED on, and says which of them no test finds.
#
# `make bench` measures EasyScale beside others, which it installs into $(VENV)-bench.
#
# `make docs` makes the site of docs/, in build/site.
#
# `make keras-tests` runs Keras's own tests with EasyScale, and what they need, from $(VENV)-keras.

VENV ?= .venv
SUPPORTED = import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(firstword $(foreach python,python3 python3.13 python3.12 python3.11 python3.10 python3.14, \
	$(shell $(python) -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $(python))))
RUN = $(VENV)/bin/
SEED ?= 0
MINUTES ?= 10
BACKEND ?= tensorflow
N ?= 0/20
COUNT ?= 300
PART ?= 0
PIP = PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN)python -m pip install --quiet

# The MPI runtimes that are tested beside Open MPI, each in a small environment that sees all else of $(VENV).
# Intel's is for one kind of processor only.
MPIS = mpich $(if $(filter x86_64,$(shell uname -m)),impi-rt)
# The backends of Keras that are tested beside TensorFlow, each in such an environment.
BACKENDS = torch jax
# What reads the manifests and the Dockerfile of examples/kubernetes, in an environment that the tests ask.
SCHEMAS = dockerfile-parse kubeflow-trainer-api pyyaml
PACKAGES = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

# A rule's environment, with these packages beside all of $(VENV).
define BESIDE
$(RUN)python -m venv --clear $(@D)
$(subst $(RUN)python,$(@D)/bin/python,$(PIP)) $(1)
@echo "import site; site.addsitedir('$$($(RUN)python $(PACKAGES))')" >"$$($(@D)/bin/python $(PACKAGES))/venv.pth"
@touch $@
endef

.PHONY: demo test test-all test-slice test-versions lint types docs fuzz mutants bench keras-tests clean

demo: $(VENV)/.demo
	$(RUN)python examples/demo.py

test: $(VENV)/.test $(VENV)/docs/.done $(MPIS:%=$(VENV)/mpis/%/.done) $(BACKENDS:%=$(VENV)/backends/%/.done) \
		$(VENV)/kubernetes/.done lint
	KERAS_BACKEND=numpy $(VENV)/backends/jax/bin/python -m pytest --numprocesses 2 tests/numpy_backend
	$(RUN)pytest --numprocesses 3 --dist loadgroup

test-all: test
	$(RUN)pytest -m full --numprocesses 3 --dist loadgroup

test-slice: $(VENV)/.test
	$(RUN)pytest -m full --slice $(N) --numprocesses 3 --dist loadgroup

test-versions: $(VENV)/.test
	EASYSCALE_TESTS_PART=$(PART) $(RUN)pytest -m full -n 0 -s tests/versions

lint: $(VENV)/.test types
	$(RUN)ruff check .
	$(RUN)ruff format --check .

# `callbacks/` and `cli/` stand at the top and install inside the package, where mypy has to find them.
types: $(VENV)/.test
	@rm -rf $(VENV)/types && mkdir -p $(VENV)/types/easyscale
	@ln -s $(CURDIR)/easyscale/* $(CURDIR)/callbacks $(CURDIR)/cli $(VENV)/types/easyscale/
	MYPYPATH=$(VENV)/types $(RUN)mypy -p easyscale

docs: $(VENV)/docs/.done
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict
	@echo "The site is in build/site. To read it: python3 -m http.server --directory build/site"

fuzz: $(VENV)/.test
	PYTHONPATH=tests $(RUN)python -m fuzz --seed $(SEED) --minutes $(MINUTES) --backend $(BACKEND)

mutants: $(VENV)/.test $(BACKENDS:%=$(VENV)/backends/%/.done)
	PYTHONPATH=tests $(RUN)python -m mutants record
	PYTHONPATH=tests $(RUN)python -m mutants plant --count $(COUNT) --seed $(SEED)

bench: $(VENV)-bench/.done
	$(VENV)-bench/bin/python benchmarks/compare.py

keras-tests: $(VENV)-keras/.done
	$(VENV)-keras/bin/python benchmarks/keras_tests.py

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-keras build *.egg-info

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.14 was found. Install one, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c "import ensurepip" 2>/dev/null || \
		{ echo "This Python cannot make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)-bench/.done: $(VENV)/bin/python setup.cfg constraints.txt
	@echo "Installing EasyScale and the others, PyTorch among them, into $(VENV)-bench; this takes about 8 GB and some minutes."
	$(VENV)/bin/python -m venv $(VENV)-bench
	$(subst $(RUN)python,$(VENV)-bench/bin/python,$(PIP)) --editable '.[tensorflow,mpi,examples,plot,bench]'
	@touch $@

$(VENV)-keras/.done: $(VENV)/bin/python setup.cfg constraints.txt
	@echo "Installing EasyScale and what Keras's own tests need, JAX among it, into $(VENV)-keras; this takes some minutes."
	$(VENV)/bin/python -m venv $(VENV)-keras
	$(subst $(RUN)python,$(VENV)-keras/bin/python,$(PIP)) --editable '.[tensorflow,mpi,test,kerastests]'
	@touch $@

$(VENV)/.demo: $(VENV)/bin/python setup.cfg constraints.txt
	@echo "Installing EasyScale with TensorFlow and an MPI runtime into $(VENV); this takes a minute or two."
	$(PIP) --editable '.[tensorflow,mpi,examples]'
	@touch $@

$(VENV)/.test: $(VENV)/bin/python setup.cfg constraints.txt
	@echo "Installing EasyScale and what its tests need into $(VENV); this takes a minute or two."
	$(PIP) --editable '.[tensorflow,mpi,examples,plot,ray,test]'
	@touch $@

$(VENV)/docs/.done: $(VENV)/bin/python setup.cfg constraints.txt
	@echo "Installing what makes the site into $(VENV)/docs; this takes half a minute."
	$(RUN)python -m venv --clear $(@D)
	$(subst $(RUN)python,$(@D)/bin/python,$(PIP)) --editable '.[docs]'
	@touch $@

$(VENV)/mpis/%/.done: $(VENV)/.test
	$(call BESIDE,mpi4py $*)

$(VENV)/backends/%/.done: $(VENV)/.test
	$(call BESIDE,$*)

# One with other releases of what is in $(VENV), which is found behind it. What is there already is not installed again.
$(VENV)/versions/%/.done: tests/versions/%.txt $(VENV)/.test
	$(RUN)python -m venv --clear $(@D)
	@echo "import site; site.addsitedir('$$($(RUN)python $(PACKAGES))')" >"$$($(@D)/bin/python $(PACKAGES))/venv.pth"
	PIP_CONSTRAINT=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 $(@D)/bin/python -m pip install --quiet --requirement $<
	@touch $@

$(VENV)/kubernetes/.done: $(VENV)/.test
	$(call BESIDE,$(SCHEMAS))
