# The commands of a checkout; each says what it does while it does it.  As root, on Debian 12 or newer, with Go
# 1.26 and Python 3.11 or newer; what else is needed is installed or built, and cached outside the tree.

.PHONY: help demo test check cases bench conformance image clean

help:
	@echo 'make demo                  from nothing to pods on a simulated Slurm cluster (45 min the first time, then 1)'
	@echo 'make test                  every test, the ones on the simulated cluster included'
	@echo 'make check                 format, lint, types, import contracts, unit tests (under a minute)'
	@echo 'make cases [CASES=...] [PROFILE=bare|older]'
	@echo '                           ../shared/cases, or the named files and folders, on the running cluster'
	@echo 'make bench [BENCH=NAME] [PROFILE=bare]'
	@echo '                           measure, all or what begins with a name; writes build/bench.json'
	@echo 'make conformance [FOCUS=REGEX] [PROFILE=bare]'
	@echo '                           Kubernetes'"'"' official conformance tests (an hour), or its tests whose names match'
	@echo 'make image                 build/hpk.sif'
	@echo 'make clean                 stop the simulated cluster and remove what was built here; the cache stays'

demo:
	@scripts/demo.sh

test:
	@scripts/test.sh

check:
	@scripts/check.sh

cases:
	@SITE_PROFILE=$(or $(PROFILE),$(SITE_PROFILE)) scripts/cases.sh $(CASES)

bench:
	@SITE_PROFILE=$(or $(PROFILE),$(SITE_PROFILE)) scripts/bench.sh $(BENCH)

conformance:
	@SITE_PROFILE=$(or $(PROFILE),$(SITE_PROFILE)) scripts/conformance.sh '$(FOCUS)'

image:
	@scripts/build-image.sh

clean:
	@tests/site/site down --purge
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
