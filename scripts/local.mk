# The quire command, its subcommands, and scripts for developers.
#
# To add something that is installed into $(bindir): append it to dist_bin_SCRIPTS. Lua files of the
# command that are not commands themselves belong to the module (lua/local.mk). Scripts of a git clone
# only (quickstart, bootstrap) go to EXTRA_DIST.
# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += %D%/bootstrap
dist_bin_SCRIPTS += %D%/quire
