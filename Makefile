# `make demo` and `make test` set up all they need in .venv on a fresh machine with Python; the tests also want the programs
# that are named below.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test quick lint format docs dist programs browser sbom audit clean

demo: $(INSTALLED)
	$(BIN)/sage-snn demo

# Two processes, each with files of its own: fixtures of a file are made once, and two fit into any machine's memory.
test: programs lint browser
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

quick: lint
	$(BIN)/python -m pytest -q -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, without a network: build/site/index.html, opened as it lies there, its search too.
# Not --quiet: mkdocs counts only the warnings that it prints, so that nothing would be strict.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# What is uploaded to a package index.
dist: $(INSTALLED)
	@! grep -n "example.org" pyproject.toml || { echo "give the project's own addresses in pyproject.toml first"; exit 1; }
	$(BIN)/python -m build

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "sage-snn needs Python 3.11 or newer: make PYTHON=python3.11 ..."'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

programs:
	@for name in c++ git ps; do command -v $$name >/dev/null || { echo "install $$name first, e.g. sudo apt-get install g++ git procps"; exit 1; }; done

# The page of results is tested in a real browser.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  test "$$(id -u)" = 0 || { echo "install chromium and chromium-driver first, e.g. sudo apt-get install chromium chromium-driver"; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; }

# The bill of materials of what is installed (CycloneDX), and what is known against it. The second asks a service of the
# package index, which not every mirror has: packages that it does not know are counted, not taken for sound. It fails where
# something is known; .ci/run tells that and goes on, for a finding in a dependency is not the doing of the change at hand.
AUDIT := .venv/audit
$(AUDIT)/bin/cyclonedx-py: $(INSTALLED)
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet cyclonedx-bom pip-audit
	touch $@

sbom: $(AUDIT)/bin/cyclonedx-py
	mkdir -p dist
	$(AUDIT)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json

audit: $(AUDIT)/bin/cyclonedx-py
	@mkdir -p dist && : >dist/audit.json
	@$(AUDIT)/bin/pip-audit --progress-spinner off --format json --output dist/audit.json \
	  --path $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); found=$$?; \
	  count() { grep -o "\"$$1\"" dist/audit.json | wc -l; }; \
	  echo "audited: $$(count vulns) packages; not known to the package index: $$(count skip_reason); dist/audit.json has all"; exit $$found

clean:
	rm -rf .venv build dist
