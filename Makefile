# Every target does its own set-up: scripts/setup.sh makes .venv, once for each change of pyproject.toml or requirements/.
# PYTHON=python3.12 chooses the interpreter, ARGS="..." is handed to the tool that is run. WORKERS=0 runs the tests in one
# process. They wait for much of their time, so four of them keep two cores busy; each computes for six seconds to find the tests.

BIN := .venv/bin
WORKERS := 4

# The tests start hundreds of programs. Each would compile the package anew where no bytecode is kept, and the standard library
# and all that is installed, too, where it is kept elsewhere than beside the sources.
PYTEST := env -u PYTHONDONTWRITEBYTECODE -u PYTHONPYCACHEPREFIX $(BIN)/python -m pytest

# What shows that each kind of lock, each kind of client and each topology works with a version of redis-py.
KINDS := tests/lock_types/test_parameters.py tests/redis_lock tests/redis/test_clients.py tests/redis/test_lock.py \
	tests/redis/test_handoff.py tests/redis/test_many.py tests/locks/test_read_write.py \
	tests/locks/test_semaphore.py tests/locks/test_multi.py tests/locks/test_reentrant.py tests/quorum/test_quorum.py \
	tests/topology/test_cluster.py tests/topology/test_sentinel.py

# It takes the packages of the first python3 in the PATH, and this one from the folder of the checkout.
PYRIGHT = PATH=$(abspath $(BIN)):$$PATH PYTHONPATH=$(CURDIR) $(BIN)/basedpyright

# Without its notice about the future of MkDocs. The build fetches nothing.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest test-all fuzz threads every-place simulate simulate-contract mutants lint docs docs-serve package audit lock bench bench-peers bench-targets clean setup-demo setup-dev setup-oldest setup-redis setup-databases

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
	@echo '  PYTHON=python3.12 make test    another interpreter'
	@echo '  make test ARGS="-k wheel -x"   arguments for the tool'

demo: setup-demo ## show the library at work; needs no Redis server
	$(BIN)/wheel-lock demo $(ARGS)

test: setup-dev setup-redis setup-databases ## run the tests against real Redis servers
	$(PYTEST) -n $(WORKERS) --dist loadgroup --max-worker-restart 0 --benchmark-disable $(ARGS)

test-oldest: setup-oldest setup-redis ## run the tests of the kinds of locks with the oldest supported redis-py
	$(subst .venv,.venv-oldest,$(PYTEST)) -n $(WORKERS) --dist loadgroup --max-worker-restart 0 --benchmark-disable $(or $(ARGS),$(KINDS))

test-all: setup-dev setup-redis setup-databases ## the same on every Python of this machine, with the oldest and the newest redis-py: half an hour
	WORKERS=$(WORKERS) $(BIN)/python scripts/test_all.py $(ARGS)

fuzz: setup-dev ## send FUZZ_REPLIES (200000) hostile replies of each form; FUZZ_SEED chooses others
	FUZZ_REPLIES=$${FUZZ_REPLIES:-200000} $(PYTEST) -n $(WORKERS) -o faulthandler_timeout=0 tests/hostile $(ARGS)

threads: setup-dev ## RUNS (2000) schedules of each kind for threads that meet, drawn by SEED, or anew
	THREADS_RUNS=$(or $(RUNS),2000) $(if $(SEED),THREADS_SEED=$(SEED)) $(PYTEST) -n $(WORKERS) -o faulthandler_timeout=0 tests/threads_ $(ARGS)

every-place: setup-dev setup-redis ## raise an exception at every place of each scene; make test does it at some places, drawn anew
	EVERY_PLACE=1 $(PYTEST) -n $(WORKERS) -o faulthandler_timeout=0 tests/redis tests/direct tests/engine tests/runtime tests/threads_ $(ARGS)

simulate: setup-dev ## new histories in a simulated world for SECONDS (60) in JOBS (2) processes; SEED=n tells one of them
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --report build/simulation.json) $(ARGS)

simulate-contract: setup-dev setup-redis ## SEQUENCES (10000) of random commands to the simulated server and to a real one: same replies
	$(BIN)/python -m tests.simulation.contract $(or $(SEQUENCES),10000) $(SEED)
	$(BIN)/python -m tests.simulation.cluster_contract $(or $(SEQUENCES),1000) $(SEED)

mutants: setup-dev ## plant mistakes, of which the simulation must find each within SECONDS (60); ARGS="--operators 400" plants many
	$(BIN)/python -m tests.simulation.mutants --seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),1) $(ARGS)

lint: setup-dev ## ruff check, ruff format --check, mypy --strict, and what a user's type checker sees
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYRIGHT) tests/typing_/public_calls.py
	$(PYRIGHT) --verifytypes wheel_lock --ignoreexternal

docs: setup-dev ## build the site into build/site; a dead link or a page outside the navigation is an error
	$(MKDOCS) build --strict $(ARGS)
	$(BIN)/python scripts/site_links.py build/site

docs-serve: setup-dev ## show the site at http://127.0.0.1:8000, and build it again when a page changes
	$(MKDOCS) serve $(ARGS)

package: setup-dev ## build the sdist and the wheel into dist/, and check both
	$(BIN)/python scripts/package.py $(ARGS)

audit: setup-dev ## check the pinned packages for known vulnerabilities
	$(BIN)/python scripts/audit.py $(ARGS)

lock: setup-dev ## renew requirements/*.txt: the newest versions, with their sha256
	$(BIN)/python scripts/lock.py $(ARGS)

bench: setup-dev setup-redis ## measure beside what else there is in Python: ten minutes, into docs/performance.md
	$(BIN)/python -m bench --write $(ARGS)

bench-peers: setup-dev setup-redis ## the same with the rivals that need a JDK, Go or Node; skips what the machine lacks
	$(BIN)/python -m bench --peers --write $(ARGS)

bench-targets: setup-dev setup-redis ## each promise about speed beside its rival: twelve minutes; ARGS="--short" is quick
	$(BIN)/python -m bench.targets.table $(ARGS)

clean: ## remove everything that the other targets made, .venv included
	rm -rf .venv .venv-oldest .venv-all build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -rf bench/rivals/jvm/target bench/rivals/go/bin bench/rivals/node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One after the other even under make -j: they share .venv and the package database.
setup-demo:
	@scripts/setup.sh demo

setup-dev:
	@scripts/setup.sh dev

setup-oldest:
	@scripts/setup.sh oldest

setup-redis:
	@scripts/setup.sh redis

setup-databases:
	@scripts/setup.sh databases
