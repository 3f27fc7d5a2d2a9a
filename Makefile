# Every task of a developer is a target, and CI runs the same targets. go.mod and tests/requirements.txt pin the tools.

PYTHON3 ?= python3
PYTHON := .venv/bin/python
# Process tests wait for a part of their time, so three files run at the same time on two cores.
PARALLEL ?= 3
# One test of each kind: elements, epochs, resume, cache, streams of a graph, orders of steps, faults.
CHECKED := tests/e2e/test_elements.py::test_elements_arrive_unchanged tests/e2e/test_epochs.py::test_every_epoch_is_complete \
  tests/e2e/test_resume.py::test_a_repeated_dataset_resumes_in_its_pass tests/e2e/test_cache.py::test_another_job_over_the_same_files_reads_the_cache \
  tests/graph/test_identity.py::test_sharding_policies_keep_elements_and_batches \
  tests/graph/test_adversaries.py::test_no_proposed_order_changes_the_dataset tests/faults/test_thesis.py::test_failover_a_standby_gets_every_stream
# The marks of the tests that `make test` runs.
QUICK := not slow and not soak
PROCESS_TESTS := tests --ignore tests/repo --ignore tests/docs
# process_tests runs the tests that drive real processes and have these marks, so many files at a time.
define process_tests
	@rm -f .pytest_cache/v/cache/lastfailed
	$(PYTHON) -m pytest -q -rs -n $(2) --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5 -m "$(1)" $(PROCESS_TESTS) || { test $$? = 1 -a -n "$(RERUN)" && \
	  echo "FLAKY unless they fail again: the failed tests run once more, alone" && \
	  $(PYTHON) -m pytest -q -rs --last-failed --last-failed-no-failures none -m "$(1)" $(PROCESS_TESTS); }
endef
# CI sets it: a test that fails beside others and passes alone does not fail the run. Its failure stays in the output.
RERUN ?=
SIZE ?= medium
FUZZTIME ?= 20s
ROW ?=
# Other targets that `make slow` runs while its process tests wait.
BESIDE ?=
SECONDS ?= 600
FULL ?=
SEED ?=
SEEDS ?= 10000
CASES ?= 5000
FIRST ?= 1
# The experiments of the predecessor, one test each.
EXPERIMENTS := nofail getfail putfail failover recover killall five-epochs
# Three packages at a time keep two cores busy, because some tests wait. `make lint` vets all packages, so tests do not vet
# them again. Without the data of debuggers, test programs link in half the time.
GOTEST := test -p 3 -vet=off -ldflags=-w -timeout 15m
# These directories in place of ./..., which would include generated code under build/.
GO_DIRS := benchmarks bindings native policies proto service tests
# Packages whose tests are too slow for `make check`: workers run TensorFlow, and the simulations run many clusters and jobs.
SLOW_GO = $(filter ./service/worker% ./native/tf% ./native/op% ./tests/sim% ./policies/sim%,$(GO_PACKAGES))
# `make race` runs the packages that start goroutines, in their code or in their tests. It leaves out the tests of the
# dispatcher's program, because the program that they start is built without the detector.
GOROUTINE := (^|[[:space:]])go (func|[A-Za-z_.]+[(])|[.]Go[(]
CONCURRENT_GO = $(filter-out ./service/cmd/pecan-dispatcher,$(filter $(call directories,git grep -lE '$(GOROUTINE)' -- '*.go'),$(GO_PACKAGES)))
# Packages with tests that -short leaves out. `make slow` runs these.
LONG_GO = $(filter $(call directories,git grep -l 'testing[.]Short()' -- '*_test.go'),$(GO_PACKAGES))
# directories has the directories of the files that a command lists.
directories = $(shell $(1) | xargs -n1 dirname | sort -u | sed 's,^,./,')
# The longest packages come first. Each runs on one core, and would run alone if it came last.
LONGEST_GO := ./tests/sim ./service/worker ./service/dispatcher/core ./service/dispatcher ./native/client
GO_PACKAGES = $(LONGEST_GO) $(filter-out $(LONGEST_GO),$(ALL_GO))
# tests/k8s is a module of its own.
ALL_GO = $(call directories,git ls-files $(addsuffix /**.go,$(GO_DIRS)) $(addsuffix /*.go,$(GO_DIRS)) ':!tests/k8s/')
PY_DIRS := bindings benchmarks docs examples proto python setup.py tests wheels
LINKED := build/native/tensorflow/stamp
TENSORFLOW = $(shell $(PYTHON) -c 'import importlib.util as u; print(u.find_spec("tensorflow").submodule_search_locations[0])')
# Test programs load TensorFlow's libraries from the installed wheel.
# With -trimpath, checks and tests share compiled packages with `make build`, which needs the flag for the wheel.
WITH_TENSORFLOW = GOFLAGS="$$(go env GOFLAGS) -trimpath" LD_LIBRARY_PATH=$(TENSORFLOW)

export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo check mutate soak test test-images test-k8s test-go test-python test-repo e2e slow slow-processes slow-go faults $(EXPERIMENTS) sim orders race damage asan fuzz lint format generate build wheel bench bench-faults bench-recovery bench-orders bench-scale bench-cache bench-store bench-fleet simulate docs packages diagrams clean

help: ## Show this list
	@echo "Pecan. Usage: make <target>"
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/' | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

demo: build ## Train a small model on real photographs with Pecan and without it (SIZE=small, medium or large)
	$(PYTHON) examples/photographs/demo.py --size $(SIZE)

check: lint build ## Run the quick checks: lint, rules, quick Go tests, one process test of each kind (2 minutes)
	$(PYTHON) -m pytest -q tests/repo -k "not generated_files"
	$(WITH_TENSORFLOW) go $(GOTEST) -short $(filter-out $(SLOW_GO),$(GO_PACKAGES))
	$(PYTHON) -m pytest -q -rs -x -n $(PARALLEL) --dist loadfile --no-loadscope-reorder -m "$(QUICK)" $(CHECKED)

test: test-repo test-go test-python e2e ## Run every test but the slow ones (12 minutes; the code of the guides runs in `make docs`)

test-repo: .venv/ready $(LINKED) ## Check the rules of the repository
	$(PYTHON) -m pytest -q -rs tests/repo

test-go: .venv/ready $(LINKED) ## Run the quick Go tests
	$(WITH_TENSORFLOW) go $(GOTEST) -short $(GO_PACKAGES)

test-python: build ## Run the tests of the Python package and of the wheel
	$(PYTHON) -m pytest -q -rs python wheels

e2e: build ## Run the quick tests that drive real processes (PARALLEL=3 files at a time; RERUN=1: failed ones again, alone)
	$(call process_tests,$(QUICK),$(PARALLEL))

slow: build ## Run the tests that `make test` leaves out: slow process tests, Go tests without -short, 200 seeds of the simulation, its mutants
	$(MAKE) -k -j 2 slow-processes slow-go

slow-processes:
	$(call process_tests,slow,2)

# The simulation has a clock of its own, so it computes at the lowest priority while the process tests wait. The other Go tests
# and the targets of BESIDE follow at the same priority.
slow-go:
	$(WITH_TENSORFLOW) nice -n 19 go $(GOTEST) -timeout 1h ./tests/sim -seeds 200 -mutants
	$(WITH_TENSORFLOW) nice -n 19 go $(GOTEST) -timeout 1h $(filter-out ./tests/sim,$(LONG_GO))
	$(if $(BESIDE),nice -n 19 $(MAKE) $(BESIDE))

faults: build ## Run the fault scenarios (FULL=1: all sizes, SEED=n: repeat a run), or one: make nofail, getfail, putfail, failover, recover, killall, five-epochs
	PECAN_FAULTS_FULL=$(FULL) $(PYTHON) -m pytest -q -rs tests/faults $(if $(SEED),--seed $(SEED))

$(EXPERIMENTS): build
	PECAN_FAULTS_FULL=$(FULL) $(PYTHON) -m pytest -q -rs tests/faults/test_thesis.py -k test_$(subst -,_,$@) $(if $(SEED),--seed $(SEED))

test-k8s: build ## Run the chart on a Kubernetes control plane that is built from its Go modules (needs root; RUN=name for one test)
	nice -n 15 tests/k8s/run.sh $(if $(RUN),-test.run $(RUN))

test-images: ## Build the container images with buildah in chroots, and run a service of them (needs root)
	nice -n 19 tests/images/run.sh

soak: build ## Run the tests for rare bugs, for an hour or more
	PECAN_SOAK=1 PECAN_FAULTS_FULL=1 PECAN_RANDOM_PIPELINES=500 PECAN_RANDOM_ORDERS=200 PECAN_RECREATIONS=1000 PECAN_DATASETS=10000 PECAN_CLOSINGS=50 \
	  $(PYTHON) -m pytest -q -rs tests/e2e tests/graph tests/faults

mutate: .venv/ready $(LINKED) ## Break each guard of AutoOrder, and guards of AutoPlacement and its search, in turn, and expect its test to fail (6 minutes)
	$(PYTHON) tests/mutate.py

damage: ## Flip every bit of a small dispatcher store, and 10,000 random bits of a large one
	go test ./service/store -run TestD2 -count 1 -v -timeout 60m -stride 1 -flips 10000

sim: .venv/ready $(LINKED) ## Simulate SEEDS random clusters with random faults, starting at seed FIRST
	$(WITH_TENSORFLOW) go test -timeout 24h ./tests/sim -run Simulation -seeds $(SEEDS) -first $(FIRST)

orders: .venv/ready ## Reorder CASES random pipelines by random measurements, starting at seed FIRST, and compare their elements
	PECAN_RANDOM_ORDERS=$(CASES) PECAN_RANDOM_SEED=$(FIRST) $(PYTHON) -m pytest -q -rs -n $(PARALLEL) -o tmp_path_retention_policy=failed \
	  tests/graph/test_random_proposals.py

race: .venv/ready $(LINKED) ## Run the Go tests of packages with goroutines under the race detector, without their long computations
	$(WITH_TENSORFLOW) go $(GOTEST) -race -short $(CONCURRENT_GO)

asan: .venv/ready ## Run the code between Go and C under AddressSanitizer, in Go and in Python with TensorFlow
	$(PYTHON) bindings/asan.py

fuzz: .venv/ready $(LINKED) ## Fuzz every parser of external bytes for FUZZTIME each, two at a time
	@git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed -E 's,/[^/]*:func , ,' | sort -u | \
	  FUZZTIME=$(FUZZTIME) $(WITH_TENSORFLOW) xargs -P 2 -n 2 tests/fuzz.sh

lint: .venv/ready $(LINKED) ## Check formatting, vet, staticcheck, ruff and types
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); test -z "$$unformatted" || { echo "gofmt these: $$unformatted"; exit 1; }
	$(WITH_TENSORFLOW) go vet $(GO_PACKAGES)
	$(WITH_TENSORFLOW) go tool staticcheck $(GO_PACKAGES)
	.venv/bin/ruff check $(PY_DIRS)
	.venv/bin/mypy python/pecan

format: .venv/ready ## Format the Go code and sort the Python imports
	git ls-files '*.go' | xargs gofmt -w
	.venv/bin/ruff check --fix --select I $(PY_DIRS)

generate: .venv/ready ## Write the generated files again from their sources
	$(PYTHON) proto/generate.py
	$(PYTHON) service/graph/ops/genops.py

build: .venv/ready ## Build the shared object and the three programs into python/pecan
	$(PYTHON) bindings/build.py

wheel: .venv/ready ## Build the wheel into dist/
	rm -rf dist
	.venv/bin/pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist
	@ls -l dist

bench: build ## Measure against tf.data service and write docs/benchmarks (ROW=name for one row, SECONDS of the memory run)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --seconds $(SECONDS) $(if $(ROW),--row $(ROW))

bench-faults: build ## Measure the cost of faults and write docs/benchmarks/faults.md (8 minutes)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --page faults

bench-recovery: build ## Measure the cost of checkpoints and caches and write docs/benchmarks/recovery.md (6 minutes)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --page recovery

bench-orders: build ## Measure the gains of AutoOrder and write docs/benchmarks/orders.md (12 minutes)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --page orders

bench-scale: build ## Measure small datasets and one job over many workers, and write docs/benchmarks/scale.md (10 minutes)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --page scale

bench-cache: build ## Measure what automatic caches gain and cost, and write docs/benchmarks/cache.md and .svg (20 minutes)
	$(WITH_TENSORFLOW) $(PYTHON) benchmarks/bench.py --page cache

simulate: .venv/ready ## Simulate JOBS jobs (200) of each kind with every policy for workers, and write docs/benchmarks/placement.md and .svg (LOG=file.csv for the event log)
	go run ./benchmarks/simulate --seeds $(or $(JOBS),200) --log $(or $(LOG),build/simulate/decisions.csv) --page docs/benchmarks

bench-store: ## Measure how long the dispatcher's store takes to open and to replay a million records
	go test ./service/dispatcher -run '^$$' -bench BenchmarkReplay -benchtime 3x -timeout 30m

bench-fleet: ## Measure the decisions of a dispatcher with 10,000 workers and 1,000 jobs (3 minutes)
	go test ./service/dispatcher/core -run '^$$' -bench BenchmarkFleet -benchtime 10x -timeout 30m -v
	go test ./service/dispatcher/placing -run '^$$' -bench BenchmarkDecide -benchtime 1x -timeout 30m

docs: build .venv/docs-ready ## Build the site into build/docs: run the guides' code and the notebooks, check links, warnings are errors
	$(PYTHON) -m pytest -q -n $(PARALLEL) tests/docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict

packages: ## Write the table of packages again (docs/packages.md)
	$(PYTHON3) docs/site/packages.py

diagrams: .venv/ready ## Draw the diagrams of docs/diagrams again (needs Graphviz)
	$(PYTHON) docs/diagrams/draw.py

clean: ## Remove build results; the records of the demo and .venv stay
	rm -rf build dist python/pecan/_native python/pecan/_bin

.venv/ready: tests/requirements.txt
	$(PYTHON3) -m venv .venv
	.venv/bin/pip install --quiet --requirement tests/requirements.txt
	@echo "$(CURDIR)/python" > "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pecan-in-place.pth"
	@touch $@

.venv/docs-ready: .venv/ready docs/requirements.txt
	.venv/bin/pip install --quiet --requirement docs/requirements.txt
	@touch $@

$(LINKED): .venv/ready bindings/build.py
	@$(PYTHON) bindings/build.py --only links
	@touch $@
