# Manual pages, and examples that the tests compile and run.
#
# To add a page: append it to dist_man_MANS. An example goes to dist_doc_DATA, which installs it beside
# the documentation, and to a test of t/.
# SPDX-License-Identifier: Apache-2.0
dist_doc_DATA = README.md NEWS.md COPYING %D%/example.c %D%/example.lua %D%/lua.md
dist_man_MANS += %D%/quire.1 %D%/quire.3

# What was measured and tried; for those who work on the library.
EXTRA_DIST += %D%/bench-h200.md %D%/cpu.md %D%/kernels.md
