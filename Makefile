# Every target is a command of tools/course.py, which needs a Python 3.11 to 3.13 and nothing else.
# All that make adds is the search for that Python:  make course PYTHON=/path/to/python3.12

PYTHON ?=
PORT ?=
export PYTHON PORT

.DEFAULT_GOAL := help
.PHONY: help course test test-gpu lab serve exercises venv lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

course: ## everything, from nothing: .venv, the book, the exercises, a sample class graded

test: ## .venv, the book, a browser, and every test that this machine can run

test-gpu: ## on a machine with an NVIDIA GPU: everything that a GPU adds to the tests

lab: ## copy the exercises to work/ (never over your own files) and open JupyterLab there

serve: ## show the book at http://localhost:8000 (another port: PORT=8001)

exercises: ## maintainers: make exercises/ again from solutions/

venv: ## .venv alone

lock: ## maintainers: make requirements.txt again from pyproject.toml (needs uv)

clean: ## remove what was built; keeps .venv, work/ and class/

course test test-gpu lab serve exercises venv lock clean:
	@found=; \
	set -- python3 python3.13 python3.12 python3.11 python; \
	if [ -n "$$PYTHON" ]; then set -- "$$PYTHON"; fi; \
	for python; do \
	  version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	  case $$version in 3.11|3.12|3.13) exec "$$python" -B tools/course.py $@;; esac; \
	  found="$$found, $$python is $$version"; \
	done; \
	if [ -n "$$found" ]; then \
	  echo "error: the course needs Python 3.11, 3.12 or 3.13, but $${found#, }." \
	    "Name another: make $@ PYTHON=/path/to/python3.12" >&2; \
	elif [ -n "$$PYTHON" ]; then \
	  echo "error: PYTHON=$$PYTHON does not run. Give the path of a Python 3.11, 3.12 or 3.13" >&2; \
	else \
	  echo "error: no Python found: install Python 3.11, 3.12 or 3.13," \
	    "or name one: make $@ PYTHON=/path/to/python3.12" >&2; \
	fi; \
	exit 1
